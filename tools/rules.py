"""Check and test the alerting and recording rules with promtool. Without promtool, report that; in CI, fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent

import yaml

_ROOT = Path(__file__).parents[1]
_RULE = _ROOT / "kubernetes/overlays/monitoring/prometheus-rule.yaml"
_TESTS = sorted((_ROOT / "tests/monitoring").glob("*_test.yaml"))


def plain_rules() -> str:
    """Return the rules as a rules file of Prometheus: the spec of the PrometheusRule."""
    return dedent(_RULE.read_text().partition("\nspec:\n")[2])


def records() -> str:
    """Return the rules without the alerts: a test over months needs only the records."""
    groups = yaml.safe_load(plain_rules())["groups"]
    kept = [{**group, "rules": [rule for rule in group["rules"] if "record" in rule]} for group in groups]
    return yaml.safe_dump({"groups": kept})


def main() -> int:
    promtool = shutil.which("promtool")
    if promtool is None:
        sys.stderr.write("NOT CHECKED: the rules need promtool (Debian: apt-get install prometheus)\n")
        return 1 if os.environ.get("CI") else 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rules.yaml").write_text(plain_rules())
        (Path(folder) / "records.yaml").write_text(records())
        tests = [Path(shutil.copy(test, folder)).name for test in _TESTS]
        for words in (["check", "rules", "rules.yaml"], ["test", "rules", *tests]):
            ended = subprocess.run(  # noqa: S603 - our own words
                [promtool, *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            if ended.returncode:
                sys.stderr.write(ended.stdout)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
