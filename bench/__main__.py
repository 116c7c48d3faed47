"""`python -m bench [NAME…]`: measure, print one table, and write the figures with their conditions.

Exit codes: 0 every aim was met (a shortened run checks none) · 1 one was missed · 2 a measure could not run.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from bench import length as lengths
from bench.machine import describe_moment, fingerprint
from bench.measures import MEASURES, Measure
from bench.outcome import CouldNotMeasure
from bench.report import Entry, entry, judged, show, write
from bench.stage import Stage

MISSED, NOT_RUN, INTERRUPTED = 1, 2, 130
_ROOT = Path(__file__).parents[1]
_RESULTS, _QUICK_RESULTS = _ROOT / "bench/results.json", _ROOT / "build/bench-quick.json"


def main() -> int:
    options = _options()
    length = lengths.QUICK if options.quick else lengths.HOUR if options.hour else lengths.FULL
    wanted = [measure for measure in MEASURES if measure.name in options.names or not options.names]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Stage(length) as stage:
            entries = {measure.name: _run(measure, stage) for measure in wanted}
            version = stage.kubernetes_version if stage.has_plane else None
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the cleanup remains
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    show(entries, Console())
    output = options.output or (_QUICK_RESULTS if length.quick else _RESULTS)
    write(output, entries, [measure.name for measure in MEASURES], version)
    if any("error" in entry for entry in entries.values()):
        return NOT_RUN
    return 0 if all(judged(entries)) else MISSED


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    names = [measure.name for measure in MEASURES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of {', '.join(names)}")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="shortened smoke test of one or two minutes; checks no aim")
    how.add_argument("--hour", action="store_true", help="count the API calls of a whole idle hour")
    parser.add_argument("--output", type=Path, help=f"default {_RESULTS.relative_to(_ROOT)}; with --quick below build/")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"unknown measures: {', '.join(sorted(unknown))}; the measures are {', '.join(names)}")
    return options


def _run(measure: Measure, stage: Stage) -> Entry:
    print(f"{measure.name} …", file=sys.stderr, flush=True)
    moment, code = describe_moment(stage.folder), fingerprint()
    try:
        outcome = measure.run(stage)
    except CouldNotMeasure as error:
        return _failed(measure, stage, str(error), moment)
    except Exception as error:  # noqa: BLE001 - a bug in one measure must not lose the minutes of the others
        return _failed(measure, stage, f"{error!r}\n{traceback.format_exc()}", moment)
    for row in outcome.rows:
        print(f"  {row.what}: {row.figure}", file=sys.stderr, flush=True)
    if fingerprint() != code:
        outcome = replace(outcome, notes=(*outcome.notes, f"{measure.name}: THE PRODUCT'S CODE CHANGED DURING THE RUN"))
    return entry(outcome, stage.length, moment)


def _failed(measure: Measure, stage: Stage, why: str, moment: Entry) -> Entry:
    print(f"{measure.name}: {why}", file=sys.stderr, flush=True)
    # Only the first line goes into the file: the others name folders of this machine.
    return {**moment, "length": asdict(stage.length), "error": why.splitlines()[0]}


if __name__ == "__main__":
    sys.exit(main())
