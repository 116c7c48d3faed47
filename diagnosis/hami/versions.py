"""Determine the version of HAMi, because its behaviour and formats differ between versions. Pure."""

from __future__ import annotations

import re

from diagnosis.facts.components import tag_of

Version = tuple[int, int]
NEWEST: Version = (2, 10)
"""Newest version with known rules; assumed for later and unknown versions."""
ANSWERED_UNTIL: Version = (2, 7)
"""Last version whose device plugin responds to the scheduler's handshake."""
_TAG = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:[.+-].{0,80})?\Z", re.ASCII)


def version_of(tag: str) -> Version | None:
    """Parse the version of an image's tag: `v2.7.1`, `2.9.0-amd64`."""
    match = _TAG.match(tag)
    return (int(match[1]), int(match[2])) if match else None


def image_version(image: str) -> Version | None:
    return version_of(tag_of(image))
