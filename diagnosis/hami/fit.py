"""Compute whether a node's cards fit a pod, and why each card does or does not. Pure.

This is HAMi's arithmetic, in HAMi's order. The order decides which code is reported for a card that fails two checks.
It is that of HAMi's own filter for NVIDIA.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from diagnosis.hami import mig
from diagnosis.hami.card_checks import PodConditions, refusal
from diagnosis.hami.card_requests import CardRequest
from diagnosis.hami.card_usage import CardUsage, Share
from diagnosis.hami.order import in_order
from diagnosis.hami.reasons import Code, reason_text
from diagnosis.hami.versions import Version
from diagnosis.snapshot.hami_node import MIG_MODE

_INITS_SINCE: Version = (2, 10)
_COUNTS_SINCE: Version = (2, 10)
"""First version with a correct number of fitting cards; before, it was always 1."""
_VENDOR = "nvidia"
_UNITS = {Code.MEMORY: "MiB", Code.MIG: "MiB", Code.CUSTOM: "MiB", Code.CORES: "% of cores", Code.SLOTS: "slots"}
_MOST_INSTANCES = 64
"""Maximum MIG instances on one card."""


class CardVerdict(Struct, frozen=True):
    """Verdict on one card. `code` is None if it fits.

    `asked` and `free` have the unit of the scarce amount: MiB, percent or slots.
    """

    uuid: str
    code: Code | None = None
    asked: int = 0
    free: int = 0

    def __str__(self) -> str:
        """Format as `CardInsufficientMemory: 40000 MiB requested, 24576 free`."""
        if self.code is None:
            return "fits"
        unit = _UNITS.get(self.code)
        return self.code.value + (f": {self.asked} {unit} requested, {self.free} free" if unit else "")


class NodeVerdict(Struct, frozen=True):
    """Verdict on one node for one pod. `reason` is the text of HAMi's scheduler; '' if the pod fits.

    If the pod does not fit, `container` names the first container without cards, and `cards` are judged for that
    container. Otherwise they are judged for the last container that requests cards. `chosen` holds, by container, the
    cards that HAMi's policy would select.
    """

    fits: bool
    reason: str = ""
    counts: Mapping[Code, int] = field(default_factory=dict)
    container: str = ""
    cards: tuple[CardVerdict, ...] = ()
    chosen: tuple[tuple[str, ...], ...] = ()


class ContainerRequest(Struct, frozen=True):
    """Container by name, with its request; None if it requests no card."""

    name: str
    asked: CardRequest | None
    init: bool = False


class _CardSearch(Struct):
    """State of the search over a node's cards for one container."""

    left: int
    taken: list[CardUsage] = field(default_factory=list)
    counts: Counter[Code] = field(default_factory=Counter)
    verdicts: dict[str, CardVerdict] = field(default_factory=dict)
    numa: int = -1
    """NUMA node of the search. -1 is HAMi's first value, and NVML's value for an unknown NUMA node."""


def fit(held: Sequence[CardUsage], wanted: Iterable[ContainerRequest], terms: PodConditions) -> NodeVerdict:
    """Return the node's verdict. Each container gets the cards as left by the previous ones."""
    states = {usage.card.uuid: usage for usage in held if _VENDOR in usage.card.kind.lower()}
    verdict = NodeVerdict(fits=True)
    chosen: list[tuple[str, ...]] = []
    for request in wanted:
        if request.init and terms.version < _INITS_SINCE:
            continue
        if request.asked is None:
            chosen.append(())
            continue
        verdict, taken = _fit_one(list(states.values()), request, request.asked, terms)
        if not verdict.fits:
            return replace(verdict, chosen=())
        chosen.append(tuple(taken))
        # Init containers have ended when the others start, so these get the cards unchanged.
        if not request.init:
            _take(states, taken, request.asked)
        terms = terms.after(request.init, _parts(held, taken, request.asked))
    return replace(verdict, chosen=tuple(chosen))


