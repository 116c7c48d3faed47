"""Order in which HAMi tries the cards of a node: by its policy, and one NUMA node at a time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from diagnosis.hami.card_checks import PodConditions
from diagnosis.hami.card_requests import CardRequest
from diagnosis.hami.card_usage import CardUsage
from diagnosis.hami.versions import Version

BINPACK = "binpack"
_SCORE_FIRST_SINCE: Version = (2, 10)
_WHOLE = 100


def in_order(states: Iterable[CardUsage], asked: CardRequest, terms: PodConditions) -> tuple[CardUsage, ...]:
    """Return the cards in order: binpack tries the fullest card first, spread, HAMi's default, the emptiest.

    HAMi's order of equal cards is random.
    """
    packs = terms.card_options.gpu_policy == BINPACK
    by_numa = terms.card_options.numa_bind or terms.version < _SCORE_FIRST_SINCE

    def rank(state: CardUsage) -> tuple[float, float]:
        full, numa = (-_score(state, asked), state.card.numa) if packs else (_score(state, asked), -state.card.numa)
        return (numa, full) if by_numa else (full, numa)

    return tuple(sorted(states, key=rank))


def _score(state: CardUsage, asked: CardRequest) -> float:
    card, part = state.card, state.part
    # HAMi compares whole hundreds of percent before MiB, only in this place.
    memory = card.memory * (asked.percentage // _WHOLE) if asked.percentage else asked.memory
    shares = (
        (asked.cards + part.slots, card.slots),
        (asked.cores + part.cores, card.cores),
        (memory + part.memory, card.memory),
    )
    return sum(held / total if total else math.inf for held, total in shares)
