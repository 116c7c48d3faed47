"""Compare a pod's request with the cards of a node, by the rules of HAMi 2.10. Pure.

This is not HAMi's filter: each card has the first code that applies to it, and a card in MIG mode is compared with its
largest profile, without the placement of instances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.facts.quantity import amount
from gpu_healthcheck.diagnosis.hami.cards import CardUsage, Share, cards_of
from gpu_healthcheck.diagnosis.hami.installation import Installation, unregistered
from gpu_healthcheck.diagnosis.hami.quota import QuotaAmounts, quota_left
from gpu_healthcheck.diagnosis.hami.settings import HamiSettings
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.hami_node import MIG_MODE
from gpu_healthcheck.diagnosis.snapshot.hami_pod import CardOptions
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Container, Pod

UNREGISTERED = "node unregistered"
_VENDOR = "nvidia"
_LARGEST_INT32 = (1 << 31) - 1
_WHOLE = 100


class Code(Enum):
    """Reason code of a card or node. The value is HAMi's own word."""

    NO_SUCH_NUMBER = "NodeInsufficientDevice"
    UNHEALTHY = "CardNotHealth"
    CORDONED = "CardCordoned"
    TYPE = "CardTypeMismatch"
    UUID = "CardUuidMismatch"
    SLOTS = "CardTimeSlicingExhausted"
    QUOTA = "ResourceQuotaNotFit"
    MEMORY = "CardInsufficientMemory"
    CORES = "CardInsufficientCore"
    EXCLUSIVE = "ExclusiveDeviceAllocateConflict"
    COMPUTE = "CardComputeUnitsExhausted"
    MIG = "CardMigTopologyInfeasible"
    NUMA = "NumaNotFit"
    TOO_FEW = "AllocatedCardsInsufficientRequest"


_UNITS = {Code.MEMORY: "MiB", Code.MIG: "MiB", Code.CORES: "% of cores", Code.SLOTS: "slots"}


class CardRequest(Struct, frozen=True):
    """Request for a number of cards with the same share of each.

    `percentage` applies if `memory`, in MiB, is 0. If `percentage` is None, only `memory` counts, even if it is 0.
    """

    cards: int
    memory: int
    percentage: int | None
    cores: int

    def memory_of(self, card_memory: int) -> int:
        """Return the requested memory in MiB, for a card with this total."""
        if self.memory or self.percentage is None:
            return self.memory
        return card_memory * self.percentage // 100

    def share_of(self, usage: CardUsage) -> Share:
        return Share(1, self.memory_of(usage.card.memory), self.cores)


class CardVerdict(Struct, frozen=True):
    """Verdict on one card: the codes that apply to it; none if it fits.

    `requested` and `free` have the unit of the first code: MiB, percent or slots.
    """

    uuid: str
    codes: tuple[Code, ...] = ()
    requested: int = 0
    free: int = 0

    @property
    def code(self) -> Code | None:
        return self.codes[0] if self.codes else None

    def __str__(self) -> str:
        """Format as `CardInsufficientMemory: 40000 MiB requested, 24576 free`."""
        if self.code is None:
            return "fits"
        unit = _UNITS.get(self.code)
        return self.code.value + (f": {self.requested} {unit} requested, {self.free} free" if unit else "")


class NodeVerdict(Struct, frozen=True):
    """Verdict on one node for one pod. `reason` is in the form of HAMi's own; '' if the pod fits.

    If the pod does not fit, `container` names the first container without cards, and `cards` are judged for that
    container. Otherwise they are judged for the last container that requests cards. `code`: why the cards that fit are
    not enough together; None if single cards are the reason. `by_mig`: whether it fits only if HAMi finds a place for a
    MIG instance, which is not judged.
    """

    reason: str = ""
    container: str = ""
    cards: tuple[CardVerdict, ...] = ()
    code: Code | None = None
    by_mig: bool = False

    @property
    def fits(self) -> bool:
        return not self.reason


