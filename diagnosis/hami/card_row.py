"""A card that HAMi shares, as a person reads it: one row of a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec import Struct

from diagnosis.hami.holding import CardUsage, Share
from diagnosis.hami.registration import MIG_MODE
from diagnosis.hami.usage import MeasuredUse

COLUMNS = ("Card", "Places free", "Memory free", "Cores free", "By whom")
_MOST_PODS = 4
_UNSEEN = "?"


class CardRow(Struct, frozen=True):
    card: str
    slots: str
    memory: str
    cores: str
    pods: tuple[str, ...] = ()
    """Each with its part; the last may count those that are not named."""
    usable: bool = True

    def __iter__(self) -> Iterator[str]:
        return iter((self.card, self.slots, self.memory, self.cores, ", ".join(self.pods)))


def card_row(one: CardUsage, pods_seen: bool, used: Mapping[tuple[str, str], MeasuredUse] | None = None) -> CardRow:
    """`used`: by pod and card, where a Prometheus was asked."""
    card, free = one.card, one.free
    state = [
        *(["unhealthy"] if not one.usable else []),
        *(["cordoned"] if one.cordoned else []),
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
    return CardRow(name, slots, memory, cores, tuple(_pods(one, used or {})), one.usable and not one.cordoned)


def part_text(part: Share) -> str:
    """Format a part as `4096 MiB, 30 %`."""
    cores = f", {part.cores} %" if part.cores else ""
    places = f", {part.slots} places" if part.slots > 1 else ""
    return f"{part.memory} MiB{cores}{places}"


def _pods(one: CardUsage, used: Mapping[tuple[str, str], MeasuredUse]) -> Iterator[str]:
    for pod, part in islice(one.pods, _MOST_PODS):
        told = used.get((pod, one.card.uuid))
        in_use = f"; {told} in use" if told is not None else ""
        yield f"{pod.partition('/')[2]} ({part_text(part)}{in_use})"
    if len(one.pods) > _MOST_PODS:
        yield f"{len(one.pods) - _MOST_PODS} more"
