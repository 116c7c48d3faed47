"""Find too few free resources: the owners of the GPUs, and other resources used up on GPU nodes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import islice

from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes.device_plugins import OFFERS_NONE, UNHEALTHY, stack, why_none_left
from gpu_healthcheck.diagnosis.causes.unscheduled import autoscaling, refused, shared_gpus, sharing, unknown_resources
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting, is_stuck
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl
from gpu_healthcheck.diagnosis.facts.fit_error import ReasonSubject
from gpu_healthcheck.diagnosis.facts.gpu_requests import SHARES, is_accelerator
from gpu_healthcheck.diagnosis.facts.placement import (
    HOST,
    ZERO,
    NodeUse,
    asked_by,
    has,
    is_extended,
    nodes_with,
    offers,
)
from gpu_healthcheck.diagnosis.facts.quantity import amount, counted, shown
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.pods import Pod

_scheduled = Family(Link.SCHEDULED, severity=CauseSeverity.MEDIUM)
IN_USE = _scheduled(
    "GpusAllInUse",
    "Every GPU that suits waiting pods is in use by another pod.",
    "Wait, stop unneeded workloads, give the waiting pods a higher priority, or add nodes.",
)
FRAGMENTED = _scheduled(
    "GpusFragmented",
    "Enough GPUs are free in total, but no single node has as many free as one pod requests.",
    "Move small pods together, or use more pods with fewer GPUs each.",
)
TERMINATING = _scheduled(
    "TerminatingPodHoldsGpus",
    "A pod still owns its GPUs minutes after its deletion was due.",
    "Find the reason: a finalizer, a node that does not respond, or a process that hangs in the driver.",
    severity=CauseSeverity.HIGH,
)
HOST_USED_UP = _scheduled(
    "CpuOrMemoryUsedUp",
    "GPUs are free, but CPU, memory or another plain resource of their nodes is used up.",
    "Move pods without GPUs off the GPU nodes, or request less per GPU.",
)
TOO_MANY = _scheduled(
    "MoreGpusThanAnyNodeHas",
    "One pod requests more GPUs, or more memory of one GPU, than any eligible node has.",
    "Request fewer GPUs per pod and spread the work over several pods, or add larger nodes.",
    severity=CauseSeverity.HIGH,
)
TOO_MUCH = _scheduled(
    "MoreCpuOrMemoryThanAnyGpuNodeHas",
    "One pod requests more CPU, memory or another plain resource than any eligible GPU node has.",
    "Request less, or add larger nodes.",
    severity=CauseSeverity.HIGH,
)
SHORT = _scheduled(
    "InsufficientResource",
    "The scheduler finds too little of a resource; the snapshot does not show the reason.",
    "Check which nodes offer it (`kubectl describe nodes`) and which pods of all namespaces own it; GPUs: "
    "`gpu-healthcheck status --allocation`.",
)
CAUSES = (IN_USE, FRAGMENTED, TERMINATING, UNHEALTHY, HOST_USED_UP, TOO_MANY, TOO_MUCH, SHORT)

_CLOSED = (ReasonSubject.TAINT, ReasonSubject.CORDON, ReasonSubject.NOT_READY)
_PASSED_OVER = (
    "First check the nodes that are not ready, starting, leaving or cordoned, `kubectl get nodes`: they may be those "
    "that offer it."
)
_HANGS = (
    "Check the node for a process that cannot be killed (state D), such as one that hangs in the GPU driver; "
    "a reboot of the node ends it."
)
_SHARES = (
    "Or let the pods that own whole GPUs request shares, too: KAI shares a GPU only among pods with the annotation "
    "`gpu-fraction` or `gpu-memory` and without the resource."
)
_KUBELET = (
    "Find out on the node what its kubelet reserves (kubeReserved, systemReserved, maxPods), or why it reports no more"
)
_ROLLING = {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}}
_KNATIVE = "serving.knative.dev/"
_GPU = "nvidia.com/gpu"
_MOST_NODES = 8
_MOST_HOLDERS = 4
_MOST_STUCK = 64
"""Stuck pods reported for the same waiting pods; each one has its own result, too."""


def large_enough(
    waiting: Waiting, nodes: Sequence[NodeUse], *, host: bool = False
) -> tuple[Sequence[NodeUse], FoundCause | None]:
    """Return the nodes whose total suffices, regardless of the pods there, or the request that exceeds all of them.

    `host`: judge CPU, memory and the like instead of devices and huge pages.
    """
    for name, asked in waiting.counted.items():
        total = offers if name in HOST or name.startswith("hugepages-") else has
        most, largest = max(((total(use.node, name), use.node.name) for use in nodes), key=lambda pair: pair[0])
        if (name in HOST) is not host or (host and not most):
            continue
        large = [use for use in nodes if total(use.node, name) >= asked]
        if not large:
            wanted, least = shown(name, asked), shown(name, most)
            there = f"the most on one node is {least} ({largest})" if most else "no suitable node has any"
            evidence = f"one pod requests {wanted} {name}; {there}"
            cause = TOO_MANY if is_accelerator(name) else TOO_MUCH
            return (), waiting.found(cause, evidence, remedy=tuple(_fewer(name, asked, least if most else "")))
        nodes = large
    return nodes, None


def too_much_memory(waiting: Waiting, nodes: Sequence[NodeUse]) -> FoundCause:
    """Return the result for a share with more memory than any GPU has."""
    most, largest = max((shared_gpus.memory_of(use.node) or ZERO, use.node.name) for use in nodes)
    asked = waiting.share.text if waiting.share is not None else ""
    evidence = f"one pod requests {asked}, in MiB; the most of one GPU is {shown('', most)} ({largest})"
    remedy = (f"Request at most gpu-memory={shown('', most)} of each GPU, or add nodes with larger GPUs.",)
    return waiting.found(TOO_MANY, evidence, remedy=remedy)


def _fewer(name: str, asked: Decimal, most: str) -> Iterator[str]:
    """Yield how such a request becomes one that fits. `most`: the largest total of a node; '' if none has any."""
    if name.startswith("hugepages-"):
        size = name.removeprefix("hugepages-")
        number = int(asked / (amount(size) or asked))
        arguments = f"`hugepagesz={size.removesuffix('i')} hugepages={number}`"
        yield (
            f"Reserve {number} pages on the nodes at boot, by {arguments} on the kernel's command line: the kernel "
            "offers huge pages, no device plugin does. Then restart the kubelet."
        )
        yield f"Or request at most {most}." if most else f"Or remove {name} from the pod."
    elif is_accelerator(name):
        yield f"Request at most {most} {name} per pod, and let several pods share the work."
    else:
        yield f"Request at most {most} {name} per pod."


def find_shortages(
    snapshot: Snapshot, waiting: Waiting, nodes: Sequence[NodeUse], silent: Collection[NodeUse]
) -> Iterator[FoundCause]:
    """Yield why all of the nodes lack something, although they have enough GPUs and are open to the pod.

    Faults are reported before full nodes. `silent` have GPUs and offer none; the reason for that is the origin of the
    shortage.
    """
    too_large = large_enough(waiting, nodes, host=True)[1]
    if too_large is not None:
        yield too_large
        return
    faults = [*_stuck(snapshot, waiting, nodes), *_unhealthy(snapshot, waiting, nodes)]
    faults += [*_unreported(waiting, nodes), *_used_up(waiting, nodes)]
    yield from faults
    if not faults:
        subjects = (*(use.node.subject for use in silent), *stack(snapshot)) if silent else ()
        above = tuple((cause.name, subject) for subject in subjects for cause in OFFERS_NONE)
        whole = [use.node for use in nodes] if _GPU in waiting.devices else []
        unread = list(sharing.find_unread(snapshot, whole, waiting.names))
        yield from unread
        above += tuple((found.cause.name, found.subject) for found in unread)
        yield from (replace(result, because_of=above) for result in _all_in_use(snapshot, waiting, nodes))


def find_by_text(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield shortages from the scheduler's text alone."""
    # No node offers HAMi's shares: only HAMi's scheduler knows them.
    short = [reason for reason in waiting.reasons(ReasonSubject.SHORT) if reason.what not in SHARES]
    closed = tuple(waiting.quote(reason) for reason in waiting.reasons(*_CLOSED) if refused.keeps_all_off(reason))
    most = max((reason.nodes or 0 for reason in short if is_extended(reason.what)), default=0)
    for reason in short:
        if not is_extended(reason.what) and (reason.nodes or 0) <= most:
            continue  # as many nodes have no GPU left, and it is unknown which lack both
        if 0 < (reason.nodes or 0) <= len(snapshot.nodes) - nodes_with(snapshot)[reason.what]:
            continue  # that many nodes never have the resource: not a finding
        # If nodes are visible, their pods were counted.
        stuck = () if snapshot.sees("Node") else _stuck_holders(snapshot).get(reason.what, ())
        refusal = autoscaling.refusal_of(snapshot, waiting.pods)
        yield waiting.found(
            SHORT,
            waiting.quote(reason),
            *closed,
            *refusal,
            subject=f"resource/{reason.what}",
            remedy=(*((_PASSED_OVER,) if closed else ()), SHORT.remedy, *autoscaling.after_refusal(refusal)),
            certainty=Certainty.LIKELY,
            because_of=origins((TERMINATING,), *stuck),
        )


