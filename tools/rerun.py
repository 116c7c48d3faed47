"""Repeat a few failed tests of a tier with real parts, one after the other: `rerun.py cluster|real_node`.

A machine that stalls for a minute makes such a test fail once; a defect makes it fail again. More than a few failures
are not accidental and are not repeated.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

MOST = 3
"""Number of failed tests above which none is repeated."""
_GROUP = re.compile(r"@[^@\]]+\Z")
"""Suffix that pytest-xdist adds to the name of a grouped test; a group may be named after a folder."""


def failed(cache: Path) -> list[str]:
    """Return the failed tests of the tier's last run; none if pytest ended before it wrote them."""
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
        sys.stdout.write(f"{tier}: {len(tests)} tests failed; only 1 to {MOST} are repeated\n")
        return 1
    words = (sys.executable, "-m", "pytest", "-m", tier, "-o", f"cache_dir={cache}", *chosen(tier, tests))
    code = subprocess.run(words, check=False).returncode  # noqa: S603 - the names of our own tests
    message = "failed again" if code else "passed when they ran alone: check them, they may fail again"
    sys.stdout.write("".join(f"{tier}: {test}\n" for test in tests) + f"{tier}: these failed, and {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
