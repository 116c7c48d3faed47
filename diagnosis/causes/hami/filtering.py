"""Find pods that HAMi's filter refuses on every node.

Its arithmetic is repeated card by card, and compared with its messages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.causes.hami.hami_causes import QUOTA, codes
from diagnosis.causes.hami.hami_nodes import CARD_UNHEALTHY, why_unknown
from diagnosis.causes.unscheduled.refused import closed_by
from diagnosis.causes.unscheduled.waiting import Waiting, unschedulable
from diagnosis.causes.verdicts import release_of
from diagnosis.facts.commands import command, explain, kubectl
from diagnosis.facts.fit_error import ReasonSubject
from diagnosis.facts.gpu_nodes import has_nvidia
from diagnosis.facts.placement import selects
from diagnosis.facts.quantity import counted
from diagnosis.hami.card_requests import CardRequest, asked_of
from diagnosis.hami.card_row import part_text
from diagnosis.hami.card_usage import CardUsage
from diagnosis.hami.fit import CardVerdict, NodeVerdict
from diagnosis.hami.installation import Installation, installation_of, installations, is_there
from diagnosis.hami.quota import given_of, kept_quotas
from diagnosis.hami.reasons import UNREGISTERED, Code
from diagnosis.hami.scheduler_state import SchedulerState, books_of, cards_of, unregistered, verdicts
from diagnosis.model import Cause, CauseSeverity, Certainty, Family, FoundCause, Link, Search
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.hami_pod import AVOID_TYPE, AVOID_UUID, MODE, NUMA_BIND, USE_TYPE, USE_UUID
from diagnosis.snapshot.nodes import Node
from healthcheck.node.hami import CORDON
from healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED)
NODES_UNREGISTERED = _scheduled(
    "HamiKnowsNoNode",
    "HAMi's scheduler knows no node with cards for the pod: it reports `node unregistered` for all of them.",
    "Run HAMi's device plugin on the nodes, and check that it writes their registration.",
    source="`node unregistered`, `node usage unavailable` in FailedScheduling",
)
MEMORY = _scheduled(
    "HamiCardMemoryShort",
    "No card has as much free memory as the pod requests of each card.",
    "Request less nvidia.com/gpumem, free a card, or use nodes with larger cards.",
    codes("CardInsufficientMemory"),
    source="CardInsufficientMemory",
)
CORES = _scheduled(
    "HamiCardCoresShort",
    "No card has as many free cores (in percent) as the pod requests of each card.",
    "Request fewer nvidia.com/gpucores, or free a card.",
    codes("CardInsufficientCore", "CardComputeUnitsExhausted"),
    source="CardInsufficientCore, CardComputeUnitsExhausted",
)
SLOTS = _scheduled(
    "HamiCardSlotsTaken",
    "The cards are already shared by the maximum number of pods.",
    "Delete pods on the cards, or raise deviceSplitCount.",
    codes("CardTimeSlicingExhausted"),
    source="CardTimeSlicingExhausted",
)
EXCLUSIVE = _scheduled(
    "HamiExclusiveConflict",
    "The pod needs unshared cards, and all are in use, or another pod uses a card exclusively.",
    "Wait for a whole card; or request nvidia.com/gpumem: without it a pod gets 100 gpucores, an unshared card.",
    codes("ExclusiveDeviceAllocateConflict"),
    source="ExclusiveDeviceAllocateConflict; since 2.7 the webhook writes gpucores=100 if no memory is requested",
)
TOO_FEW_CARDS = _scheduled(
    "HamiTooFewCards",
    "The pod requests more cards than one node has, or has with enough free: nvidia.com/gpu counts cards of one node.",
    "Request fewer cards in each container.",
    codes("NodeInsufficientDevice", "AllocatedCardsInsufficientRequest"),
    source="NodeInsufficientDevice, AllocatedCardsInsufficientRequest",
)
CONSTRAINED = _scheduled(
    "HamiConstraintMatchesNoCard",
    "The pod's annotations require a card type, UUID or mode that no card has.",
    "Correct the annotation: the types and UUIDs are those of hami.io/node-nvidia-register.",
    codes("CardTypeMismatch", "CardUuidMismatch", "ModeNotFit", "CardQosPolicyMismatch", "CardAppClassMismatch"),
    source="CardTypeMismatch, CardUuidMismatch, ModeNotFit",
)
CORDONED = _scheduled(
    "HamiCardCordoned",
    "Suitable cards are cordoned: they are listed in hami.io/device-cordon, by a person or by the node's agent.",
    "Remove them from the annotation when they are healthy. The agent removes its own when its finding ends.",
    codes("CardCordoned"),
    severity=CauseSeverity.MEDIUM,
    source="CardCordoned, since 2.10",
)
NUMA = _scheduled(
    "HamiNumaNotFit",
    "The pod requires all its cards on one NUMA node, and no NUMA node has enough free cards.",
    "Remove nvidia.com/numa-bind, or request fewer cards.",
    codes("NumaNotFit"),
    source="NumaNotFit",
)
MIG = _scheduled(
    "HamiMigNotFit",
    "No MIG profile of the cards is large enough for the pod's request.",
    "Request the size of a profile, or free a whole card.",
    codes("CardNotFoundCustomFilterRule", "CardMigTopologyInfeasible"),
    source="CardMigTopologyInfeasible, CardNotFoundCustomFilterRule",
)
UNFIT = _scheduled(
    "HamiNodeUnfit",
    "HAMi finds no card for the pod and does not log the reason at the current log level.",
    "Set the extender's log level to -v=5, and read its lines about this pod.",
    source="NodeUnfitPod; `node not fit pod` in 2.5",
)


_REFUSALS = (TOO_FEW_CARDS, CARD_UNHEALTHY, CORDONED, CONSTRAINED, NUMA, SLOTS, QUOTA, MEMORY, CORES, EXCLUSIVE, MIG)
_CAUSES = {code: cause for cause in _REFUSALS for text in cause.texts for code in text.pattern.split("|")}
WORD = re.compile(rf"\b({'|'.join(_CAUSES)})\b", re.ASCII)
_UNKNOWN = re.compile(r"node unregistered|node usage unavailable", re.ASCII)
_NOT_ITS_KIND = (Code.TYPE, Code.UUID)
_CARD_OPTIONS = (USE_TYPE, AVOID_TYPE, USE_UUID, AVOID_UUID, MODE)
_ESCAPED = CORDON.replace(".", "\\.")
_FEWEST_JUDGED, _MOST_WALKED = 4, 100_000
"""Above this number of requests, only HAMi's own messages are reported."""
_LOOKS_AGAIN = timedelta(minutes=10)
_MOST_NODES, _MOST_CARDS, _MOST_PODS, _MOST_TEXT = 4, 8, 3, 300


