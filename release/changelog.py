"""The section of CHANGELOG.md about one version; pure."""

from __future__ import annotations

import re

from release.running import ReleaseError

_HEADING = re.compile(r"^## \[?(?P<version>[^\]\s]+)\]?.*$", re.MULTILINE)


UNRELEASED = "Unreleased"


def has_unreleased(changelog: str) -> bool:
    """Whether there are unreleased entries."""
    try:
        return bool(section(changelog, UNRELEASED))
    except ReleaseError:
        return False


def section(changelog: str, version: str) -> str:
    """Return the text under a heading such as `## 0.1.0 - 2026-11-30`. Raises ReleaseError."""
    headings = list(_HEADING.finditer(changelog))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading["version"] == version:
            text = changelog[heading.end() : following.start() if following else None].strip()
            if text:
                return f"{text}\n"
            raise ReleaseError(f"CHANGELOG.md has no text below its heading of {version}")
    raise ReleaseError(f"CHANGELOG.md has no section of {version}: rename `## Unreleased` to `## {version} - DATE`")
