"""The printed table and the results' file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.length import Length
from bench.machine import describe_machine
from bench.outcome import Outcome

SCHEMA = 1
_PLAIN_WIDTH = 140
_MET = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}

Entry = Mapping[str, Any]
"""Outcome of a measure as JSON with its conditions, or its error."""


def entry(outcome: Outcome, length: Length, moment: Mapping[str, Any]) -> Entry:
    return {**moment, "length": asdict(length), **asdict(outcome), "raw": figures(outcome.raw)}


def figures(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures without lists: percentiles describe samples better than the samples themselves."""
    kept = {key: value for key, value in raw.items() if not isinstance(value, list | tuple)}
    return {key: figures(value) if isinstance(value, Mapping) else value for key, value in kept.items()}


def show(entries: Mapping[str, Entry], console: Console) -> None:
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    quick = any(entry["length"]["quick"] for entry in entries.values())
    table = Table("measure", "aim", "figure", "met", title="SHORTENED RUN: no aim is checked" if quick else None)
    for name, entry in entries.items():
        if "error" in entry:
            table.add_row(name, "", "could not measure: " + entry["error"], "[yellow]not run[/]")
        for row in entry.get("rows", ()):
            table.add_row(row["what"], row["aim"], row["figure"], _MET[row["met"]])
    console.print(table)
    for note in dict.fromkeys(note for entry in entries.values() for note in entry.get("notes", ())):
        console.print(note, style="dim", highlight=False)


def write(path: Path, entries: Mapping[str, Entry], names: Sequence[str], kubernetes_version: str | None) -> None:
    """Write these measures to the file; keep other measures if they are from the same machine."""
    machine = describe_machine() | {"kubernetes": kubernetes_version}
    before = _read(path)
    if kubernetes_version is None:
        machine["kubernetes"] = before.get("machine", {}).get("kubernetes")
    kept = before["measures"] if before.get("schema") == SCHEMA and before["machine"] == machine else {}
    measures = {name: entry for name in names if (entry := entries.get(name, kept.get(name)))}
    document = {"schema": SCHEMA, "machine": machine, "measures": measures}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n")


def judged(entries: Mapping[str, Entry]) -> Sequence[bool]:
    """Return whether each checked aim was met."""
    return [row["met"] for entry in entries.values() for row in entry.get("rows", ()) if row["met"] is not None]


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document
