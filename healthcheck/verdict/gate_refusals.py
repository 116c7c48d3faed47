"""The Event GateRefused: pods that the gate refused on a node, by the reason of the finding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from healthcheck.model import counted

EVENT = "GateRefused"
_REFUSED = re.compile(r"the gate refused (\d{1,6}) pods? \(([A-Za-z0-9-]{1,64})\)", re.ASCII)


def refused_message(pods: int, reason: str, message: str) -> str:
    """Return the message of the Event. `message`: the answer to the last pod."""
    return f"the gate refused {counted(pods, 'pod')} ({reason}): {message}"


def refusals_in(messages: Iterable[str]) -> dict[str, int]:
    """Return the number of refused pods by reason, from the messages of one node's Events; others do not count."""
    pods: Counter[str] = Counter()
    for message in messages:
        if found := _REFUSED.match(message):
            pods[found[2]] += int(found[1])
    return dict(pods)
