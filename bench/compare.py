"""`python -m bench.compare BASE`: the same measures of another commit and of this tree in turn, printed as ratios.

Each side is measured by its own `python -m bench --quick` in its own checkout and environment, because the agent
imports installed packages. The sides take turns, so that a slow phase of this machine slows both.

Exit codes: 0 nothing is worse by more than 5 % · 1 something is · 2 a side could not be measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.outcome import ROOT, CouldNotMeasure

WORSE, NOT_RUN, INTERRUPTED = 1, 2, 130
TOLERATED = 1.05
_ROUNDS = 5
_PROGRAMS = ("agent", "cli", "diagnosis", "evict", "healthcheck", "quarantine", "repair", "sweeper")

FIGURES: Mapping[str, tuple[str, ...]] = {
    "detection, p50 ms": ("detection", "connected", "record_to_watch_ms", "p50"),
    "detection, until noticed, p50 ms": ("detection", "connected", "record_to_noticed_ms", "p50"),
    "detection over a new connection, p50 ms": ("detection", "reconnecting", "record_to_watch_ms", "p50"),
    "CPU of a light cycle, mean ms": ("cycle", "cpu_milliseconds", "mean"),
    "wall time of the same, mean ms": ("cycle", "wall_milliseconds", "mean"),
    "CPU of judging, mean ms": ("cycle", "judge_milliseconds", "mean"),
    "start of the agent, p50 s": ("start", "seconds", "p50"),
    "start by the command, p50 s": ("start", "seconds_by_command", "p50"),
    "memory alone, MiB": ("memory", "mib", "bare", "alone"),
    "memory, PSS, MiB": ("memory", "mib", "bare", "pss"),
    "gate, a pod that is not known yet, p50 ms": ("gate", "cold_ms", "p50"),
    "gate, known pods, 50 at once, p50 ms": ("gate", "warm_ms", "p50"),
    "memory alone after probes, MiB": ("memory", "mib", "probed", "alone"),
}
"""Measure and path of each compared figure in the results file; less is better."""
MEASURES = tuple(dict.fromkeys(measure for measure, *_ in FIGURES.values()))
Measured = Mapping[str, Any]
"""Measures of a results file."""


@dataclass(frozen=True)
class Ratio:
    """Ratios of one figure over the rounds: this tree's divided by the base's."""

    what: str
    base: float
    here: float
    rounds: tuple[float, ...]

    @property
    def middle(self) -> float:
        return statistics.median(self.rounds)

    @property
    def is_worse(self) -> bool:
        return self.middle > TOLERATED


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.splitlines()[0])
    parser.add_argument("base", metavar="BASE", help="the commit to compare with")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(MEASURES)}; all by default")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"how often both are measured ({_ROUNDS})")
    options = parser.parse_args()
    if (unknown := set(options.names) - set(MEASURES)) or options.rounds < 1:
        parser.error(f"cannot compare {', '.join(sorted(unknown)) or 'in no round'}; only {', '.join(MEASURES)}")
    try:
        with checkout(options.base) as base:
            found = ratios(list(_rounds(base, options.names or MEASURES, options.rounds)))
    except CouldNotMeasure as error:
        print(error, file=sys.stderr)
        return NOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    _show(found, options.base)
    return WORSE if any(ratio.is_worse for ratio in found) else 0


def ratios(rounds: Sequence[tuple[Measured, Measured]]) -> list[Ratio]:
    """Return the ratios of every figure that both sides have in each round; `rounds`: pairs of base and this tree."""
    found = []
    for what, path in FIGURES.items():
        pairs = [(_figure(base, path), _figure(here, path)) for base, here in rounds]
        entries = [(base, here) for base, here in pairs if base and here is not None]
        if entries and len(entries) == len(pairs):
            base, here = (statistics.median(side) for side in zip(*entries, strict=True))
            found.append(Ratio(what, base, here, tuple(ours / theirs for theirs, ours in entries)))
    return found


def _figure(measured: Measured, path: Sequence[str]) -> float | None:
    """Return a figure; None if that commit does not measure it."""
    keys = (path[0], "raw", *path[1:])
    value = reduce(lambda part, key: part.get(key, {}) if isinstance(part, Mapping) else {}, keys, measured)
    return float(value) if isinstance(value, int | float) else None


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yield a second checkout with its environment, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-checkout-") as folder:
        root = Path(folder) / "base"
        _run(ROOT, "git", "worktree", "add", "--detach", str(root), commit)
        try:
            print(f"an environment for {commit}: make setup …", file=sys.stderr, flush=True)
            _run(root, "make", "setup")
            yield root
        finally:
            _run(ROOT, "git", "worktree", "remove", "--force", str(root))


def _rounds(base: Path, names: Sequence[str], count: int) -> Iterator[tuple[Measured, Measured]]:
    """Yield pairs of base and this tree; each is first in every other round."""
    pythons = {base: base / ".venv/bin/python", ROOT: Path(sys.executable)}
    for root, python in pythons.items():  # compilation at each start would make a side slower
        _run(root, str(python), "-m", "compileall", "-q", *(name for name in _PROGRAMS if (root / name).is_dir()))
    for number in range(count):
        measured = {}
        for root in (base, ROOT) if number % 2 == 0 else (ROOT, base):
            print(f"round {number + 1} of {count}: {'this tree' if root == ROOT else 'base'} …", file=sys.stderr)
            with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-compare-") as folder:
                output = Path(folder) / "results.json"
                _run(root, str(pythons[root]), "-m", "bench", *names, "--quick", "--output", str(output))
                measured[root] = json.loads(output.read_text())["measures"]
        yield measured[base], measured[ROOT]


def _show(found: Sequence[Ratio], base: str) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 120
    table = Table("figure", base[:12], "this tree", "ratio", "of each round", "")
    for ratio in found:
        spread = f"{min(ratio.rounds):.2f}–{max(ratio.rounds):.2f}"  # noqa: RUF001 - a range
        verdict = "[red]worse[/]" if ratio.is_worse else ""
        table.add_row(ratio.what, f"{ratio.base:.3g}", f"{ratio.here:.3g}", f"{ratio.middle:.2f}", spread, verdict)
    console.print(table)


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CouldNotMeasure(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