def request_of(container: Container, settings: HamiSettings) -> CardRequest | None:
    """Return the request; None if the container requests no card from HAMi's scheduler.

    A request needs a number of cards.
    """
    cards = _number(container, settings.count_name)
    units = _number(container, settings.memory_name) if _names(container, settings.memory_name) else 0
    if cards is None or not 0 < cards <= _LARGEST_INT32:
        return None
    if units is None or not 0 <= units <= _LARGEST_INT32 // settings.memory_factor:
        return None
    memory, percentage = units * settings.memory_factor, _number(container, settings.percentage_name)
    percentage = min(percentage, 100) if percentage is not None and percentage > 0 else None
    if percentage is None and not memory:
        memory, percentage = (settings.default_memory, None) if settings.default_memory else (0, 100)
    cores = _number(container, settings.cores_name)
    return CardRequest(cards, memory, percentage, min(settings.default_cores if cores is None else cores, 100))


def admitted(container: Container, settings: HamiSettings) -> Container:
    """Return the container as HAMi's webhook changes it.

    A request for parts only gets a number of cards, and a request for a whole card becomes exclusive.
    """
    limits = dict(container.limits)
    parts = (settings.cores_name, settings.memory_name, settings.percentage_name)
    if settings.count_name not in limits and settings.default_cards > 0 and any(part in limits for part in parts):
        limits[settings.count_name] = str(settings.default_cards)
    container = replace(container, limits=limits)
    if _wants_whole_card(container, settings):
        limits[settings.cores_name] = "100"
    return container


def _wants_whole_card(container: Container, settings: HamiSettings) -> bool:
    if not _names(container, settings.count_name) or _names(container, settings.cores_name):
        return False
    if _names(container, settings.percentage_name):
        return _number(container, settings.percentage_name) == 100
    return not _names(container, settings.memory_name)


def _names(container: Container, resource: str) -> bool:
    return bool(resource) and (resource in container.limits or resource in container.requests)


def _number(container: Container, resource: str) -> int | None:
    """Return the number; None if it is absent or not a whole number."""
    quantity = container.limits.get(resource) or container.requests.get(resource) or ""
    value = amount(quantity) if resource else None
    return int(value) if value is not None and value == value.to_integral_value() else None


class PodConditions(Struct, frozen=True):
    """Conditions of a pod for its cards. `share`: of its previous containers, all cards together."""

    options: CardOptions = field(default_factory=CardOptions)
    quota: QuotaAmounts = field(default_factory=QuotaAmounts)
    share: Share = Share()


def verdicts(snapshot: Snapshot, installation: Installation, pod: Pod) -> Iterator[tuple[Node, NodeVerdict]]:
    """Yield the verdict on each node.

    Taints, CPU and the like belong to the other scheduler. The pod is judged as it is: changes that the webhook did not
    make are not assumed.
    """
    settings = installation.settings
    policy = (
        installation.command_line.gpu_policy if pod.card_options.gpu_policy is None else pod.card_options.gpu_policy
    )
    quota = quota_left(snapshot, pod.meta.namespace, settings)
    conditions = PodConditions(replace(pod.card_options, gpu_policy=policy), quota)
    requests = [(container, request_of(container, settings)) for container in pod.spec.containers]
    cards = cards_of(snapshot)
    for node in snapshot.nodes:
        if unregistered(snapshot, installation, node):
            yield node, NodeVerdict(UNREGISTERED)
        else:
            yield node, fit(cards[node.name], requests, conditions)


def fit(
    cards: Iterable[CardUsage], requests: Iterable[tuple[Container, CardRequest | None]], conditions: PodConditions
) -> NodeVerdict:
    """Return the node's verdict. Each container gets the cards as left by the previous ones."""
    usages = {usage.card.uuid: usage for usage in cards if _VENDOR in usage.card.model.lower()}
    verdict = NodeVerdict()
    for container, request in requests:
        if request is None:
            continue
        by_mig = verdict.by_mig
        verdict, chosen = _fit_container(tuple(usages.values()), container.name, request, conditions)
        if not verdict.fits:
            return verdict
        verdict = replace(verdict, by_mig=by_mig or verdict.by_mig)
        # Init containers have ended when the others start, so these get the cards unchanged.
        for usage in chosen if not container.init else ():
            share = request.share_of(usage)
            usages[usage.card.uuid] = replace(usage, part=usage.part.plus(share))
            conditions = replace(conditions, share=conditions.share.plus(share))
    return verdict


