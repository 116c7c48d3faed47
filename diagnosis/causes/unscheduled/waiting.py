"""Group pods that no scheduler has bound by their requests, and model the nodes as a scheduler does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from functools import cached_property, lru_cache

from msgspec import Struct

from diagnosis.facts import autoscaler
from diagnosis.facts.fit_error import FitError, ReasonSubject, UnfitReason, parse, reason_of
from diagnosis.facts.gangs import group_message, is_held_back
from diagnosis.facts.gpu_requests import SHARES, claims_gpus, gpu_claims, is_deep_test, is_gpu, meant_as_gpu
from diagnosis.facts.placement import ZERO, Amounts, asked_by, held_on, offers, shortages
from diagnosis.hami.installation import installations, schedulers
from diagnosis.model import Cause, Certainty, FoundCause, Origin
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import Pod, PodSpec

_GROUPS = (
    *("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"),
    *("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io", "pod-group-name"),
)
"""Annotations or labels with the name of a pod's group."""
_REFUSED = frozenset(("FailedScheduling", "Unschedulable"))
"""Event reasons of kube-scheduler, Volcano and KAI for a pod that fits no node."""
_STUCK = timedelta(minutes=5)
"""Time after its grace period until a deleted pod counts as stuck."""
_HOST = frozenset(("cpu", "memory", "pods", "ephemeral-storage"))


class Waiting(Struct, frozen=True):
    """Pods of one workload with the same requests that a scheduler could not bind.

    `message` is the scheduler's text about the last of them. `fit` is the parsed text; None if it has another format.
    """

    pods: tuple[Pod, ...]
    workload: str
    asked: Mapping[str, Decimal]
    message: str = ""
    fit: FitError | None = None
    shape: str = ""
    """Key that is equal for pods that a scheduler judges alike."""
    hami: bool = False
    """Whether HAMi's scheduler is responsible; it counts cards by other rules."""

    @property
    def spec(self) -> PodSpec:
        return self.pods[0].spec

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(pod.subject for pod in self.pods)

    def reasons(self, *says: ReasonSubject) -> tuple[UnfitReason, ...]:
        """Return the scheduler's reasons about these subjects; none if its text has another format."""
        return self.fit.of(*says) if self.fit is not None else ()

    def quote(self, reason: UnfitReason) -> str:
        """Return a reason of the scheduler as evidence, with its number of nodes."""
        count = f"{reason.nodes} of {self.fit.nodes} nodes: " if reason.nodes is not None and self.fit else ""
        return f"the scheduler: {count}{reason.text}"

    def found(
        self,
        cause: Cause,
        *evidence: str,
        subject: str = "",
        remedy: tuple[str, ...] = (),
        certainty: Certainty = Certainty.PROVEN,
        because_of: tuple[Origin, ...] = (),
    ) -> FoundCause:
        """Return a result for these pods. If it names no `subject`, the workload has to be changed."""
        return FoundCause(cause, subject or self.workload, evidence, remedy, self.names, certainty, because_of)

    @property
    def devices(self) -> dict[str, Decimal]:
        """Return the requested amounts of resources that only some nodes have."""
        named = {name: value for name, value in self.asked.items() if is_extended(name)}
        return {name: value for name, value in named.items() if name not in SHARES and not (self.hami and is_gpu(name))}

    @property
    def counted(self) -> dict[str, Decimal]:
        """Return the requested amounts that node arithmetic can judge."""
        host = {name: value for name, value in self.asked.items() if name in _HOST}
        return host | self.huge_pages | self.devices

    @property
    def huge_pages(self) -> dict[str, Decimal]:
        """Return the requested huge pages, which the kernel of a node reserves; no device plugin offers them."""
        return {name: value for name, value in self.asked.items() if name.startswith("hugepages-")}


class NodeUse(Struct, frozen=True, dict=True):
    """Node with the resources that its pods own, and these pods."""

    node: Node
    held: Amounts
    pods: tuple[Pod, ...] = ()

    def free(self, resource: str) -> Decimal:
        return max(offers(self.node, resource) - self.held.get(resource, ZERO), ZERO)

    def fits(self, asked: Amounts) -> bool:
        return not any(shortages(asked, self.node, self.held))

    def holders(self, resource: str) -> list[tuple[Decimal, Pod]]:
        """Return the pods that own some of the resource, the largest amount first."""
        return self._holders.get(resource, [])

    @cached_property
    def _holders(self) -> Mapping[str, list[tuple[Decimal, Pod]]]:
        held = grouped((name, (value, pod)) for pod in self.pods for name, value in asked_by(pod.spec).items())
        return {name: sorted(some, key=lambda pair: (-pair[0], pair[1].subject)) for name, some in held.items()}


def without(room: NodeUse, pods: Iterable[Pod]) -> NodeUse:
    """Return the room as it is once these pods are gone."""
    held = dict(room.held)
    for pod in pods:
        for name, value in asked_by(pod.spec).items():
            held[name] = held.get(name, ZERO) - value
    return NodeUse(room.node, held)


def rooms(snapshot: Snapshot) -> tuple[NodeUse, ...]:
    """Return the rooms of all nodes, sorted by name."""
    held, on = held_on(snapshot.pods), snapshot.pods_on
    return tuple(
        NodeUse(node, held.get(node.name, {}), tuple(pod for pod in on.get(node.name, ()) if not pod.over))
        for node in sorted(snapshot.nodes, key=lambda one: one.name)
    )


def is_extended(resource: str) -> bool:
    """Whether only nodes with a plugin for the resource offer it."""
    return "/" in resource and not resource.startswith("kubernetes.io/")


