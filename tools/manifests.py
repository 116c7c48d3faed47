#!/usr/bin/env python3
"""Write generated parts of manifests; `--check` only lists outdated files.

The ConfigMap gets the settings as comments; the Helm chart is generated from all manifests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

from gpu_healthcheck.healthcheck.catalog.profiles import PROFILES_FILE
from tools import chart
from tools.chart.settings import settings_lines

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "kubernetes" / "manifests" / "03-config.yaml"
BEGIN = "# BEGIN settings: written from healthcheck/settings/declaration.py by `make docs`\n"
END = "# END settings\n"
_PROFILES_LINES = f"""\
# Lines that add rows to the table {PROFILES_FILE}, or replace them: type|gpus|efa|nvlink|provider[|roce].
{PROFILES_FILE}: |
  p5.48xlarge|8|32|true|efa
"""
DASHBOARD = chart.CHART / "dashboard" / "gpu-healthcheck.json"


def settings_block() -> str:
    """Return the ConfigMap's comments: each setting with its meaning, bounds and default."""
    return indent(settings_lines(lambda setting: json.dumps(setting.written_default)) + _PROFILES_LINES, "#  ")


def render(manifest: str) -> str:
    """Return the ConfigMap with the declared settings between the two marker lines."""
    before, _, rest = manifest.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{settings_block()}{END}{after}"


def rendered() -> dict[Path, str]:
    """Return every generated file with its content."""
    return {MANIFEST: render(MANIFEST.read_text())}


def stale() -> Iterator[tuple[Path, str]]:
    """Yield each outdated file. The chart is generated from the others, so it is last."""
    for made in (rendered, chart.rendered):
        yield from ((path, text) for path, text in made().items() if not path.exists() or path.read_text() != text)


def main() -> int:
    if "--check" in sys.argv[1:]:
        named = [path for path, _ in stale()]
        for path in named:
            sys.stderr.write(f"{path.relative_to(ROOT)} is stale: run make docs\n")
        return 1 if named else 0
    for path, text in stale():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
