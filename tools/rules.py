"""Check and test monitoring/rules.yaml with promtool. Without promtool, report that; in CI, fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "monitoring"


def main() -> int:
    promtool = shutil.which("promtool")
    if promtool is None:
        sys.stderr.write("NOT CHECKED: monitoring/rules.yaml needs promtool (Debian: apt-get install prometheus)\n")
        return 1 if os.environ.get("CI") else 0
    for words in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        ended = subprocess.run(  # noqa: S603 - our own words
            [promtool, *words], cwd=FOLDER, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if ended.returncode:
            sys.stderr.write(ended.stdout)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
