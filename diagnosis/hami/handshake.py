"""Read the last handshake of scheduler and device plugin on a node. Pure.

Since HAMi 2.8 no plugin answers: a request that is days old is normal on healthy nodes.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum

from msgspec import Struct

from diagnosis.hami.annotation_text import epoch, word
from diagnosis.snapshot.nodes import Node
from healthcheck.text.moments import held

_KEY = re.compile(r"hami\.io/node-handshake(?:-([A-Za-z0-9_.-]{1,60}))?\Z", re.ASCII)
_AT = re.compile(
    r"(\d{4})[-.](\d{2})[-.](\d{2})[ T](\d{2}):(\d{2}):(\d{2})(?:\.\d{1,9})?(?:(Z)| ?([+-])(\d{2}):?(\d{2}))?", re.ASCII
)


class HandshakeState(Enum):
    """State of a handshake. The value is the annotation's first word."""

    REPORTED = "Reported"
    """The plugin has responded: up to 2.7."""
    REQUESTING = "Requesting"
    """The scheduler has sent a request."""
    DELETED = "Deleted"
    """The scheduler gave the node up."""
    OTHER = ""


class Handshake(Struct, frozen=True):
    """Handshake on a node. `vendor` is '' for NVIDIA.

    `zoned`: whether the time has a zone; otherwise UTC is assumed.
    """

    vendor: str
    said: HandshakeState
    at: datetime | None
    zoned: bool
    text: str


def handshakes(node: Node) -> tuple[Handshake, ...]:
    """Return the handshakes by vendor, NVIDIA's first."""
    found = []
    for key, text in node.meta.annotations.items():
        if match := _KEY.match(key):
            found.append(_read(match[1] or "", text))
    return tuple(sorted(found, key=lambda handshake: handshake.vendor))


def handshake(node: Node) -> Handshake | None:
    """Return the handshake of NVIDIA's plugin; None without one."""
    return next((one for one in handshakes(node) if not one.vendor), None)


def _read(vendor: str, text: str) -> Handshake:
    first, _, rest = text.replace("_", " ", 1).partition(" ")
    state = next(
        (each for each in HandshakeState if each.value and each.value == first),
        HandshakeState.OTHER,
    )
    at = epoch(text.strip())
    if at is not None:
        return Handshake(vendor, state, at, zoned=True, text=word(text))
    match = _AT.match(rest)
    at = _moment(match) if match else None
    return Handshake(vendor, state, at, match is not None and bool(match[7] or match[8]), word(text))


def _moment(match: re.Match[str]) -> datetime | None:
    year, month, day, hour, minute, second = (int(group) for group in match.groups()[:6])
    east = timedelta()
    if match[8]:
        east = timedelta(hours=int(match[9]), minutes=int(match[10])) * (1 if match[8] == "+" else -1)
    try:
        zone = timezone(east) if east else UTC
        return held(datetime(year, month, day, hour, minute, second, tzinfo=zone))
    except ValueError:
        return None