def _fit_container(
    usages: Sequence[CardUsage], name: str, request: CardRequest, conditions: PodConditions
) -> tuple[NodeVerdict, Sequence[CardUsage]]:
    """Return the verdict and the chosen cards."""
    cards = tuple(_card_verdict(usage, request, conditions) for usage in usages)
    fitting = [usage for usage, verdict in zip(usages, cards, strict=True) if verdict.code is None]
    chosen = _choose(fitting, request.cards, conditions.options)
    # Several instances of one card in MIG mode count as several cards.
    if len(chosen) == request.cards or any(usage.card.mode == MIG_MODE for usage in fitting):
        return NodeVerdict("", name, cards, by_mig=any(usage.card.mode == MIG_MODE for usage in chosen)), chosen
    if request.cards > len(usages):
        return NodeVerdict(_reason({Code.NO_SUCH_NUMBER: 1}, len(usages)), name, cards, Code.NO_SUCH_NUMBER), ()
    codes = Counter(verdict.code for verdict in cards if verdict.code is not None)
    code = None
    if fitting:
        code = Code.NUMA if len(fitting) >= request.cards else Code.TOO_FEW
        codes[code] = len(fitting)
    return NodeVerdict(_reason(codes, len(usages)), name, cards, code), ()


def _choose(fitting: Iterable[CardUsage], number: int, options: CardOptions) -> Sequence[CardUsage]:
    """Return the cards that HAMi takes: the emptiest first, or with binpack the fullest; fewer if they are too few."""
    ranked = sorted(fitting, key=lambda usage: usage.free.memory, reverse=options.gpu_policy != "binpack")
    if options.numa_bind:
        by_numa = grouped((usage.card.numa, usage) for usage in ranked)
        ranked = max(by_numa.values(), key=len, default=[])
    return ranked[:number]


def _card_verdict(usage: CardUsage, request: CardRequest, conditions: PodConditions) -> CardVerdict:
    free, share = usage.free, request.share_of(usage)
    codes = tuple(_codes(usage, request, conditions))
    amounts = {
        Code.MEMORY: (share.memory, free.memory),
        Code.MIG: (share.memory, usage.card.largest_profile or 0),
        Code.CORES: (share.cores, free.cores),
        Code.SLOTS: (share.slots, free.slots),
    }
    return CardVerdict(usage.card.uuid, codes, *amounts.get(codes[0], ()) if codes else ())


def _codes(usage: CardUsage, request: CardRequest, conditions: PodConditions) -> Iterator[Code]:
    """Yield the codes that apply to the card."""
    card, free, share, options = usage.card, usage.free, request.share_of(usage), conditions.options
    alone = "mutex" in (options.gpu_policy or "").replace(" ", "").split(",") or card.cores == share.cores == _WHOLE
    all_cards = Share(0, request.cards * share.memory, request.cards * share.cores)
    if not usage.usable:
        yield Code.UNHEALTHY
    if not _takes_type(card.model, card.mode, options):
        yield Code.TYPE
    if card.uuid in options.avoid_uuids or (options.use_uuids and card.uuid not in options.use_uuids):
        yield Code.UUID
    if not free.slots:
        yield Code.SLOTS
    if not conditions.quota.takes(conditions.share.plus(all_cards)):
        yield Code.QUOTA
    if free.memory < share.memory:
        yield Code.MEMORY
    if free.cores < share.cores:
        yield Code.CORES
    if alone and usage.part.slots:
        yield Code.EXCLUSIVE
    if card.cores and not free.cores and not share.cores:
        yield Code.COMPUTE
    if card.mode == MIG_MODE and card.largest_profile is not None and card.largest_profile < share.memory:
        yield Code.MIG
    # Last, because versions before 2.10 ignore cordons.
    if usage.cordoned:
        yield Code.CORDONED


def _takes_type(model: str, mode: str, options: CardOptions) -> bool:
    model = model.upper()
    if options.mode is not None and mode not in options.mode:
        return False
    if any(part.upper() in model for part in options.avoid_types):
        return False
    return not options.use_types or any(part.upper() in model for part in options.use_types)


def _reason(codes: Mapping[Code, int], cards: int) -> str:
    """Format counts as HAMi does: `3/8 CardInsufficientMemory, 5/8 CardInsufficientCore`."""
    order = list(Code)
    return ", ".join(f"{codes[code]}/{cards} {code.value}" for code in sorted(codes, key=order.index))
