"""Find why KAI gives a pod no share of a GPU: unknown or too little memory, no GPU to share, or a failed reservation.

KAI holds each shared GPU by a reservation pod with a whole GPU. The pods that share it have the same group label.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl
from gpu_healthcheck.diagnosis.facts.gpu_requests import GpuShare, share_of
from gpu_healthcheck.diagnosis.facts.placement import ZERO, NodeUse
from gpu_healthcheck.diagnosis.facts.quantity import amount
from gpu_healthcheck.diagnosis.facts.symptoms import shortened
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED, severity=CauseSeverity.HIGH)
UNLABELLED = _scheduled(
    "GpuMemoryLabelMissing",
    "Pods request GPU memory from KAI, and a node lacks the label nvidia.com/gpu.memory, from which KAI reads how much "
    "its GPUs have.",
    "Run GPU feature discovery on the node. On a board with unified memory, such as GB10, it writes no such label: set "
    "the label by hand.",
    source="https://github.com/kai-scheduler/KAI-Scheduler/issues/706; pkg/scheduler/api/node_info: DefaultGpuMemory",
)
UNBOUND = _scheduled(
    "BindingFailed",
    "KAI has found a node for a pod, and fails to bind the pod to it, for example because the pod that reserves the "
    "shared GPU does not start.",
    "Fix what the message names: for a reservation, see the pods in the namespace kai-resource-reservation.",
    source="https://github.com/kai-scheduler/KAI-Scheduler, pkg/binder: condition PodBound, event BindingError",
)
CAUSES = (UNLABELLED, UNBOUND)

_GPU, _LABEL = "nvidia.com/gpu", "nvidia.com/gpu.memory"
_PRODUCT = "nvidia.com/gpu.product"
_UNIFIED = re.compile(r"GB10\b|Thor|Orin|Xavier", re.ASCII)
"""Products whose GPU has no memory of its own."""
_GROUP = "runai-gpu-group"
_RESERVATIONS = ("kai-resource-reservation", "runai-reservation")
_FAILED = re.compile(r"Failed to bind pod \S{1,320} to node (\S{1,253}): (.+)", re.ASCII | re.DOTALL)
_MIB = 1 << 20
_MOST = 5


def with_memory(waiting: Waiting, nodes: Sequence[NodeUse]) -> Sequence[NodeUse]:
    """Return the nodes whose GPUs are known to have the requested memory each; all for any other request."""
    wanted = waiting.share.memory if waiting.share is not None else None
    return nodes if wanted is None else [use for use in nodes if (memory_of(use.node) or ZERO) >= wanted]


def find_unlabelled(waiting: Waiting, nodes: Iterable[Node]) -> Iterator[FoundCause]:
    """Yield the nodes whose GPU memory KAI does not know, for pods that request a share."""
    for node in nodes if waiting.share is not None else ():
        if memory_of(node) is None:
            yield _unlabelled(waiting, node)


def without_label(waiting: Waiting, nodes: Iterable[NodeUse]) -> tuple[str, ...]:
    """Return the same nodes as evidence."""
    names = [use.node.subject for use in nodes if waiting.share is not None and memory_of(use.node) is None]
    return (f"no label {_LABEL}, from which KAI reads the memory of GPUs: {named(names, _MOST)}",) if names else ()


def memory_of(node: Node) -> Decimal | None:
    """Return the MiB of each of the node's GPUs, as KAI reads the label; some versions of discovery write bytes."""
    value = amount(node.meta.labels.get(_LABEL, ""))
    return value / _MIB if value is not None and value >= _MIB else value or None


def has_room(use: NodeUse, waiting: Waiting) -> bool:
    """Whether the node has room for a share: on GPUs that are shared already, or on free ones."""
    others = {name: value for name, value in waiting.counted.items() if name != _GPU}
    wanted = _portion(use.node, waiting.share)
    if waiting.share is None or wanted > 1 or not use.fits(others):
        return False
    used: defaultdict[str, Decimal] = defaultdict(Decimal)
    for pod in use.pods:
        for group in _groups(pod) if (share := share_of(pod)) is not None else ():
            used[group] += _portion(use.node, share)
    return sum(1 for portion in used.values() if portion + wanted <= 1) + use.free(_GPU) >= waiting.share.devices


def _portion(node: Node, share: GpuShare | None) -> Decimal:
    """Return the portion of a GPU of the node that a share takes; a whole one if it is unknown."""
    memory = memory_of(node)
    if share is None or share.memory is None:
        return Decimal(1) if share is None or share.fraction is None else share.fraction
    return share.memory / memory if memory else Decimal(1)


