"""Replace the current version in the sources with the next one: `python -m tools.version 0.3.0`."""

from __future__ import annotations

import re
import sys
from itertools import chain
from pathlib import Path

from healthcheck import __version__
from tools.release.check import VERSION

ROOT = Path(__file__).parents[1]
_PLACES = (
    "healthcheck/__init__.py",
    "Dockerfile",
    "*.md",
    "docs/*.md",
    "kubernetes/manifests/**/*.yaml",
    "kubernetes/overlays/**/*.yaml",
)
_BEFORE_IT = r'(?<=gpu-healthcheck:)|(?<=newTag: )|(?<=VERSION=)|(?<=__version__ = ")|(?<=git checkout v)'
"""Text before the current version; elsewhere a number refers to the behaviour of that version."""


def renamed(text: str, before: str, after: str) -> str:
    return re.sub(rf"(?:{_BEFORE_IT}){re.escape(before)}(?![\d.])", after, text)


def main() -> int:
    if len(sys.argv) != 2 or not VERSION.match(sys.argv[1]):
        sys.stderr.write("usage: python -m tools.version 1.2.3\n")
        return 3
    for file in sorted(chain.from_iterable(ROOT.glob(place) for place in _PLACES)):
        text = file.read_text()
        if (changed := renamed(text, __version__, sys.argv[1])) != text:
            file.write_text(changed)
            sys.stdout.write(f"{file.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
