"""Determine the version of HAMi, because its behaviour and formats differ between versions. Pure."""

from __future__ import annotations

import re

from diagnosis.facts.components import tag_of

Version = tuple[int, int]
NEWEST: Version = (2, 10)
"""Of which the rules are known; a later one, or one that nobody tells, is taken for it."""
ANSWERED_UNTIL: Version = (2, 7)
"""The last whose device plugin answers the scheduler's handshake."""
_TAG = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:[.+-].{0,80})?\Z", re.ASCII)


def version_of(tag: str) -> Version | None:
    """Parse the version of an image's tag: `v2.7.1`, `2.9.0-amd64`."""
    match = _TAG.match(tag)
    return (int(match[1]), int(match[2])) if match else None


def image_version(image: str) -> Version | None:
    return version_of(tag_of(image))