def holder(use: NodeUse, pod: Pod) -> str:
    """Return the name of a pod that owns GPUs; for a reservation, the pods that share the GPU."""
    if pod.meta.namespace not in _RESERVATIONS:
        return pod.subject
    shares = ((each, share_of(each)) for each in use.pods if each is not pod and _groups(each) & _groups(pod))
    names = [f"{each.subject} ({share.text})" for each, share in shares if share is not None]
    return f"{pod.subject} for {named(names, _MOST)}" if names else pod.subject


def find_unbound(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield a pod that KAI's binder can't bind."""
    failed = _FAILED.match(waiting.message)
    if failed is None:
        return
    node, why = failed.groups()
    pods = [pod for pod in snapshot.pods_on.get(node, ()) if pod.meta.namespace in _RESERVATIONS]
    states = (shortened(f"{pod.subject}: {pod.phase} {pod.reason} {pod.message}".rstrip()) for pod in pods)
    evidence = (f"the scheduler: {waiting.message}", *list(states)[:_MOST])
    remedy = tuple(_bind(snapshot, node, why, [pod for pod in pods if pod.phase != "Running"]))
    yield waiting.found(UNBOUND, *evidence, remedy=remedy, certainty=Certainty.LIKELY)


def _bind(snapshot: Snapshot, node: str, why: str, failing: Sequence[Pod]) -> Iterator[str]:
    if "scaling up" in why:
        pods = command("kubectl", "-n", "kai-scale-adjust", "get", "pods", "-o", "wide")
        yield f"KAI binds no shares while it waits for new nodes. See its scaling pods, and end those that hang: {pods}"
    elif "reserv" in why.lower():
        on_node = f"--field-selector=spec.nodeName={node}"
        see = command("kubectl", "-n", _RESERVATIONS[0], "get", "pods", "-o", "wide", on_node)
        look = kubectl("describe", failing[0].meta) if failing else see
        yield f"Find out why the pod that reserves the GPU does not run: {look}"
        if not any(pod.over for pod in failing):
            exists = any(each.meta.name == "nvidia" for each in snapshot.runtime_classes)
            state = "must work on the node" if exists or not snapshot.sees("RuntimeClass") else "does not exist"
            yield (
                f"It uses the RuntimeClass nvidia, which {state}. If GPU containers need another class here, or none, "
                "upgrade KAI with `--set binder.resourceReservation.runtimeClassName=NAME`, or with an empty name."
            )
    else:
        yield "Fix what the message names. KAI then tries again."
    log = command("kubectl", "-n", "kai-scheduler", "logs", "-l", "app=binder", "--tail=100")
    yield f"Read the binder's log: {log}"


def _groups(pod: Pod) -> set[str]:
    labels = pod.meta.labels.items()
    return {value for name, value in labels if name == _GROUP or name.startswith(f"{_GROUP}/")}


def _unlabelled(waiting: Waiting, node: Node) -> FoundCause:
    product = node.meta.labels.get(_PRODUCT, "")
    evidence = (
        f"{waiting.names[0]} requests {waiting.share.text if waiting.share else 'a share'}",
        f"{node.subject} has no label {_LABEL}" + (f"; {_PRODUCT}={product}" if product else f" and no {_PRODUCT}"),
        f"the scheduler: {waiting.message}",
    )
    total = int((amount(node.capacity.get("memory", "")) or ZERO) / _MIB)
    by_hand = (
        "The board has unified memory, for which GPU feature discovery writes no label. Set it to the MiB that GPU "
        f"pods may use together, for example all of the node: {kubectl('label', node.meta, f'{_LABEL}={total}')}"
    )
    run = (
        "GPU feature discovery writes the label: let it run on the node, and read its log there. The GPU operator "
        "includes it; the device plugin's chart runs it with the value `gfd.enabled=true`."
    )
    instead = f"Or set the label {_LABEL} by hand, to the MiB of one GPU, which `nvidia-smi` shows on the node."
    remedy = (by_hand,) if total and _UNIFIED.search(product) else (run, instead)
    # KAI needs no label for a fraction, as far as its source shows.
    sure = waiting.share is not None and waiting.share.memory is not None
    certainty = Certainty.PROVEN if sure else Certainty.LIKELY
    return waiting.found(UNLABELLED, *evidence, subject=node.subject, remedy=remedy, certainty=certainty)
