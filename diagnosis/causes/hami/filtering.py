"""Find pods that HAMi's filter refuses on every node.

HAMi's messages name the cause. If they name none, the table of cards against the request does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta

from msgspec import Struct

from gpu_healthcheck.diagnosis.causes.hami.denials import QUOTA, codes
from gpu_healthcheck.diagnosis.causes.hami.hami_nodes import CARD_UNHEALTHY, why_unknown
from gpu_healthcheck.diagnosis.causes.unscheduled.refused import closed_by
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting, unschedulable
from gpu_healthcheck.diagnosis.causes.verdicts import release_of
from gpu_healthcheck.diagnosis.facts.commands import command, explain, kubectl
from gpu_healthcheck.diagnosis.facts.fit_error import ReasonSubject
from gpu_healthcheck.diagnosis.facts.gpu_nodes import has_nvidia
from gpu_healthcheck.diagnosis.facts.placement import selects
from gpu_healthcheck.diagnosis.facts.quantity import counted
from gpu_healthcheck.diagnosis.hami.cards import CardUsage, cards_of
from gpu_healthcheck.diagnosis.hami.fit import (
    UNREGISTERED,
    CardRequest,
    CardVerdict,
    Code,
    NodeVerdict,
    request_of,
    verdicts,
)
from gpu_healthcheck.diagnosis.hami.installation import Installation, installation_of, is_there, unregistered
from gpu_healthcheck.diagnosis.hami.quota import quota_usage, quotas_of
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, Certainty, Family, FoundCause, Link, Search
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.hami_pod import AVOID_TYPE, AVOID_UUID, MODE, NUMA_BIND, USE_TYPE, USE_UUID
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.healthcheck.node.hami import CORDON
from gpu_healthcheck.healthcheck.text.naming import named

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
_CODE = re.compile(rf"\b({'|'.join(_CAUSES)})\b", re.ASCII)
_UNKNOWN_NODE = re.compile(r"node unregistered|node usage unavailable", re.ASCII)
_OTHER_CARDS = (Code.TYPE, Code.UUID)
"""Codes of cards that the pod does not want."""
_CARD_OPTIONS = (USE_TYPE, AVOID_TYPE, USE_UUID, AVOID_UUID, MODE, NUMA_BIND)
_ESCAPED_CORDON = CORDON.replace(".", "\\.")
_FEWEST_JUDGED, _MOST_WALKED = 4, 100_000
"""Above this number of requests, only HAMi's own messages are reported."""
_RETRIES = timedelta(minutes=10)
_MOST_NODES, _MOST_CARDS, _MOST_PODS, _LONGEST = 4, 8, 3, 300


class _RefusedWorkload(Struct, frozen=True):
    """Pods of a workload with the verdict on every node that they could use, HAMi aside.

    `messages`: of HAMi about them.
    """

    waiting: Waiting
    installation: Installation
    messages: tuple[str, ...]
    nodes: tuple[tuple[Node, NodeVerdict], ...]

    @property
    def named_codes(self) -> tuple[str, ...]:
        """Return the codes that HAMi's messages name."""
        return tuple(dict.fromkeys(code for message in self.messages for code in _CODE.findall(message)))

    @property
    def named_causes(self) -> tuple[Cause, ...]:
        return tuple(dict.fromkeys(_CAUSES[code] for code in self.named_codes))

    @property
    def registered(self) -> list[tuple[Node, NodeVerdict]]:
        return [pair for pair in self.nodes if pair[1].reason != UNREGISTERED]

    @property
    def unregistered(self) -> list[Node]:
        return [node for node, verdict in self.nodes if verdict.reason == UNREGISTERED]

    @property
    def request(self) -> CardRequest | None:
        """Return the request of the container that gets no cards, or of the first one that requests any."""
        refused = next((verdict.container for _, verdict in self.registered if verdict.container), "")
        requests = {each.name: request_of(each, self.installation.settings) for each in self.waiting.spec.containers}
        return requests.get(refused) or next((request for request in requests.values() if request is not None), None)

    def cards(self, snapshot: Snapshot) -> list[CardUsage]:
        """Return the cards of the registered nodes."""
        return [usage for node, _ in self.registered for usage in cards_of(snapshot)[node.name]]


