"""The printed table, and the results file with the conditions of each measure, without names of the machine."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.length import Length
from bench.outcome import Outcome

SCHEMA = 1
_ROOT = Path(__file__).parents[1]
_PLAIN_WIDTH = 140
_MET = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}

Entry = Mapping[str, Any]
"""Outcome of a measure as JSON with its conditions, or its error."""


def entry(outcome: Outcome, length: Length, moment: Mapping[str, Any]) -> Entry:
    return {**moment, "quick": length.quick, **asdict(outcome), "raw": figures(outcome.raw)}


def figures(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures without lists: percentiles describe samples better than the samples themselves."""
    kept = {key: value for key, value in raw.items() if not isinstance(value, list | tuple)}
    return {key: figures(value) if isinstance(value, Mapping) else value for key, value in kept.items()}


def show(entries: Mapping[str, Entry], console: Console) -> None:
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    quick = any(entry["quick"] for entry in entries.values())
    table = Table("measure", "aim", "figure", "met", title="SHORTENED RUN: no aim is checked" if quick else None)
    for name, entry in entries.items():
        if "error" in entry:
            table.add_row(name, "", "could not measure: " + entry["error"], "[yellow]not run[/]")
        for row in entry.get("rows", ()):
            table.add_row(row["what"], row["aim"], row["figure"], _MET[row["met"]])
    console.print(table)
    for note in dict.fromkeys(note for entry in entries.values() for note in entry.get("notes", ())):
        console.print(note, style="dim", highlight=False)


def write(path: Path, entries: Mapping[str, Entry], names: Sequence[str]) -> None:
    """Write these measures to the file; keep other measures if they are from the same machine."""
    machine = _describe_machine()
    before = json.loads(path.read_text()) if path.exists() else {}
    kept = before["measures"] if before.get("schema") == SCHEMA and before["machine"] == machine else {}
    measures = {name: entry for name in names if (entry := entries.get(name, kept.get(name)))}
    document = {"schema": SCHEMA, "machine": machine, "measures": measures}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n")


def describe_moment() -> dict[str, Any]:
    """Return the conditions that differ between runs: the code, and the load of the machine."""
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed": bool(_git("status", "--porcelain")),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _describe_machine() -> dict[str, Any]:
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
