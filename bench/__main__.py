"""`python -m bench [NAME…]`: measure, print one table, and write the figures with their conditions.

Exit codes: 0 every aim was met (a shortened run checks none) · 1 one was missed · 2 a measure could not run.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from bench import (
    commands,
    cycle,
    detection,
    diagnose,
    evict,
    false_alarms,
    fleet,
    gate,
    group_budget,
    memory,
    replay,
    reset,
    slow,
    start,
    sweep_plan,
)
from bench.outcome import ROOT, CouldNotMeasure, Entry, Outcome, describe_moment, entry, show, write
from bench.stage import FULL, QUICK, Stage

MISSED, NOT_RUN, INTERRUPTED = 1, 2, 130
_RESULTS, _QUICK_RESULTS = ROOT / "bench/results.json", ROOT / "build/bench-quick.json"
MEASURES: Mapping[str, Callable[[Stage], Outcome]] = {
    "detection": detection.measure,
    "cycle": cycle.measure,
    "start": start.measure,
    "gate": gate.measure,
    "commands": commands.measure,
    "replay": replay.measure,
    "memory": memory.measure,
    "fleet": fleet.measure,
    "evict": evict.measure,
    "group-budget": group_budget.measure,
    "sweep-plan": sweep_plan.measure,
    "diagnose": diagnose.measure,
    "slow": slow.measure,
    "false-alarms": false_alarms.measure,
    "reset": reset.measure,
}
"""All measures by name, in the order in which they run."""


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Stage(QUICK if options.quick else FULL) as stage:
            entries = {name: _run(name, stage) for name in MEASURES if name in options.names or not options.names}
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the cleanup remains
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    show(entries, Console())
    write(options.output or (_QUICK_RESULTS if options.quick else _RESULTS), entries, tuple(MEASURES))
    if any("error" in entry for entry in entries.values()):
        return NOT_RUN
    rows = [row for entry in entries.values() for row in entry["rows"]]
    return MISSED if any(row["met"] is False for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="shortened smoke test of some minutes; checks no aim")
    parser.add_argument("--output", type=Path, help=f"default {_RESULTS.relative_to(ROOT)}; with --quick below build/")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASURES):
        parser.error(f"unknown measures: {', '.join(sorted(unknown))}; the measures are {', '.join(MEASURES)}")
    return options


def _run(name: str, stage: Stage) -> Entry:
    print(f"{name} …", file=sys.stderr, flush=True)
    moment = describe_moment(quick=stage.length.quick)
    try:
        outcome = MEASURES[name](stage)
    except Exception as error:  # noqa: BLE001 - a bug in one measure must not lose the minutes of the others
        why = str(error) if isinstance(error, CouldNotMeasure) else f"{error!r}\n{traceback.format_exc()}"
        print(f"{name}: {why}", file=sys.stderr, flush=True)
        # Only the first line goes into the file: the others name folders of this machine.
        return {**moment, "error": why.splitlines()[0]}
    for row in outcome.rows:
        print(f"  {row.what}: {row.figure}", file=sys.stderr, flush=True)
    return entry(outcome, moment)


if __name__ == "__main__":
    sys.exit(main())
