#!/usr/bin/env python3
"""Writes instance-profiles.conf into the ConfigMap's manifest; `--check` only says whether it is stale."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import indent

ROOT = Path(__file__).parents[1]
PROFILES = ROOT / "instance-profiles.conf"
MANIFEST = ROOT / "kubernetes" / "manifests" / "03-config.yaml"
BEGIN = "  # BEGIN instance-profiles.conf"
END = "  # END instance-profiles.conf"


def render(manifest: str, profiles: str) -> str:
    """The manifest with this text between the two marker lines."""
    before, _, rest = manifest.partition(BEGIN)
    marker, _, rest = rest.partition("\n")
    _, _, after = rest.partition(END)
    block = "  instance-profiles.conf: |\n" + indent(profiles, "    ")
    return f"{before}{BEGIN}{marker}\n{block}{END}{after}"


def main() -> int:
    manifest = MANIFEST.read_text()
    rendered = render(manifest, PROFILES.read_text())
    if rendered == manifest:
        return 0
    if "--check" in sys.argv[1:]:
        sys.stderr.write(f"{MANIFEST.relative_to(ROOT)} is stale: run python tools/manifests.py\n")
        return 1
    MANIFEST.write_text(rendered)
    return 0


if __name__ == "__main__":
    sys.exit(main())
