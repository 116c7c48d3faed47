"""`python -m bench.compare BASE`: the same measures of another commit and of this tree in turn, printed as ratios.

Each side is measured by its own `python -m bench --quick` in its own checkout and environment, because the agent
imports installed packages. The sides take turns, so that a slow phase of this machine slows both.

Exit codes: 0 nothing is worse by more than 5 % · 1 something is · 2 a side could not be measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
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

from bench.outcome import CouldNotMeasure

WORSE, NOT_RUN, INTERRUPTED = 1, 2, 130
TOLERATED = 1.05
_ROUNDS = 5
_ROOT = Path(__file__).parents[1]
_PROGRAMS = ("agent", "cli", "diagnosis", "healthcheck", "quarantine", "repair", "sweeper")


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
class Side:
    """Checkout with the Python of its environment."""

    name: str
    root: Path
    python: Path

    def compile(self) -> None:
        """Compile the programs: compilation at each start would make a side slower."""
        folders = [str(self.root / program) for program in _PROGRAMS if (self.root / program).is_dir()]
        _run(str(self.python), "-m", "compileall", "-q", *folders)

    def measure(self, names: Sequence[str], output: Path) -> Measured:
        command = [str(self.python), "-m", "bench", *names, "--quick", "--output", str(output)]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CouldNotMeasure(f"{self.name}: python -m bench ended with {done.returncode}\n{done.stderr[-2000:]}")
        measures: Measured = json.loads(output.read_text())["measures"]
        return measures


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
    options = _options()
    try:
        with _base_side(options.base) as base:
            here = Side("this tree", _ROOT, Path(sys.executable))
            for side in (base, here):
                side.compile()
            rounds = list(_rounds(base, here, options.names or MEASURES, options.rounds))
    except CouldNotMeasure as error:
        print(error, file=sys.stderr)
        return NOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    found = ratios(rounds)
    _show(found, options.base)
    return WORSE if any(ratio.is_worse for ratio in found) else 0


def ratios(rounds: Sequence[tuple[Measured, Measured]]) -> list[Ratio]:
    """Return the ratios of every figure that both sides have in each round; `rounds`: pairs of base and this tree."""
    found = []
    for what, (measure, *path) in FIGURES.items():
        pairs = [(_figure(base, measure, path), _figure(here, measure, path)) for base, here in rounds]
        entries = [(base, here) for base, here in pairs if base and here is not None]
        if entries and len(entries) == len(pairs):
            base, here = (statistics.median(side) for side in zip(*entries, strict=True))
            found.append(Ratio(what, base, here, tuple(ours / theirs for theirs, ours in entries)))
    return found


def _figure(measured: Measured, measure: str, path: Sequence[str]) -> float | None:
    """Return a figure; None if that commit does not measure it."""
    raw = measured.get(measure, {}).get("raw", {})
    value = reduce(lambda part, key: part.get(key, {}) if isinstance(part, dict) else {}, path, raw)
    return float(value) if isinstance(value, int | float) else None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.splitlines()[0])
    parser.add_argument("base", metavar="BASE", help="the commit to compare with")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(MEASURES)}; all by default")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"how often both are measured ({_ROUNDS})")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASURES):
        parser.error(f"cannot compare {', '.join(sorted(unknown))}; only {', '.join(MEASURES)}")
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    return options


@contextmanager
def _base_side(commit: str) -> Iterator[Side]:
    """Yield a second checkout, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-base-") as folder:
        root = Path(folder) / "base"
        _run("git", "worktree", "add", "--detach", str(root), commit)
        try:
            print("an environment for the base: make setup …", file=sys.stderr, flush=True)
            _run("make", "--directory", str(root), "setup")
            yield Side(f"base {commit}", root, root / ".venv/bin/python")
        finally:
            _run("git", "worktree", "remove", "--force", str(root))


def _rounds(base: Side, here: Side, names: Sequence[str], count: int) -> Iterator[tuple[Measured, Measured]]:
    """Yield pairs of base and this tree; each is first in every other round."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-healthcheck-compare-"))
    try:
        for number in range(count):
            sides = (base, here) if number % 2 == 0 else (here, base)
            measured = {}
            for side in sides:
                print(f"round {number + 1} of {count}: {side.name} …", file=sys.stderr, flush=True)
                measured[side.name] = side.measure(names, folder / "results.json")
                (folder / "results.json").unlink()  # otherwise a result of the other side could remain
            yield measured[base.name], measured[here.name]
    finally:
        shutil.rmtree(folder)


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


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CouldNotMeasure(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
