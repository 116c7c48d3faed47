"""Runs the few failed tests of a tier over real parts once more, one after the other: `rerun.py cluster|real_node`.

A machine that stands still for a minute fails a test over real parts; a fault fails it again. More than a few at once
are no accident, and are not run again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

MOST = 3
"""Failed tests, above which a tier has failed for good."""
_GROUP = re.compile(r"@[\w-]+\Z")
"""What pytest-xdist adds to the name of a test of a group."""


def failed(cache: Path) -> list[str]:
    """The tests that failed in the last run of that tier; none where pytest itself ended before it could say."""
    try:
        result = json.loads((cache / "v/cache/lastfailed").read_text())
    except FileNotFoundError:
        return []
    return sorted(_GROUP.sub("", entry) for entry in result)


def chosen(tier: str, tests: list[str]) -> list[str]:
    """Return the tests to repeat: whole files for the real node, because their tests depend on each other."""
    return list(dict.fromkeys(test.partition("::")[0] for test in tests)) if tier == "real_node" else tests


def main(tier: str, cache: Path) -> int:
    tests = failed(cache)
    if not 0 < len(tests) <= MOST:
        sys.stdout.write(f"{tier}: {len(tests)} tests failed; 1 to {MOST} are run once more\n")
        return 1
    words = (sys.executable, "-m", "pytest", "-m", tier, "-o", f"cache_dir={cache}", *chosen(tier, tests))
    code = subprocess.run(words, check=False).returncode  # noqa: S603 - the names of our own tests
    message = "failed again" if code else "passed when they ran alone: look at them, they may do so again"
    sys.stdout.write("".join(f"{tier}: {test}\n" for test in tests) + f"{tier}: these failed, and {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