def find_refused(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield one result for each refused workload, judged by the HAMi installation that it uses."""
    verdicts_by_request: dict[object, tuple[tuple[Node, NodeVerdict], ...]] = {}
    # For a runtime of a few seconds, only so many different requests are compared with all cards.
    most = max(_FEWEST_JUDGED, _MOST_WALKED // max(sum(map(len, cards_of(snapshot).values())), 1))
    for waiting in unschedulable(snapshot):
        installation = installation_of(snapshot, waiting.pods[0]) if waiting.hami else None
        if installation is None or not ((messages := _messages(snapshot, waiting)) or _is_silent(waiting)):
            continue
        # Pods with equal keys are judged alike, so all cards are checked once for them.
        pod, limits = waiting.pods[0], [container.limits for container in waiting.spec.containers]
        key = installation.subject, pod.meta.namespace, waiting.shape, repr((pod.card_options, limits))
        if key not in verdicts_by_request and len(verdicts_by_request) < most:
            verdicts_by_request[key] = tuple(_nodes(snapshot, installation, waiting))
        workload = _RefusedWorkload(waiting, installation, messages, verdicts_by_request.get(key, ()))
        if key in verdicts_by_request:
            yield from _by_cards_or_messages(snapshot, workload)
        else:
            yield from _by_messages(snapshot, workload, ())


def find_by_text(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the cause that HAMi's messages name, where nothing else of HAMi is visible, as in a pasted text."""
    for waiting in unschedulable(snapshot):
        messages = _messages(snapshot, waiting)
        # Cards of other types are also those of nodes that the pod was never meant for.
        named_causes = (_CAUSES[code] for code in _CODE.findall(" ".join(messages)))
        cause = min(named_causes, key=lambda cause: cause is CONSTRAINED, default=None)
        if cause is not None and (cause is not CONSTRAINED or waiting.pods[0].card_options.annotations):
            quotes = (f"HAMi reports: {message[:_LONGEST]}" for message in messages[:3])
            yield waiting.found(cause, *quotes, certainty=Certainty.LIKELY)


def _messages(snapshot: Snapshot, waiting: Waiting) -> tuple[str, ...]:
    """Return HAMi's messages: those that kube-scheduler reports for HAMi, then HAMi's own events, the latest first."""
    events: list[str] = []
    for event in (event for pod in waiting.pods for event in snapshot.events_of(pod)):
        if event.reason == "FilteringSucceed":
            events.clear()
        elif event.reason == "FilteringFailed":
            events.insert(0, event.message)
    return tuple(dict.fromkeys((*(reason.text for reason in waiting.reasons(ReasonSubject.HAMI)), *events)))


def _is_silent(waiting: Waiting) -> bool:
    """Whether HAMi gives no reason: versions up to 2.4 report the number of nodes alone."""
    return waiting.fit is not None and not waiting.fit.reasons and bool(waiting.fit.nodes)


def _nodes(snapshot: Snapshot, installation: Installation, waiting: Waiting) -> Iterator[tuple[Node, NodeVerdict]]:
    pod = waiting.pods[0]
    for node, verdict in verdicts(snapshot, installation, pod):
        if (node.hami.shared or has_nvidia(node)) and selects(pod.spec, node) and not closed_by(pod.spec, node):
            yield node, verdict


def _by_cards_or_messages(snapshot: Snapshot, workload: _RefusedWorkload) -> Iterator[FoundCause]:
    request = workload.request
    fitting = [(node, verdict) for node, verdict in workload.registered if verdict.fits and request is not None]
    if not workload.nodes and any(node.hami.shared for node in snapshot.nodes):
        return  # other searches report why the pod can't use them
    if request is None or fitting or not workload.nodes:
        yield from _by_messages(snapshot, workload, fitting)
    elif not workload.registered:
        evidence = (*_unregistered(snapshot, workload), *_quotes(workload))
        because = why_unknown(snapshot, workload.unregistered)
        yield workload.waiting.found(NODES_UNREGISTERED, *evidence, because_of=because)
    else:
        yield from _by_cards(snapshot, workload, request)


def _by_messages(
    snapshot: Snapshot, workload: _RefusedWorkload, fitting: Sequence[tuple[Node, NodeVerdict]]
) -> Iterator[FoundCause]:
    """Yield a result from HAMi's messages if the table of cards gives no reason.

    Examples: other vendors' cards, nodes that are not visible, capacity that has become free since.
    """
    created = [pod.meta.created for pod in workload.waiting.pods if pod.meta.created is not None]
    is_recent = bool(created) and snapshot.now - max(created) < _RETRIES
    causes = list(workload.named_causes)
    if _loses_nodes(snapshot, workload, bool(fitting)):
        causes.append(NODES_UNREGISTERED)
    if fitting and all(verdict.by_mig for _, verdict in fitting):
        causes.append(MIG)
    if fitting and (is_recent or not causes):
        return
    evidence = list(_quotes(workload))
    if fitting:
        nodes = ", ".join(node.subject for node, _ in fitting[:_MOST_NODES])
        evidence.append(
            f"by the registrations and allocations, {nodes} would fit: HAMi's own state differs, or HAMi has not "
            "retried since"
        )
        ended = [pod.subject for pod in snapshot.pods if pod.over and pod.grant is not None and pod.grant.node]
        evidence += [f"ended pods that keep their annotations: {', '.join(ended[:_MOST_PODS])}"] if ended else []
    cause, remedy = (causes[0], ()) if causes else (UNFIT, _more_log(workload.installation))
    unknown = (*workload.unregistered, *(node for node, _ in fitting)) if cause is NODES_UNREGISTERED else ()
    because = why_unknown(snapshot, unknown) if unknown else ()
    yield workload.waiting.found(cause, *evidence, remedy=remedy, certainty=Certainty.LIKELY, because_of=because)


def _loses_nodes(snapshot: Snapshot, workload: _RefusedWorkload, any_fits: bool) -> bool:
    """Whether HAMi knows no cards of some nodes: if others fit, of more nodes than lack a registration."""
    if not any_fits:
        return any(map(_UNKNOWN_NODE.search, workload.messages))
    spec = workload.waiting.spec
    unknown = sum(
        bool(unregistered(snapshot, workload.installation, node))
        for node in snapshot.nodes
        if selects(spec, node) and not closed_by(spec, node)
    )
    reasons = workload.waiting.reasons(ReasonSubject.HAMI)
    return sum(reason.nodes or 0 for reason in reasons if _UNKNOWN_NODE.search(reason.text)) > unknown


def _by_cards(snapshot: Snapshot, workload: _RefusedWorkload, request: CardRequest) -> Iterator[FoundCause]:
    found, because = workload.waiting.found, why_unknown(snapshot, workload.unregistered)
    table = (_requested(request), *_cards_by_node(snapshot, workload), *_quotes(workload))
    unhealthy, cordoned = (_held_back_by(workload, request, code) for code in (Code.UNHEALTHY, Code.CORDONED))
    if CORDONED not in (workload.named_causes or (CORDONED,)):
        cordoned = []  # versions before 2.10 ignore cordons
    for node in unhealthy:
        check = f"Check the node's GPUs: {command('gpu-healthcheck', 'diagnose', 'node', node.name)}"
        both = (check, CARD_UNHEALTHY.remedy)
        yield found(CARD_UNHEALTHY, *table, subject=node.subject, remedy=both, because_of=because)
    for node in cordoned:
        lift = _lift_cordon(node)
        yield found(CORDONED, *_agent_cordons(node), *table, subject=node.subject, remedy=lift, because_of=because)
    if unhealthy or cordoned:
        return
    code, named_causes = _main_code(workload), workload.named_causes
    cause, certainty, differs = _CAUSES[code.value], Certainty.PROVEN, ""
    if named_causes and cause not in named_causes and not _is_never_met(workload, request, cause):
        cause, certainty, reported = named_causes[0], Certainty.LIKELY, ", ".join(workload.named_codes)
        differs = (
            f"HAMi reports {reported}, but these objects show {code.value}: its state is older, or its rules differ"
        )
    evidence = (*_summary(snapshot, workload, request, code), *table, *_details(snapshot, workload, cause))
    remedy, subject = _remedy(snapshot, workload, request, cause), _subject(snapshot, workload, request, cause)
    yield found(
        cause,
        *filter(None, (*evidence, differs)),
        subject=subject,
        remedy=remedy,
        certainty=certainty,
        because_of=because,
    )


def _held_back_by(workload: _RefusedWorkload, request: CardRequest, code: Code) -> list[Node]:
    """Return the nodes on which enough cards would fit without this code."""
    return [
        node
        for node, verdict in workload.registered
        if any(card.code is code for card in verdict.cards)
        and verdict.code is not Code.NUMA
        and sum(set(card.codes) <= {code} for card in verdict.cards) >= request.cards
    ]


def _main_code(workload: _RefusedWorkload) -> Code:
    """Return the most frequent obstacle on cards of the requested kind, on nodes with enough of them."""
    enough = [verdict for _, verdict in workload.registered if verdict.code is not Code.NO_SUCH_NUMBER]
    codes = Counter(card.code for verdict in enough for card in verdict.cards if card.code is not None)
    of_cards = [code for code, _ in codes.most_common()]
    of_kind = [code for code in of_cards if code not in _OTHER_CARDS]
    of_nodes = [verdict.code for verdict in enough if verdict.code is not None]
    by_numa = [code for code in of_nodes if code is Code.NUMA]
    return (*by_numa, *of_kind, *of_nodes, *of_cards, Code.NO_SUCH_NUMBER)[0]


def _requested(request: CardRequest) -> str:
    parts = [f"{request.memory} MiB"] if request.memory else []
    if not request.memory:
        whole = request.percentage in (None, 100)
        parts.append("all of its memory" if whole else f"{request.percentage} % of its memory")
    parts += [f"{request.cores} % of its cores"] if request.cores else []
    cards = counted(request.cards, "card")
    return f"a container requests {cards} with {', '.join(parts)}{' each' * (request.cards > 1)}"


def _is_never_met(workload: _RefusedWorkload, request: CardRequest, cause: Cause) -> bool:
    """Whether the request exceeds the total of each card: HAMi's message about free amounts does not end that."""
    cards = [card for node, _ in workload.registered for card in node.hami.cards]
    return bool(cards) and (
        (cause is MEMORY and all(request.memory_of(card.memory) > card.memory for card in cards))
        or (cause is CORES and all(request.cores > card.cores for card in cards))
    )


def _cards_by_node(snapshot: Snapshot, workload: _RefusedWorkload) -> Iterator[str]:
    """Yield the cards of each node with their verdicts."""
    for node, verdict in workload.registered[:_MOST_NODES]:
        usages = {usage.card.uuid: usage for usage in cards_of(snapshot)[node.name]}
        cards = "; ".join(_card(card, usages[card.uuid]) for card in verdict.cards[:_MOST_CARDS])
        more = f"; and {len(verdict.cards) - _MOST_CARDS} more" if len(verdict.cards) > _MOST_CARDS else ""
        numa = "; no NUMA node has enough of them" if verdict.code is Code.NUMA else ""
        yield f"{node.subject}: {cards}{more}{numa}"
    if len(workload.registered) > _MOST_NODES:
        yield f"and {counted(len(workload.registered) - _MOST_NODES, 'more node')}"
    yield from _unregistered(snapshot, workload)
    if workload.installation.rules:
        yield workload.installation.rules


def _unregistered(snapshot: Snapshot, workload: _RefusedWorkload) -> Iterator[str]:
    for node in workload.unregistered[:_MOST_NODES]:
        yield f"{node.subject}: {UNREGISTERED}: {unregistered(snapshot, workload.installation, node)}"


def _card(verdict: CardVerdict, usage: CardUsage) -> str:
    model = f", it is {usage.card.model}" if verdict.code is Code.TYPE else ""
    pods = named((f"{pod} {part}" for pod, part in usage.pods), _MOST_PODS)
    return f"card {verdict.uuid} {verdict}{model}" + (f" (used by {pods})" if pods and verdict.codes else "")


def _summary(snapshot: Snapshot, workload: _RefusedWorkload, request: CardRequest, code: Code) -> Iterator[str]:
    if code is Code.NO_SUCH_NUMBER:
        most = max(len(verdict.cards) for _, verdict in workload.registered)
        yield f"no eligible node has more than {counted(most, 'card')}"
    free = [usage.free.memory for usage in workload.cards(snapshot) if usage.usable]
    if code is Code.MEMORY and free and request.memory and sum(free) >= request.cards * request.memory:
        yield f"{counted(len(free), 'card')} have {sum(free)} MiB free in total, at most {max(free)} on one card"


def _quotes(workload: _RefusedWorkload) -> Iterator[str]:
    for message in workload.messages[:3]:
        yield f"HAMi reports: {message[:_LONGEST]}"


def _details(snapshot: Snapshot, workload: _RefusedWorkload, cause: Cause) -> Iterator[str]:
    pod, settings = workload.waiting.pods[0], workload.installation.settings
    if cause is QUOTA:
        for quota in quotas_of(snapshot, pod.meta.namespace, settings):
            yield from quota_usage(snapshot, quota, settings)
    elif cause in (CONSTRAINED, NUMA):
        options = pod.card_options.annotations
        yield from (f"{key}: {options[key]}" for key in _CARD_OPTIONS if key in options)


def _subject(snapshot: Snapshot, workload: _RefusedWorkload, request: CardRequest, cause: Cause) -> str:
    """Return the object to change: the used-up resource, or '' for the workload if no card could ever fit."""
    settings, cards = workload.installation.settings, [usage.card for usage in workload.cards(snapshot)]
    quotas = quotas_of(snapshot, workload.waiting.pods[0].meta.namespace, settings) if cause is QUOTA else ()
    if quotas:
        return quotas[0].meta.subject
    if cause is MEMORY and any(request.memory_of(card.memory) <= card.memory for card in cards):
        return f"resource/{settings.memory_name}"
    if cause is CORES and any(request.cores <= card.cores for card in cards):
        return f"resource/{settings.cores_name}"
    return f"resource/{settings.count_name}" if cause in (SLOTS, EXCLUSIVE) else ""


def _remedy(snapshot: Snapshot, workload: _RefusedWorkload, request: CardRequest, cause: Cause) -> tuple[str, ...]:
    settings = workload.installation.settings
    most = max((usage.card.memory for usage in workload.cards(snapshot)), default=0)
    first: tuple[str, ...] = ()
    if cause is MEMORY and request.memory > most:
        first = (f"Request at most {most // settings.memory_factor} {settings.memory_name}: no card has more.",)
    elif cause in (MEMORY, CORES, SLOTS, EXCLUSIVE):
        first = (f"List the owners of each card: {command('gpu-healthcheck', 'status', '--allocation')}",)
    is_whole = not request.memory and request.percentage in (None, 100) and request.cores >= 100
    if cause in (EXCLUSIVE, MEMORY) and is_whole:
        wait = (
            f"Wait for a whole card; or request {settings.memory_name} if a part is enough: without it HAMi's webhook "
            "writes 100 gpucores, an unshared card."
        )
        return (*first, wait)
    return (*first, cause.remedy)


def _lift_cordon(node: Node) -> tuple[str, ...]:
    """Return how the cordons of the node's agent end, and those of persons."""
    by_agent = node.hami.cordoned_by_agent
    reasons = dict.fromkeys(reason for uuid in sorted(by_agent) for reason in _reasons(node, uuid))
    explained = (f"See the action for {reason}: {explain(reason)}" for reason in reasons)
    release = f"When the GPU is fixed, the agent removes its cordon; or: {release_of(node.name)}"
    get = kubectl("get", node.meta, "-o", f"jsonpath={{.metadata.annotations.{_ESCAPED_CORDON}}}")
    persons = (
        f"Check which cards are cordoned: {get}",
        f"When they are healthy: {kubectl('annotate', node.meta, f'{CORDON}-')}",
    )
    return (*((*explained, release) if by_agent else ()), *(persons if node.hami.cordoned - by_agent else ()))


def _agent_cordons(node: Node) -> Iterator[str]:
    """Yield the cards that the node's agent cordoned, each with the reasons of its findings."""
    for uuid in sorted(node.hami.cordoned_by_agent):
        reasons = ", ".join(_reasons(node, uuid))
        yield f"{node.subject}: card {uuid} is cordoned by the node's agent{f' for {reasons}' if reasons else ''}"


def _reasons(node: Node, uuid: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(finding.reason for finding in node.faults if finding.about.get("uuid") == uuid))


def _more_log(installation: Installation) -> tuple[str, ...]:
    kube, deployment = ("kubectl", "-n", installation.namespace), f"{installation.name}-scheduler"
    logs = command(*kube, "logs", f"deployment/{deployment}", "-c", "vgpu-scheduler-extender", "--tail=200")
    edit = command(*kube, "edit", "deployment", deployment)
    return (
        f"Read its log lines about the pod. At -v=4, the chart's default, they give a reason for each node: {logs}",
        f"To log single cards, set -v=5 in the command of vgpu-scheduler-extender: {edit}",
    )


CAUSES = (NODES_UNREGISTERED, *_REFUSALS, UNFIT)
SEARCHES = (
    Search(CAUSES, ("Pod",), find_refused, is_there),
    Search(_REFUSALS, ("Pod",), find_by_text, lambda snapshot: not is_there(snapshot)),
)
