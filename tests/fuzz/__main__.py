"""`python -m tests.fuzz [--seconds 600] [--seed N] [NAME…]`: new examples until the time is over, shared among targets.

Exit codes: 0 nothing found · 1 a property does not hold; the smallest example of it is printed, with the seed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity

from tests.fuzz.targets import TARGETS, Target

_EXAMPLES_A_ROUND = 200
_ROUND = hypothesis.settings(
    max_examples=_EXAMPLES_A_ROUND,
    deadline=None,
    database=None,
    derandomize=False,
    phases=(Phase.generate, Phase.target, Phase.shrink),
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.normal,
    print_blob=True,
)


@dataclass
class _Tally:
    examples: int = 0
    seconds: float = 0.0


def main() -> int:
    options = _options()
    wanted = [one for one in TARGETS if one.name in options.names or not options.names]
    seed = time.time_ns() if options.seed is None else options.seed
    print(f"fuzzing {', '.join(one.name for one in wanted)} for {options.seconds:g} s from seed {seed}", flush=True)
    failed = 0
    for target in wanted:
        tally = _Tally()
        held = _fuzz(target, options.seconds / len(wanted), seed, tally)
        word = "held" if held else "FAILED"
        print(f"{target.name}: {word}, {tally.examples:,} examples in {tally.seconds:.1f} s", flush=True)
        failed += not held
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    names = [target.name for target in TARGETS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all together; default %(default)s")
    parser.add_argument("--seed", type=int, help="as an earlier run printed it; new each time otherwise")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no target is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return options


def _fuzz(target: Target, seconds: float, seed: int, tally: _Tally) -> bool:
    """Rounds with seeds of their own until the time is over. False: the property does not hold."""
    began = time.monotonic()

    @_ROUND
    @hypothesis.given(**target.strategies)
    def holds(**example: object) -> None:
        tally.examples += 1
        target.holds(**example)

    try:
        while time.monotonic() - began < seconds:
            hypothesis.seed(seed)(holds)()
            seed += 1
    except Exception:  # noqa: BLE001 - whatever was raised is what we were looking for
        print(f"{target.name}, seed {seed}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return False
    finally:
        tally.seconds = time.monotonic() - began
    return True


if __name__ == "__main__":
    sys.exit(main())