def unplaced(snapshot: Snapshot) -> Iterator[Pod]:
    """Yield GPU pods without a node that have not ended and are not being deleted."""
    claims = gpu_claims(snapshot)
    for pod in snapshot.pods:
        wanted = not pod.spec.node and not pod.over and pod.meta.deleted is None
        if wanted and not is_deep_test(pod) and _for_gpus(pod, claims):
            yield pod


def unschedulable(snapshot: Snapshot) -> tuple[Waiting, ...]:
    """Return the pods that a scheduler has judged and refused, without those whose node is being created."""
    groups: defaultdict[tuple[str, str], list[tuple[Pod, str]]] = defaultdict(list)
    for pod in unplaced(snapshot):
        message = refusal(snapshot, pod)
        if message and not pod.spec.gates and not _coming(snapshot, pod) and not is_held_back(snapshot, pod):
            groups[(_maker(snapshot, pod, message), _shape(pod))].append((pod, message))
    return tuple(_waiting(snapshot, workload, shape, members) for (workload, shape), members in sorted(groups.items()))


def group_of(pod: Pod) -> str:
    """Return the name of the pod's PodGroup, as Kubernetes, Volcano, the coscheduling plugin and KAI write it."""
    if pod.spec.group is not None:
        return "/".join(filter(None, (pod.spec.group.name, pod.spec.group.within, pod.spec.group.replica)))
    fields = {**pod.meta.labels, **pod.meta.annotations}
    return next((fields[key] for key in _GROUPS if key in fields), "")


def group_subject(pod: Pod) -> str:
    """Return the object that defines the pod's group; '' without a group."""
    if pod.spec.group is not None:
        return subject(pod.spec.group.kind, pod.meta.namespace, pod.spec.group.name)
    group = group_of(pod)
    return subject("PodGroup", pod.meta.namespace, group) if group else ""


def tells_of_gang(message: str, fit: FitError | None) -> bool:
    """Whether the scheduler waits for other pods of a group."""
    return bool(fit.of(ReasonSubject.GANG)) if fit is not None else reason_of(message).says is ReasonSubject.GANG


def refusal(snapshot: Snapshot, pod: Pod) -> str:
    """Return the scheduler's text about the pod; '' if it has not processed the pod.

    The condition is used first, because it persists while an event about the pod may be gone.
    """
    condition = pod.condition("PodScheduled")
    if condition is not None and (condition.status != "False" or condition.reason == "SchedulingGated"):
        return ""
    if condition is not None and condition.message:
        return condition.message
    noted = [event for event in snapshot.events_of(pod) if event.reason in _REFUSED and event.warning]
    text = noted[-1].message if noted else condition.reason if condition is not None else ""
    return text or group_message(snapshot, pod)


def is_stuck(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod should have been gone for a while, and still owns its resources."""
    return pod.meta.deleted is not None and not pod.over and snapshot.now - pod.meta.deleted > _STUCK


def _for_gpus(pod: Pod, claims: frozenset[tuple[str, str]]) -> bool:
    return any(map(meant_as_gpu, asked_by(pod.spec))) or claims_gpus(pod, claims)


def _coming(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a node is being created for the pod, or preemption is making room."""
    created = autoscaler.is_coming(snapshot, pod)
    if created is not None:
        return created
    if not pod.nominated:
        return False
    return pod.nominated not in _nodes_with_stuck(snapshot)


@lru_cache(maxsize=1)
def _nodes_with_stuck(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(pod.spec.node for pod in snapshot.pods if is_stuck(snapshot, pod))


def _maker(snapshot: Snapshot, pod: Pod, message: str) -> str:
    """Return the object that a person wrote.

    Pods without an owner that wait for each other are represented by their group.
    """
    group = group_subject(pod) if pod.meta.owner is None else ""
    if group and tells_of_gang(message, parse(message)):
        return group
    return snapshot.line(pod.meta)[-1]


def _waiting(snapshot: Snapshot, workload: str, shape: str, members: list[tuple[Pod, str]]) -> Waiting:
    pods = tuple(sorted((pod for pod, _ in members), key=lambda pod: pod.subject))
    pod, message = members[-1]
    fit = parse(message)
    hami, asked = _is_hami(pod, fit, schedulers(snapshot)), asked_by(pod.spec)
    # No node has to offer the resources that HAMi counts, whatever their names.
    names = {name for installation in installations(snapshot) for name in installation.settings.names} if hami else ()
    asked = {name: value for name, value in asked.items() if name not in names or is_gpu(name)}
    return Waiting(pods, workload, asked, message, fit, shape, hami)


def _is_hami(pod: Pod, fit: FitError | None, names: Collection[str]) -> bool:
    """Whether HAMi schedules the pod, by its scheduler's name, its annotations, or HAMi's reasons."""
    if "hami" in pod.spec.scheduler or pod.spec.scheduler in names or pod.grant is not None:
        return True
    policies = (pod.card_options.node_policy, pod.card_options.gpu_policy)
    return policies != (None, None) or (fit is not None and bool(fit.of(ReasonSubject.HAMI)))


def _shape(pod: Pod) -> str:
    spec = pod.spec
    parts = (
        *(sorted(asked_by(spec).items()), sorted(spec.node_selector.items()), spec.affinity, spec.tolerations),
        *(sorted(spec.claims), sorted(spec.volume_claims), spec.scheduler),
        pod.meta.namespace if spec.volume_claims else "",
    )
    return repr(parts)