def _fit_one(
    states: Sequence[CardUsage], request: ContainerRequest, asked: CardRequest, terms: PodConditions
) -> tuple[NodeVerdict, tuple[str, ...]]:
    walk = _CardSearch(asked.cards)
    too_many = asked.cards > len(states) and not _for_instances(states, terms)
    done = not too_many and _walked(walk, in_order(states, asked, terms), asked, terms)
    # HAMi stops when it has enough cards; the verdicts on the remaining cards are included too.
    cards = tuple(walk.verdicts.get(state.card.uuid) or _alone(state, asked, terms) for state in states)
    if too_many:
        code = Code.NO_SUCH_NUMBER
        reason = reason_text({code: 1}, len(states)) if terms.version >= _COUNTS_SINCE else code.value
        return NodeVerdict(False, reason, {code: 1}, request.name, cards), ()
    if done:
        return NodeVerdict(True, "", {}, request.name, cards), tuple(
            state.card.uuid for state in walk.taken[: asked.cards]
        )
    if walk.taken:
        walk.counts[Code.TOO_FEW] = len(walk.taken) if terms.version >= _COUNTS_SINCE else 1
    return NodeVerdict(False, reason_text(walk.counts, len(states)), dict(walk.counts), request.name, cards), ()


def _walked(walk: _CardSearch, order: Iterable[CardUsage], asked: CardRequest, terms: PodConditions) -> bool:
    """Whether the walk found enough cards."""
    for state in order:
        for _ in range(_MOST_INSTANCES if state.card.mode == MIG_MODE else 1):
            if not _takes(walk, state, asked, terms):
                break
            walk.taken.append(state)
            walk.left -= not terms.by_topology
            if walk.left == 0:
                return True
    return terms.by_topology and len(walk.taken) >= asked.cards


def _takes(walk: _CardSearch, state: CardUsage, asked: CardRequest, terms: PodConditions) -> bool:
    for refused in refusal(state, asked, terms, walk.taken):
        if refused is Code.NUMA:
            # This is not a refusal: the search starts again with another NUMA node.
            _begin_on(walk, state, asked, terms)
        elif refused is not None:
            walk.counts[refused] += 1
            walk.verdicts.setdefault(state.card.uuid, _verdict(state, asked, refused))
            return False
    walk.verdicts.setdefault(state.card.uuid, CardVerdict(state.card.uuid))
    return True


def _begin_on(walk: _CardSearch, state: CardUsage, asked: CardRequest, terms: PodConditions) -> None:
    if state.card.numa == walk.numa:
        return
    if walk.left != asked.cards:
        walk.counts[Code.NUMA] += len(walk.taken) if terms.version >= _COUNTS_SINCE else bool(walk.taken)
        for usage in walk.taken:
            walk.verdicts[usage.card.uuid] = CardVerdict(usage.card.uuid, Code.NUMA)
    walk.left, walk.numa = asked.cards, state.card.numa
    walk.taken.clear()


def _alone(state: CardUsage, asked: CardRequest, terms: PodConditions) -> CardVerdict:
    codes = (text for text in refusal(state, asked, terms, ()) if text is not None and text is not Code.NUMA)
    code = next(codes, None)
    return CardVerdict(state.card.uuid) if code is None else _verdict(state, asked, code)


def _verdict(state: CardUsage, asked: CardRequest, code: Code) -> CardVerdict:
    uuid, free = state.card.uuid, state.free
    match code:
        case Code.MEMORY | Code.MIG | Code.CUSTOM:
            return CardVerdict(uuid, code, asked.memory_of(state.card.memory), free.memory)
        case Code.CORES:
            return CardVerdict(uuid, code, asked.cores, free.cores)
        case Code.SLOTS:
            return CardVerdict(uuid, code, 1, free.slots)
    return CardVerdict(uuid, code)


def _for_instances(states: Iterable[CardUsage], terms: PodConditions) -> bool:
    """Whether several instances of one card count as several cards, as HAMi does from 2.10."""
    mode = terms.card_options.mode
    if terms.version < _COUNTS_SINCE or (mode is not None and MIG_MODE not in mode):
        return False
    return any(state.card.mode == MIG_MODE for state in states)


def _take(states: dict[str, CardUsage], taken: Iterable[str], asked: CardRequest) -> None:
    for uuid in taken:
        state = states[uuid]
        memory = asked.memory_of(state.card.memory)
        made = mig.with_instance(state, memory) if state.card.mode == MIG_MODE else None
        states[uuid] = made or replace(state, part=state.part.plus(Share(1, memory, asked.cores)))


def _parts(held: Iterable[CardUsage], taken: Iterable[str], asked: CardRequest) -> Iterator[tuple[str, Share]]:
    totals = {usage.card.uuid: usage.card.memory for usage in held}
    return ((uuid, Share(1, asked.memory_of(totals[uuid]), asked.cores)) for uuid in taken)
