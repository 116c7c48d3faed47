"""Group pods that no scheduler has bound by their requests, each group with the scheduler's message about it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache

from msgspec import Struct

from gpu_healthcheck.diagnosis.causes.unscheduled import autoscaling
from gpu_healthcheck.diagnosis.facts.fit_error import FitError, ReasonSubject, UnfitReason, parse, reason_of
from gpu_healthcheck.diagnosis.facts.gangs import group_message, is_held_back
from gpu_healthcheck.diagnosis.facts.gpu_requests import (
    SHARES,
    GpuShare,
    claims_gpus,
    gpu_claims,
    is_accelerator,
    is_deep_test,
    is_gpu,
    share_of,
)
from gpu_healthcheck.diagnosis.facts.placement import HOST, asked_by, is_extended
from gpu_healthcheck.diagnosis.hami.installation import installations, schedulers
from gpu_healthcheck.diagnosis.model import Cause, Certainty, FoundCause, Origin
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.pods import Pod, PodSpec, condition_in
from gpu_healthcheck.healthcheck.text.moments import EARLIEST

_GROUPS = (
    *("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"),
    *("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io", "pod-group-name"),
)
"""Annotations or labels with the name of a pod's group."""
_REFUSED = frozenset(("FailedScheduling", "Unschedulable", "BindingError"))
"""Event reasons of kube-scheduler, Volcano and KAI for a pod that fits no node, or can't be bound to it."""
_NAMES = re.compile(r"\{[^{}]*\}|<[^<>]*>|\"[^\"]*\"|(?<!\w)'[^']*'", re.ASCII)
"""Taints and names of objects in a scheduler's text."""
_ABOUT_GPUS = re.compile(
    r"(?<![\w/.-])(?i:v?gpus?)(?![\w-])|(?:Insufficient|resources?:) \S{0,100}(?:gpu|mig-)|mig profile|GPUQuota"
    r"|\bCard[A-Z]",
    re.ASCII,
)
_PER_CARD = frozenset(f"volcano.sh/vgpu-{one}" for one in ("memory", "memory-percentage", "cores"))
"""Amounts that Volcano compares with each card. Older device plugins do not offer a node's total of them."""
_GPU = "nvidia.com/gpu"
_STUCK = timedelta(minutes=5)
"""Time after its grace period until a deleted pod counts as stuck."""


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
    share: GpuShare | None = None
    """Share of GPUs that KAI gives out; `asked` has the GPUs, any of which a share needs whole if none is shared."""

    @property
    def spec(self) -> PodSpec:
        return self.pods[0].spec

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(pod.subject for pod in self.pods)

    @property
    def namespace(self) -> str:
        return self.pods[0].meta.namespace

    @property
    def devices(self) -> dict[str, Decimal]:
        """Return the requested amounts of resources that only some nodes have."""
        named = {name: value for name, value in self.asked.items() if is_extended(name)}
        unsummed = SHARES | _PER_CARD
        return {
            name: value for name, value in named.items() if name not in unsummed and not (self.hami and is_gpu(name))
        }

    @property
    def is_judged(self) -> bool:
        """Whether the request for GPUs is known: a resource, a claim, or the annotation of a share."""
        return self.hami or bool(self.spec.claims) or any(map(is_accelerator, self.asked))

    @property
    def counted(self) -> dict[str, Decimal]:
        """Return the requested amounts that a node can have too little of, the devices first."""
        plain = {name: value for name, value in self.asked.items() if name in HOST or name.startswith("hugepages-")}
        return self.devices | plain

    def reasons(self, *about: ReasonSubject) -> tuple[UnfitReason, ...]:
        """Return the scheduler's reasons about these subjects; none if its text has another format."""
        return self.fit.of(*about) if self.fit is not None else ()

    def quote(self, reason: UnfitReason) -> str:
        """Return a reason of the scheduler as evidence, with its number of nodes."""
        total = self.fit.nodes if self.fit is not None else None
        count = "" if reason.nodes is None else f"{reason.nodes} of {total} nodes: " if total else f"{reason.nodes} "
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


def unplaced(snapshot: Snapshot) -> Iterator[Pod]:
    """Yield GPU pods without a node that have not ended and are not being deleted."""
    claims = gpu_claims(snapshot)
    for pod in snapshot.pods:
        waits = not pod.spec.node and not pod.over and pod.meta.deleted is None and not is_deep_test(pod)
        if not waits:
            continue
        known = any(map(is_accelerator, asked_by(pod.spec))) or claims_gpus(pod, claims) or share_of(pod) is not None
        # A scheduler may read requests from annotations that are not known here.
        if known or is_about_gpus(refusal(snapshot, pod)):
            yield pod


def is_about_gpus(message: str) -> bool:
    """Whether a scheduler's text speaks of GPUs, other than in the name of an object or taint."""
    return _ABOUT_GPUS.search(_NAMES.sub("", message)) is not None


