"""Format a card that HAMi shares as one row of a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec import Struct

from diagnosis.hami.card_usage import CardUsage, Share
from diagnosis.hami.usage import MeasuredUse
from diagnosis.snapshot.hami_node import MIG_MODE

COLUMNS = ("Card", "Slots free", "Memory free", "Cores free", "Pods")
_MOST_PODS = 4
_UNSEEN = "?"


class CardRow(Struct, frozen=True):
    """One card in the allocation table: free slots, memory and cores, and its pods."""

    card: str
    slots: str
    memory: str
    cores: str
    pods: tuple[str, ...] = ()
    """Pods with their parts; the last entry may be the number of omitted pods."""
    usable: bool = True

    def __iter__(self) -> Iterator[str]:
        return iter((self.card, self.slots, self.memory, self.cores, ", ".join(self.pods)))


def card_row(usage: CardUsage, pods_seen: bool, used: Mapping[tuple[str, str], MeasuredUse] | None = None) -> CardRow:
    """Return the row of a card. `used`: by pod and card, if Prometheus was queried."""
    card, free = usage.card, usage.free
    state = [
        *(["unhealthy"] if not usage.usable else []),
        *(["cordoned by the agent" if usage.cordoned_by_agent else "cordoned"] if usage.cordoned else []),
        *(["MIG"] if card.mode == MIG_MODE else []),
    ]
    name = f"{card.index} {card.uuid}" + (f" ({', '.join(state)})" if state else "")
    slots, memory, cores = (
        f"{left if pods_seen else _UNSEEN} of {total}{unit}"
        for left, total, unit in (
            (free.slots, card.slots, ""),
            (free.memory, card.memory, " MiB"),
            (free.cores, card.cores, " %"),
        )
    )
    return CardRow(name, slots, memory, cores, tuple(_pods(usage, used or {})), usage.usable and not usage.cordoned)


def part_text(part: Share) -> str:
    """Format a part as `4096 MiB, 30 %`."""
    cores = f", {part.cores} %" if part.cores else ""
    places = f", {part.slots} slots" if part.slots > 1 else ""
    return f"{part.memory} MiB{cores}{places}"


def _pods(usage: CardUsage, used: Mapping[tuple[str, str], MeasuredUse]) -> Iterator[str]:
    for pod, part in islice(usage.pods, _MOST_PODS):
        use = used.get((pod, usage.card.uuid))
        in_use = f"; {use} in use" if use is not None else ""
        yield f"{pod.partition('/')[2]} ({part_text(part)}{in_use})"
    if len(usage.pods) > _MOST_PODS:
        yield f"{len(usage.pods) - _MOST_PODS} more"
