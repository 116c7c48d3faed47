"""Result of a measure: rows of the printed table, and the raw figures of the results file.

The file has the conditions of each measure, without names of the machine.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
_SCHEMA = 1
_PLAIN_WIDTH = 140
_MET = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}

Entry = Mapping[str, Any]
"""Outcome of a measure as JSON with its conditions, or its error."""


class CouldNotMeasure(Exception):
    """The measure could not run on this machine, or a measured program failed. The message has the reason."""


@dataclass(frozen=True)
class Row:
    """One line of the table. `met` None: there is no aim, or the run was too short to judge."""

    what: str
    aim: str
    figure: str
    met: bool | None = None


@dataclass(frozen=True)
class Outcome:
    """Result of a measure: its rows and raw figures."""

    rows: tuple[Row, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Notes on the conditions of the figures."""


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the percentile by nearest rank, which is always a measured value."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def summary(samples: Sequence[float]) -> dict[str, Any]:
    return {
        "count": len(samples),
        "min": round(min(samples), 3),
        "mean": round(statistics.fmean(samples), 3),
        "p50": round(percentile(samples, 0.50), 3),
        "p90": round(percentile(samples, 0.90), 3),
        "p99": round(percentile(samples, 0.99), 3),
        "max": round(max(samples), 3),
    }


def entry(outcome: Outcome, moment: Mapping[str, Any]) -> Entry:
    return {**moment, **asdict(outcome), "raw": figures(outcome.raw)}


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
    kept = before["measures"] if before.get("schema") == _SCHEMA and before["machine"] == machine else {}
    measures = {name: entry for name in names if (entry := entries.get(name, kept.get(name)))}
    document = {"schema": _SCHEMA, "machine": machine, "measures": measures}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n")


def describe_moment(*, quick: bool) -> dict[str, Any]:
    """Return the conditions that differ between runs: the code, the load of the machine, and the length."""
    return {
        "quick": quick,
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
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
