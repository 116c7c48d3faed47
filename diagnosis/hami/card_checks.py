"""Apply HAMi's checks of one card for one container, in HAMi's order. Pure.

The first check that fails determines the reported code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from diagnosis.hami import mig
from diagnosis.hami.card_requests import CardRequest
from diagnosis.hami.card_usage import CardUsage, Share
from diagnosis.hami.quota import QuotaAmounts
from diagnosis.hami.reasons import Code
from diagnosis.hami.versions import NEWEST, Version
from diagnosis.snapshot.hami_node import MIG_MODE
from diagnosis.snapshot.hami_pod import CardOptions

_2_10: Version = (2, 10)
_TOPOLOGY_SINCE: Version = (2, 7)
_WHOLE = 100
_NO_LIMIT = QuotaAmounts()


class PodConditions(Struct, frozen=True):
    """Conditions of a pod's check that do not depend on a container's request.

    `given`: the parts that its containers have been given so far, by card. `init_peak`: the maximum of each card that
    its init containers had.
    """

    card_options: CardOptions = field(default_factory=CardOptions)
    room: QuotaAmounts = field(default_factory=QuotaAmounts)
    version: Version = NEWEST
    init_peak: tuple[tuple[str, Share], ...] = ()
    given: tuple[tuple[str, Share], ...] = ()

    @property
    def by_topology(self) -> bool:
        return self.card_options.gpu_policy == "topology-aware" and self.version >= _TOPOLOGY_SINCE

    @property
    def alone(self) -> bool:
        """Whether the pod requires cards that no other pod shares."""
        policies = (self.card_options.gpu_policy or "").split(",")
        return self.version >= _2_10 and "mutex" in (policy.strip() for policy in policies)

    def after(self, init: bool, parts: Iterable[tuple[str, Share]]) -> PodConditions:
        """Return the conditions after a container got these parts."""
        if not init:
            return replace(self, given=(*self.given, *parts))
        peak = dict(self.init_peak)
        for uuid, part in summed(parts).items():
            peak[uuid] = peak.get(uuid, Share()).at_least(part)
        return replace(self, init_peak=tuple(peak.items()))


def refusal(
    state: CardUsage, asked: CardRequest, terms: PodConditions, taken: Sequence[CardUsage]
) -> Iterator[Code | None]:
    """Yield a code, or None, for each check in order.

    NUMA is yielded for a pod bound to one NUMA node, whose search may have to start again.
    """
    options_es, card = terms.card_options, state.card
    yield None if state.usable else Code.UNHEALTHY
    yield Code.CORDONED if state.cordoned and terms.version >= _2_10 else None
    yield None if _takes_type(card.kind, card.mode, options_es, terms.version) else Code.TYPE
    yield Code.NUMA if options_es.numa_bind else None
    yield None if _takes_uuid(card.uuid, options_es, terms.version) else Code.UUID
    yield Code.SLOTS if card.slots <= state.part.slots else None
    yield Code.EXCLUSIVE if terms.alone and state.part.slots > 0 else None
    memory = asked.memory_of(card.memory)
    yield None if _within_quota(state, asked, terms, taken) else Code.QUOTA
    yield Code.MEMORY if card.memory - state.part.memory < memory else None
    yield Code.CORES if card.cores - state.part.cores < asked.cores else None
    yield Code.EXCLUSIVE if card.cores == asked.cores == _WHOLE and state.part.slots > 0 else None
    yield Code.COMPUTE if card.cores and state.part.cores == card.cores and not asked.cores else None
    yield _instance(state, asked, memory, terms, taken) if card.mode == MIG_MODE else None


def summed(parts: Iterable[tuple[str, Share]]) -> dict[str, Share]:
    found: defaultdict[str, Share] = defaultdict(Share)
    for uuid, part in parts:
        found[uuid] = found[uuid].plus(part)
    return dict(found)


def _takes_type(kind: str, mode: str, options_es: CardOptions, version: Version) -> bool:
    if options_es.mode is not None and mode not in options_es.mode:
        return False
    use, avoid = options_es.use_types, options_es.avoid_types
    if version >= _2_10:
        # Before 2.10, blanks counted, and an empty name was part of any type.
        use, avoid = _without_blanks(use), _without_blanks(avoid)
    kind = kind.upper()
    if use is not None and not any(text.upper() in kind for text in use):
        return False
    return avoid is None or not any(text.upper() in kind for text in avoid)


def _takes_uuid(uuid: str, options_es: CardOptions, version: Version) -> bool:
    if version < _2_10:
        # Before 2.10, the list of cards to use was checked first, including blanks. The list to avoid applied only
        # without it.
        if options_es.use_uuids is not None:
            return uuid in options_es.use_uuids
        return uuid not in (options_es.avoid_uuids or ())
    use, avoid = _without_blanks(options_es.use_uuids), _without_blanks(options_es.avoid_uuids)
    return (use is None or uuid in use) and (avoid is None or uuid not in avoid)


def _without_blanks(listed: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the list without blanks; None if its text is blank. A lone comma is an empty list."""
    if listed is None or not ",".join(listed).strip():
        return None
    return tuple(text.strip() for text in listed if text.strip())


def _within_quota(state: CardUsage, asked: CardRequest, terms: PodConditions, taken: Sequence[CardUsage]) -> bool:
    """Whether the quota allows everything that the pod would have with this card."""
    if terms.room == _NO_LIMIT:
        return True
    now = ((usage.card.uuid, Share(1, asked.memory_of(usage.card.memory), asked.cores)) for usage in (*taken, state))
    cards = summed((*terms.given, *now))
    for uuid, part in terms.init_peak:
        cards[uuid] = cards.get(uuid, Share()).at_least(part)
    total = Share()
    for part in cards.values():
        total = total.plus(part)
    return terms.room.takes(total)


def _instance(
    state: CardUsage, asked: CardRequest, memory: int, terms: PodConditions, taken: Sequence[CardUsage]
) -> Code | None:
    if terms.version >= _2_10:
        mine = [memory for usage in taken if usage.card.uuid == state.card.uuid]
        return None if mig.has_room(state, memory, mine) else Code.MIG
    # Up to 2.9 memory in percent counted for nothing here, and cards of another UUID counted too.
    others = [asked.memory_of(usage.card.memory) for usage in taken]
    return None if mig.has_room(state, max(asked.memory, 0), others) else Code.CUSTOM