@lru_cache(maxsize=1)
def _stuck_holders(snapshot: Snapshot) -> Mapping[str, Sequence[str]]:
    """Return, by resource, the pods that should be gone and still own some."""
    stuck = (pod for pod in snapshot.pods if pod.spec.node and is_stuck(snapshot, pod))
    return grouped((name, pod.subject) for pod in stuck for name in asked_by(pod.spec))


def find_stuck(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that still own GPUs long after their end, whether or not other pods wait."""
    for pod in snapshot.pods:
        if pod.spec.node and is_stuck(snapshot, pod) and any(is_extended(name) for name in asked_by(pod.spec)):
            yield _terminating(snapshot, pod)


def _stuck(snapshot: Snapshot, waiting: Waiting, nodes: Iterable[NodeUse]) -> Iterator[FoundCause]:
    """Yield the stuck pods of nodes that have room without them."""
    some, asked = ((use, [pod for pod in use.pods if is_stuck(snapshot, pod)]) for use in nodes), waiting.counted
    holders = (pod for use, stuck in some if stuck and use.without(stuck).fits(asked) for pod in stuck)
    yield from (_terminating(snapshot, pod, waiting.names) for pod in islice(holders, _MOST_STUCK))


def _terminating(snapshot: Snapshot, pod: Pod, affected: tuple[str, ...] = ()) -> FoundCause:
    held = ", ".join(f"{shown(name, value)} {name}" for name, value in asked_by(pod.spec).items() if is_extended(name))
    since = int((snapshot.now - pod.meta.deleted).total_seconds() // 60) if pod.meta.deleted else 0
    evidence = [f"{pod.subject} on node/{pod.spec.node} owns {held}; its grace period ended {since} minutes ago"]
    node = snapshot.by_node.get(pod.spec.node)
    if pod.meta.finalizers:
        evidence.append(f"finalizers: {', '.join(pod.meta.finalizers)}")
        see = kubectl("get", pod.meta, "-o", "jsonpath={.metadata.finalizers}")
        remedy: tuple[str, ...] = (f"Find the controller of the finalizer: {see}",)
    elif node is not None and not node.ready:
        evidence.append(f"{node.subject} is not ready, so no kubelet can end the pod")
        gone = "Only if its machine will not return, remove the node and all its pods from the cluster"
        remedy = ("Restore the node.", f"{gone}: {kubectl('delete', node.meta)}")
    else:
        delete = kubectl("delete", pod.meta, "--force", "--grace-period=0")
        remedy = (_HANGS, f"Only if the pod's processes are certainly gone: {delete}")
    because = origins((refused.NOT_READY,), f"node/{pod.spec.node}")
    return FoundCause(TERMINATING, pod.subject, tuple(evidence), remedy, affected, because_of=because)


def _unhealthy(snapshot: Snapshot, waiting: Waiting, nodes: Iterable[NodeUse]) -> Iterator[FoundCause]:
    """Yield devices that nodes have and do not offer, if the pod would fit with them."""
    devices = waiting.devices
    for use in nodes:
        node = use.node
        sick = {name: lost for name in devices if (lost := has(node, name) - offers(node, name))}
        if not sick or any(use.free(name) + sick.get(name, ZERO) < asked for name, asked in waiting.counted.items()):
            continue
        for name in sick:
            numbers = (
                f"{node.subject}: capacity {shown(name, has(node, name))} {name}, "
                f"allocatable {shown(name, offers(node, name))}"
            )
            if unknown_resources.rdma_plugin(name) is not None:
                yield unknown_resources.found_unhealthy_rdma(node, numbers, waiting.names)
                continue
            # If some are still offered, the plugin works and the GPUs themselves are faulty.
            because = () if offers(node, name) else why_none_left(node.subject, stack(snapshot))
            yield FoundCause(UNHEALTHY, node.subject, (numbers,), (), waiting.names, because_of=because)


def _unreported(waiting: Waiting, nodes: Sequence[NodeUse]) -> Iterator[FoundCause]:
    """Yield nodes with enough GPUs that offer no CPU, memory or pods at all, which nothing on them uses up."""
    asked_gpus = {name: asked for name, asked in waiting.counted.items() if is_accelerator(name)}
    for use in nodes:
        absent = sorted(name for name in waiting.counted if name in HOST and not offers(use.node, name))
        if absent and use.fits(asked_gpus):
            evidence = f"{use.node.subject} offers no {' and no '.join(absent)}; {_gpus_free(use, waiting)} free"
            see = f"See its status: {kubectl('describe', use.node.meta)}"
            remedy = (f"{_KUBELET}, by its configuration and its journal; then restart it.", see)
            yield FoundCause(refused.NOT_READY, use.node.subject, (evidence,), remedy, waiting.names)


def _gpus_free(use: NodeUse, waiting: Waiting) -> str:
    return ", ".join(f"{shown(device, use.free(device))} {device}" for device in waiting.devices) or "devices"


def _used_up(waiting: Waiting, nodes: Sequence[NodeUse]) -> Iterator[FoundCause]:
    """Yield resources other than GPUs that are used up on nodes where enough GPUs are free."""
    asked_gpus = {name: asked for name, asked in waiting.counted.items() if is_accelerator(name)}
    with_gpus = [use for use in nodes if use.fits(asked_gpus)]
    for name, asked in sorted(waiting.counted.items()):
        short = [use for use in with_gpus if use.free(name) < asked and (name not in HOST or offers(use.node, name))]
        unhealthy = is_extended(name) and any(offers(use.node, name) < asked <= has(use.node, name) for use in nodes)
        if not short or unhealthy:
            continue
        evidence = [f"one pod requests {shown(name, asked)} {name}"]
        for use in short[:_MOST_NODES]:
            free = _gpus_free(use, waiting)
            amounts = f"{shown(name, use.free(name))} of {shown(name, offers(use.node, name))} {name} free"
            evidence.append(f"{use.node.subject}: {free} free, but only {amounts}; used by {_holders(use, name)}")
        see = kubectl("describe", short[0].node.meta)
        remedy = (
            f"Find the users of {name} on the GPU nodes, and keep pods without GPUs off these nodes: {see}",
            f"Or request less {name} per GPU.",
        )
        yield waiting.found(HOST_USED_UP, *evidence, subject=f"resource/{name}", remedy=remedy)


def _all_in_use(snapshot: Snapshot, waiting: Waiting, nodes: Sequence[NodeUse]) -> Iterator[FoundCause]:
    refusal = autoscaling.refusal_of(snapshot, waiting.pods)
    for name, asked in waiting.devices.items():
        free = [use.free(name) for use in nodes]
        if not free or max(free) >= asked:
            continue
        scattered = sum(free) >= asked
        total = f"{shown(name, Decimal(sum(free)))} {name} free on {counted(len(nodes), 'eligible node')}"
        share = f" ({waiting.share.text} by annotation: a GPU that is free or shared)" if waiting.share else ""
        evidence = (
            f"one pod requests {shown(name, asked)}{share}; {total}",
            *_owners(name, sorted(nodes, key=lambda use: -use.free(name)) if scattered else nodes),
            *shared_gpus.without_label(waiting, nodes),
            *refusal,
        )
        otherwise = (_move(nodes, name),) if scattered else _wait(waiting, name, refusal)
        remedy = tuple(_end_old(waiting, nodes)) or tuple(otherwise)
        cause = FRAGMENTED if scattered else IN_USE
        yield waiting.found(cause, *evidence, subject=f"resource/{name}", remedy=remedy)


def _wait(waiting: Waiting, name: str, refusal: Sequence[str]) -> Iterator[str]:
    yield f"List the owners of {name}: {command('gpu-healthcheck', 'status', '--allocation')}"
    yield "Stop unneeded workloads, give the waiting pods a higher priority, or add nodes."
    yield from autoscaling.after_refusal(refusal)
    if waiting.share is not None:
        yield _SHARES


def _end_old(waiting: Waiting, nodes: Iterable[NodeUse]) -> Iterator[str]:
    """Yield how an update goes on if its new pod waits for the GPUs of an old one, which ends only when it is ready."""
    pod = waiting.pods[0]
    name, revision = _revision(pod)
    for use in nodes if name else ():
        others = (each for each in use.pods if each.meta.namespace == pod.meta.namespace and each.meta.deleted is None)
        old = [each for each in others if _revision(each)[0] == name and _revision(each)[1] != revision]
        if old and use.without(old).fits(waiting.counted):
            yield (
                f"An update waits for itself: {old[0].subject} keeps its GPUs until {pod.subject} is ready. "
                "Let the old pod end first (without another replica, nothing serves meanwhile): "
                f"{_ending(pod.meta.namespace, name, _revision(old[0])[1])}"
            )
            if not name.startswith(_KNATIVE):
                yield "Set that in the chart or the object that creates it, too, or the next update waits again."
            yield "Or add a node, so that both have room."
            return


def _ending(namespace: str, name: str, old: str) -> str:
    if name.startswith(_KNATIVE):
        return command("kubectl", "-n", namespace, "delete", "revisions.serving.knative.dev", old)
    patch = json.dumps(_ROLLING, separators=(",", ":"))
    return command("kubectl", "-n", namespace, "patch", "deployment", name, "--type=merge", "-p", patch)


def _revision(pod: Pod) -> tuple[str, str]:
    """Return the Deployment, or service of Knative, of a pod, and its revision; ('', '') for other pods."""
    labels, owner = pod.meta.labels, pod.meta.owner
    if f"{_KNATIVE}revision" in labels:
        return _KNATIVE + labels.get(f"{_KNATIVE}service", ""), labels[f"{_KNATIVE}revision"]
    template = labels.get("pod-template-hash", "")
    is_ours = owner is not None and owner.kind == "ReplicaSet" and template
    return (owner.name.removesuffix(f"-{template}"), template) if owner is not None and is_ours else ("", "")


def _owners(name: str, nodes: Sequence[NodeUse]) -> Iterator[str]:
    for use in nodes[:_MOST_NODES]:
        offered, free = shown(name, offers(use.node, name)), shown(name, use.free(name))
        yield f"{use.node.subject}: {offered} allocatable, {free} free, used by {_holders(use, name)}"
    if len(nodes) > _MOST_NODES:
        yield f"and {counted(len(nodes) - _MOST_NODES, 'more node')}"


def _holders(use: NodeUse, name: str) -> str:
    holders = use.holders(name)
    first = ", ".join(
        f"{shared_gpus.holder(use, pod)} ({shown(name, value)})" for value, pod in holders[:_MOST_HOLDERS]
    )
    more = len(holders) - _MOST_HOLDERS
    return f"{first} and {more} more" if more > 0 else first or "no visible pod"


def _move(nodes: Iterable[NodeUse], name: str) -> str:
    last = (use.holders(name)[-1:] for use in nodes if use.free(name))
    small = min(((value, pod.subject) for some in last for value, pod in some), default=None)
    first = f"Move the smallest pods together, {small[1]} first" if small else "Move small pods together"
    return f"{first}, so that one node has enough free; or request fewer {name} per pod."