class _Judged(Struct, frozen=True):
    """Pods of a workload with the verdict for every node that they could use, HAMi aside.

    `words`: the messages of HAMi itself.
    """

    waiting: Waiting
    installation: Installation
    books: SchedulerState
    nodes: tuple[tuple[Node, NodeVerdict], ...]
    words: tuple[str, ...]

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the codes that HAMi's messages name, the latest first."""
        return tuple(dict.fromkeys(entry for text in self.words for entry in WORD.findall(text)))

    @property
    def known(self) -> list[tuple[Node, NodeVerdict]]:
        return [pair for pair in self.nodes if pair[1].reason != UNREGISTERED]

    @property
    def unknown(self) -> list[Node]:
        return [node for node, verdict in self.nodes if verdict.reason == UNREGISTERED]

    def held(self, node: Node) -> Mapping[str, CardUsage]:
        return {card.card.uuid: card for card in self.books.cards.get(node.name, ())}

    def asked(self, name: str) -> CardRequest | None:
        """Return the request of the named container; for '', of the first container that requests a card."""
        for container in self.waiting.spec.containers:
            asked = asked_of(container, self.books.settings, self.books.version)
            if asked is not None and name in ("", container.name):
                return asked
        return None


def find_refused(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield one result for each refused workload, with every card.

    Each workload is judged by the books of the HAMi installation that it uses.
    """
    refused = [one for one in unschedulable(snapshot) if one.hami and (_words(snapshot, one) or _is_silent(one))]
    books = {each.subject: books_of(snapshot, each) for each in installations(snapshot)}
    judged: dict[object, tuple[tuple[Node, NodeVerdict], ...]] = {}
    for waiting in refused:
        own = installation_of(snapshot, waiting.pods[0])
        if own is None:
            return
        key = own.subject, _request(waiting)
        if key not in judged and len(judged) < _most_judged(snapshot):
            judged[key] = tuple(_nodes(snapshot, books[own.subject], waiting))
        known = _Judged(waiting, own, books[own.subject], judged.get(key, ()), _words(snapshot, waiting))
        yield from _found(snapshot, known) if key in judged else _by_words(snapshot, known, ())


def _most_judged(snapshot: Snapshot) -> int:
    """Return how many different requests are compared with all cards, for a runtime of a few seconds."""
    return max(_FEWEST_JUDGED, _MOST_WALKED // max(sum(map(len, cards_of(snapshot).values())), 1))


def _request(waiting: Waiting) -> tuple[str, str, str]:
    """Return a key for pods that HAMi's filter judges alike, so that all cards are checked once for them."""
    pod = waiting.pods[0]
    return (
        pod.meta.namespace,
        waiting.shape,
        repr((pod.card_options, [container.limits for container in pod.spec.containers])),
    )


def _words(snapshot: Snapshot, waiting: Waiting) -> tuple[str, ...]:
    """Return HAMi's messages: those that kube-scheduler reports for HAMi, then HAMi's own events."""
    messages = [reason.text for reason in waiting.reasons(ReasonSubject.HAMI)]
    last: dict[str, str] = {}
    for pod in waiting.pods:
        for event in snapshot.events_of(pod):
            if event.reason == "FilteringSucceed":
                last.clear()
            elif event.reason == "FilteringFailed":
                last[event.message] = event.message
    return tuple(dict.fromkeys((*messages, *reversed(last.values()))))


def _is_silent(waiting: Waiting) -> bool:
    """Whether HAMi gives no reason: versions up to 2.4 report the number of nodes alone."""
    return waiting.fit is not None and not waiting.fit.reasons and bool(waiting.fit.nodes)


def _nodes(snapshot: Snapshot, books: SchedulerState, waiting: Waiting) -> Iterator[tuple[Node, NodeVerdict]]:
    pod = waiting.pods[0]
    for node, verdict in verdicts(snapshot, books, pod):
        concerned = node.hami.shared or has_nvidia(node)
        if concerned and selects(pod.spec, node) and not closed_by(pod.spec, node):
            yield node, verdict


def _found(snapshot: Snapshot, judged_node: _Judged) -> Iterator[FoundCause]:
    ours = judged_node.asked("") is not None
    fitting = [node for node, verdict in judged_node.known if verdict.fits] if ours else []
    if not judged_node.nodes and any(node.hami.shared for node in snapshot.nodes):
        return  # other searches report why the pod can't use them
    if not ours or fitting or not judged_node.nodes:
        yield from _by_words(snapshot, judged_node, fitting)
    elif not judged_node.known:
        messages = tuple(
            f"{node.subject}: {unregistered(node, judged_node.books)}" for node in judged_node.unknown[:_MOST_NODES]
        )
        because = why_unknown(snapshot, judged_node.unknown)
        words = tuple(_of_hami(judged_node))
        yield judged_node.waiting.found(NODES_UNREGISTERED, *messages, *words, because_of=because)
    else:
        yield from _by_cards(snapshot, judged_node)


def _by_words(snapshot: Snapshot, judged_node: _Judged, fitting: Sequence[Node]) -> Iterator[FoundCause]:
    """Yield a result from HAMi's messages if the arithmetic finds no reason.

    Examples: other vendors' cards, nodes that are not visible, capacity that has become free since.
    """
    made = [pod.meta.created for pod in judged_node.waiting.pods if pod.meta.created is not None]
    messages = judged_node.codes or _disowns(snapshot, judged_node)
    if fitting and (not messages or (made and snapshot.now - max(made) < _LOOKS_AGAIN)):
        return
    evidence = list(_of_hami(judged_node))
    if fitting:
        names = ", ".join(node.subject for node in fitting[:_MOST_NODES])
        evidence.append(
            f"by the registrations and allocations, {names} would fit: HAMi's own state differs, or HAMi has "
            "not retried since"
        )
        ended = [pod.subject for pod in snapshot.pods if pod.over and pod.grant is not None and pod.grant.node]
        if ended:
            evidence.append(f"ended pods that keep their annotations: {', '.join(ended[:_MOST_PODS])}")
    cause = next((_CAUSES[word] for word in judged_node.codes), None)
    if cause is None and any(_UNKNOWN.search(text) for text in judged_node.words):
        cause = NODES_UNREGISTERED
    because = why_unknown(snapshot, (*judged_node.unknown, *fitting)) if cause is NODES_UNREGISTERED else ()
    remedy = () if cause is not None else _louder(judged_node.installation)
    yield judged_node.waiting.found(
        cause or UNFIT, *evidence, remedy=remedy, certainty=Certainty.LIKELY, because_of=because
    )


def _disowns(snapshot: Snapshot, judged_node: _Judged) -> bool:
    """Whether more nodes are unknown to HAMi than lack a registration."""
    reasons, spec = judged_node.waiting.reasons(ReasonSubject.HAMI), judged_node.waiting.spec
    asked = [node for node in snapshot.nodes if selects(spec, node) and not closed_by(spec, node)]
    unknown = sum(bool(unregistered(node, judged_node.books)) for node in asked)
    return sum(each.nodes or 0 for each in reasons if _UNKNOWN.search(each.text)) > unknown


def _by_cards(snapshot: Snapshot, judged_node: _Judged) -> Iterator[FoundCause]:
    because = why_unknown(snapshot, judged_node.unknown)
    healed = {
        CARD_UNHEALTHY: _would_fit(snapshot, judged_node, Code.UNHEALTHY, _healthy),
        CORDONED: _would_fit(snapshot, judged_node, Code.CORDONED, lambda held: replace(held, cordoned=False)),
    }
    evidence = (_wants(judged_node), *_each_card(judged_node), *_of_hami(judged_node))
    for cause, nodes in healed.items():
        for node in nodes:
            by_agent = _by_agent(node) if cause is CORDONED else ()
            remedy = _heal(cause, node)
            yield judged_node.waiting.found(
                cause, *by_agent, *evidence, subject=node.subject, remedy=remedy, because_of=because
            )
    if any(healed.values()):
        return
    code = _main(judged_node)
    cause, messages = _CAUSES[code.value], (*_summary(judged_node, code), *evidence, *_differs(judged_node, code))
    subject, more = _subject(snapshot, judged_node, code)
    remedy = tuple(_fix(judged_node, code))
    yield judged_node.waiting.found(cause, *messages, *more, subject=subject, remedy=remedy, because_of=because)


def _healthy(held: CardUsage) -> CardUsage:
    return replace(held, card=replace(held.card, healthy=True), mixed=False)


def _would_fit(
    snapshot: Snapshot, judged_node: _Judged, code: Code, heal: Callable[[CardUsage], CardUsage]
) -> list[Node]:
    """Return the nodes on which the pods would fit if their cards did not have the state that `heal` repairs."""
    if not any(card.code is code for _, verdict in judged_node.known for card in verdict.cards):
        return []
    cards = {name: tuple(map(heal, held)) for name, held in judged_node.books.cards.items()}
    return [
        node
        for node, verdict in _nodes(snapshot, replace(judged_node.books, cards=cards), judged_node.waiting)
        if verdict.fits
    ]


def _main(judged_node: _Judged) -> Code:
    """Return the most frequent obstacle on cards of the requested kind, on nodes with enough of them."""
    enough = [verdict for _, verdict in judged_node.known if Code.NO_SUCH_NUMBER not in verdict.counts]
    if not enough:
        return Code.NO_SUCH_NUMBER
    codes = Counter(card.code for verdict in enough for card in verdict.cards if card.code is not None)
    of_kind = Counter({code: number for code, number in codes.items() if code not in _NOT_ITS_KIND})
    if of_kind:
        code = of_kind.most_common(1)[0][0]
        # A request for all of a card's memory needs the card alone: HAMi reports either code.
        alone = code is Code.MEMORY and _is_whole(judged_node) and Code.EXCLUSIVE.value in judged_node.codes
        return Code.EXCLUSIVE if alone else code
    if any(Code.NUMA in verdict.counts for verdict in enough):
        return Code.NUMA
    return Code.TOO_FEW if any(Code.TOO_FEW in verdict.counts for verdict in enough) else codes.most_common(1)[0][0]


def _is_whole(judged_node: _Judged) -> bool:
    """Whether an unshared card is requested; HAMi's webhook makes this of a request without memory."""
    asked = judged_node.asked("")
    return asked is not None and not asked.memory and asked.percentage in (None, 100) and asked.cores >= 100


def _wants(judged_node: _Judged) -> str:
    asked = judged_node.asked(next((verdict.container for _, verdict in judged_node.known if verdict.container), ""))
    if asked is None:
        return ""
    each = [f"{asked.memory} MiB"] if asked.memory else []
    if not asked.memory:
        each.append("all of its memory" if asked.percentage in (None, 100) else f"{asked.percentage} % of its memory")
    each += [f"{asked.cores} % of its cores"] if asked.cores else []
    return f"a container requests {counted(asked.cards, 'card')} with {', '.join(each)}{' each' * (asked.cards > 1)}"


def _each_card(judged_node: _Judged) -> Iterator[str]:
    """Yield the cards of each node with their verdicts."""
    for node, verdict in judged_node.known[:_MOST_NODES]:
        held = judged_node.held(node)
        cards = "; ".join(_card(card, held.get(card.uuid)) for card in verdict.cards[:_MOST_CARDS])
        more = f"; and {len(verdict.cards) - _MOST_CARDS} more" if len(verdict.cards) > _MOST_CARDS else ""
        yield f"{node.subject}: {cards}{more}"
    if len(judged_node.known) > _MOST_NODES:
        yield f"and {counted(len(judged_node.known) - _MOST_NODES, 'more node')}"
    for node in judged_node.unknown[:_MOST_NODES]:
        yield f"{node.subject}: {UNREGISTERED}: {unregistered(node, judged_node.books)}"


def _card(card: CardVerdict, held: CardUsage | None) -> str:
    kind = f", it is {held.card.kind}" if card.code is Code.TYPE and held is not None else ""
    pods = held.pods if held is not None else ()
    by = named((f"{pod} {part_text(part)}" for pod, part in pods), _MOST_PODS)
    return f"card {card.uuid} {card}{kind}" + (f" (used by {by})" if by and card.code is not None else "")


def _summary(judged_node: _Judged, code: Code) -> Iterator[str]:
    if code is Code.NO_SUCH_NUMBER:
        most = max(len(judged_node.books.cards[node.name]) for node, _ in judged_node.known)
        yield f"no eligible node has more than {counted(most, 'card')}"
    if code is not Code.MEMORY:
        return
    free = [
        held.free.memory for node, _ in judged_node.known for held in judged_node.books.cards[node.name] if held.usable
    ]
    asked = judged_node.asked("")
    if free and asked is not None and asked.memory and sum(free) >= asked.cards * asked.memory:
        yield f"{counted(len(free), 'card')} have {sum(free)} MiB free in total, at most {max(free)} on one card"


def _of_hami(judged_node: _Judged) -> Iterator[str]:
    for text in judged_node.words[:3]:
        yield f"HAMi reports: {text[:_MOST_TEXT]}"


def _differs(judged_node: _Judged, code: Code) -> Iterator[str]:
    causes = {_CAUSES[word] for word in judged_node.codes}
    if causes and _CAUSES[code.value] not in causes:
        codes = ", ".join(judged_node.codes)
        yield f"HAMi reports {codes}, but these objects show {code.value}: HAMi's state is older than these objects"


def _subject(snapshot: Snapshot, judged_node: _Judged, code: Code) -> tuple[str, tuple[str, ...]]:
    """Return the object to change: the workload if no card could ever fit, else the used-up resource."""
    settings = judged_node.books.settings
    asked = judged_node.asked("")
    cards = [held.card for node, _ in judged_node.known for held in judged_node.books.cards[node.name]]
    match code:
        case Code.QUOTA:
            known = kept_quotas(snapshot, judged_node.waiting.pods[0].meta.namespace, settings)
            messages = tuple(line for each in known for line in given_of(snapshot, each, settings))
            return (known[0].meta.subject if known else judged_node.waiting.workload), messages
        case Code.MEMORY if asked is not None and any(asked.memory_of(card.memory) <= card.memory for card in cards):
            return f"resource/{settings.memory_name}", ()
        case Code.CORES | Code.COMPUTE if asked is not None and any(asked.cores <= card.cores for card in cards):
            return f"resource/{settings.cores_name}", ()
        case Code.SLOTS | Code.EXCLUSIVE:
            return f"resource/{settings.count_name}", ()
        case Code.TYPE | Code.UUID | Code.NUMA:
            written = judged_node.waiting.pods[0].card_options.written
            keys = (*_CARD_OPTIONS, NUMA_BIND) if code is Code.NUMA else _CARD_OPTIONS
            return judged_node.waiting.workload, tuple(f"{key}: {written[key]}" for key in keys if key in written)
    return judged_node.waiting.workload, ()


def _fix(judged_node: _Judged, code: Code) -> Iterator[str]:
    cards = [held for node, _ in judged_node.known for held in judged_node.books.cards[node.name]]
    most = max((held.card.memory for held in cards), default=0)
    asked = judged_node.asked("")
    if code is Code.MEMORY and asked is not None and asked.memory > most:
        settings = judged_node.books.settings
        yield f"Request at most {most // max(settings.memory_factor, 1)} {settings.memory_name}: no card has more."
    elif code in (Code.MEMORY, Code.CORES, Code.COMPUTE, Code.SLOTS, Code.EXCLUSIVE):
        yield f"List the owners of each card: {command('gpu-healthcheck', 'status', '--allocation')}"
    if code in (Code.EXCLUSIVE, Code.MEMORY) and _is_whole(judged_node):
        yield (
            f"Wait for a whole card; or request {judged_node.books.settings.memory_name} if a part is enough: "
            "without it HAMi's webhook writes 100 gpucores, an unshared card."
        )
        return
    yield _CAUSES[code.value].remedy


def _heal(cause: Cause, node: Node) -> tuple[str, ...]:
    if cause is CORDONED:
        ours = node.hami.cordoned_by_agent
        reasons = dict.fromkeys(reason for uuid in sorted(ours) for reason in _reasons(node, uuid))
        own = (
            *(f"See the action for {reason}: {explain(reason)}" for reason in reasons),
            f"When the GPU is fixed, the agent removes its cordon; or: {release_of(node.name)}",
        )
        look = kubectl("get", node.meta, "-o", f"jsonpath={{.metadata.annotations.{_ESCAPED}}}")
        lift = kubectl("annotate", node.meta, f"{CORDON}-")
        others = (f"Check which cards are cordoned: {look}", f"When they are healthy: {lift}")
        return (*(own if ours else ()), *(others if node.hami.cordoned - ours else ()))
    return f"Check the node's GPUs: {command('gpu-healthcheck', 'diagnose', 'node', node.name)}", cause.remedy


def _by_agent(node: Node) -> Iterator[str]:
    """Yield the cards that the node's agent cordoned, each with the reasons of its findings."""
    for uuid in sorted(node.hami.cordoned_by_agent):
        reasons = ", ".join(_reasons(node, uuid))
        yield f"{node.subject}: card {uuid} is cordoned by the node's agent{f' for {reasons}' if reasons else ''}"


def _reasons(node: Node, uuid: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found.reason for found in node.faults if found.about.get("uuid") == uuid))


def _louder(installation: Installation) -> tuple[str, ...]:
    words = ("kubectl", "-n", installation.namespace)
    logs = command(
        *words, "logs", f"deployment/{installation.name}-scheduler", "-c", "vgpu-scheduler-extender", "--tail=200"
    )
    edit = command(*words, "edit", "deployment", f"{installation.name}-scheduler")
    return (
        f"Read its log lines about the pod. At -v=4, the chart's default, they give a reason for each node: {logs}",
        f"To log single cards, set -v=5 in the command of vgpu-scheduler-extender: {edit}",
    )


CAUSES = (NODES_UNREGISTERED, *_REFUSALS, UNFIT)
SEARCHES = (Search(CAUSES, ("Pod",), find_refused, is_there),)