def unschedulable(snapshot: Snapshot) -> tuple[Waiting, ...]:
    """Return the pods that a scheduler has judged and refused, without those whose node is being created."""
    groups: defaultdict[tuple[str, str], list[tuple[Pod, str]]] = defaultdict(list)
    for pod in unplaced(snapshot):
        message = refusal(snapshot, pod)
        if message and not pod.spec.gates and not _is_node_coming(snapshot, pod) and not is_held_back(snapshot, pod):
            groups[(_maker(snapshot, pod, message), _shape(pod))].append((pod, message))
    return tuple(_waiting(snapshot, workload, shape, members) for (workload, shape), members in sorted(groups.items()))


def refusal(snapshot: Snapshot, pod: Pod) -> str:
    """Return the scheduler's text about the pod; '' if it has not processed the pod.

    The condition is used first, because it persists while an event about the pod may be gone. KAI writes a condition of
    its own if it has found a node and can't bind the pod to it.
    """
    condition, bound = pod.condition("PodScheduled"), condition_in(pod.conditions, "PodBound", "False")
    if bound is not None and (condition is None or (condition.since or EARLIEST) <= (bound.since or snapshot.now)):
        return bound.message or bound.reason
    if condition is not None and (condition.status != "False" or condition.reason == "SchedulingGated"):
        return ""
    if condition is not None and condition.message:
        return condition.message
    events = [event for event in snapshot.events_of(pod) if _is_refusal(event)]
    text = events[-1].message if events else condition.reason if condition is not None else ""
    return text or group_message(snapshot, pod)


def _is_refusal(event: Event) -> bool:
    of_queue = event.reason == "Informational" and "not fit in queue" in event.message  # YuniKorn
    return of_queue or (event.reason in _REFUSED and event.warning)


def group_of(pod: Pod) -> str:
    """Return the name of the pod's PodGroup, as Kubernetes, Volcano, the coscheduling plugin and KAI write it."""
    if pod.spec.group is not None:
        return "/".join(filter(None, (pod.spec.group.name, pod.spec.group.within, pod.spec.group.replica)))
    labels = {**pod.meta.labels, **pod.meta.annotations}
    return next((labels[key] for key in _GROUPS if key in labels), "")


def group_subject(pod: Pod) -> str:
    """Return the object that defines the pod's group; '' without a group."""
    if pod.spec.group is not None:
        return subject(pod.spec.group.kind, pod.meta.namespace, pod.spec.group.name)
    group = group_of(pod)
    return subject("PodGroup", pod.meta.namespace, group) if group else ""


def waits_for_group(message: str, fit: FitError | None) -> bool:
    """Whether the scheduler waits for other pods of a group."""
    return bool(fit.of(ReasonSubject.GANG)) if fit is not None else reason_of(message).about is ReasonSubject.GANG


def is_stuck(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod should have been gone for a while, and still owns its resources."""
    return pod.meta.deleted is not None and not pod.over and snapshot.now - pod.meta.deleted > _STUCK


def _is_node_coming(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a node is being created for the pod, or preemption is making room."""
    created = autoscaling.is_coming(snapshot, pod)
    if created is not None:
        return created
    return bool(pod.nominated) and pod.nominated not in _nodes_with_stuck_pods(snapshot)


@lru_cache(maxsize=1)
def _nodes_with_stuck_pods(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(pod.spec.node for pod in snapshot.pods if is_stuck(snapshot, pod))


def _maker(snapshot: Snapshot, pod: Pod, message: str) -> str:
    """Return the object that a person wrote.

    Pods without an owner that wait for each other are represented by their group.
    """
    group = group_subject(pod) if pod.meta.owner is None else ""
    return group if group and waits_for_group(message, parse(message)) else snapshot.line(pod.meta)[-1]


def _waiting(snapshot: Snapshot, workload: str, shape: str, members: list[tuple[Pod, str]]) -> Waiting:
    pods = tuple(sorted((pod for pod, _ in members), key=lambda pod: pod.subject))
    pod, message = members[-1][0], " ".join(members[-1][1].split())
    fit = parse(message)
    hami, asked = _is_for_hami(pod, fit, schedulers(snapshot)), asked_by(pod.spec)
    # No node has to offer the resources that HAMi counts, whatever their names.
    names = {name for installation in installations(snapshot) for name in installation.settings.names} if hami else ()
    asked = {name: value for name, value in asked.items() if name not in names or is_gpu(name)}
    share = share_of(pod)
    if share is not None:
        asked[_GPU] = share.devices
    return Waiting(pods, workload, asked, message, fit, f"{shape} {hami}", hami, share)


def _is_for_hami(pod: Pod, fit: FitError | None, names: Collection[str]) -> bool:
    """Whether HAMi schedules the pod, by its scheduler's name, its annotations, or HAMi's reasons."""
    if "hami" in pod.spec.scheduler or pod.spec.scheduler in names or pod.grant is not None:
        return True
    policies = (pod.card_options.node_policy, pod.card_options.gpu_policy)
    return policies != (None, None) or (fit is not None and bool(fit.of(ReasonSubject.HAMI)))


def _shape(pod: Pod) -> str:
    spec = pod.spec
    parts = (
        *(sorted(asked_by(spec).items()), sorted(spec.node_selector.items()), spec.affinity, spec.tolerations),
        *(sorted(spec.claims), sorted(spec.claims.values()), sorted(spec.volume_claims), spec.scheduler),
        pod.meta.namespace if spec.volume_claims or spec.claims else "",
        share_of(pod),
    )
    return repr(parts)
