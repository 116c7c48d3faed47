"""Which HAMi schedules here: what it does and writes has changed from version to version. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from diagnosis.snapshot import Snapshot

Version = tuple[int, int]
NEWEST: Version = (2, 10)
"""Of which the rules are known; a later one, or one that nobody tells, is taken for it."""
ANSWERED_UNTIL: Version = (2, 7)
"""The last whose device plugin answers the scheduler's handshake."""
EXTENDER = "vgpu-scheduler-extender"
_TAG = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:[.+-].{0,80})?\Z", re.ASCII)


def version_of(tag: str) -> Version | None:
    """Of an image's tag: `v2.7.1`, `2.9.0-amd64`."""
    match = _TAG.match(tag)
    return (int(match[1]), int(match[2])) if match else None


def image_version(image: str) -> Version | None:
    return version_of(image.partition("@")[0].rpartition("/")[2].partition(":")[2])


def scheduler_version(snapshot: Snapshot) -> Version | None:
    """Of the newest extender that is there; None where its image does not tell."""
    found = [image_version(image) for image in _extenders(snapshot)]
    return max((one for one in found if one is not None), default=None)


def _extenders(snapshot: Snapshot) -> Iterator[str]:
    workloads = (one.spec for one in snapshot.workloads if one.spec is not None)
    for spec in chain(workloads, (one.spec for one in snapshot.pods if not one.over)):
        yield from (one.image for one in spec.containers if one.name == EXTENDER)
