"""Find GPUs that a pod owns and does not use, according to the Prometheus that the user named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta

from gpu_healthcheck.diagnosis.causes.faulty_gpus import FAULTY
from gpu_healthcheck.diagnosis.causes.pod_startup_table import NOT_INJECTED
from gpu_healthcheck.diagnosis.causes.running import CLASS_NOT_NAMED, HIDDEN, NOT_REQUESTED
from gpu_healthcheck.diagnosis.facts.commands import logs
from gpu_healthcheck.diagnosis.facts.gpu_nodes import GPU, WHOLE, gpu_nodes, pool_kind
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods, gpus_of
from gpu_healthcheck.diagnosis.facts.placement import asked_by
from gpu_healthcheck.diagnosis.facts.quantity import count_of
from gpu_healthcheck.diagnosis.facts.utilization import CardLoad, loads
from gpu_healthcheck.diagnosis.hami.cards import cards_of
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Search, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.gpu_use import SERIES, USE
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod

_fault = Family(None, severity=CauseSeverity.LOW)
IDLE = _fault(
    "GpusHeldIdle",
    "A workload owns whole GPUs that were idle for an hour. Checked with `--prometheus` only.",
    "Ask the workload's owner whether it is still needed; read in its log why it waits.",
    source=f"DCGM exporter, recorded as {SERIES}: 0 in every sample of an hour; DCGM has no number for MIG instances",
)
_HOUR = timedelta(hours=1)
_MOST_SHOWN = 4


def find_idle(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield idle GPUs, grouped by the object that made the pods.

    Only pods whose containers have run for an hour with cards of their own are checked.
    """
    pods = {pod.subject: pod for pod in snapshot.pods if _has_run(snapshot, pod)}
    together: defaultdict[str, list[tuple[Pod, str]]] = defaultdict(list)
    held = _held(snapshot) if snapshot.idle_gpus else {}
    for node, idle in loads(snapshot, snapshot.idle_gpus, held).items():
        for name, message in _idle_cards(snapshot.by_node[node], held.get(node, {}), idle):
            if name in pods:
                together[snapshot.line(pods[name].meta)[-1]].append((pods[name], message))
    for subject, some in together.items():
        yield _found(subject, some)


def _has_run(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether all containers with GPUs have run for an hour: a newer one may still load its model."""
    asking = [container.name for container in pod.spec.containers if not container.init and gpus_of(container)]
    since = {state.name: state.started for state in pod.states if state.running and state.started is not None}
    begun = all(name in since and snapshot.now - since[name] > _HOUR for name in asking)
    return bool(asking) and begun and pod.phase == "Running" and pod.meta.deleted is None


def _held(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Return how many whole cards each pod has, by node.

    For a shared card, it is unknown which of its pods left it idle.
    """
    whole = {node.name for node in gpu_nodes(snapshot) if pool_kind(node, GPU) == WHOLE} - cards_of(snapshot).keys()
    held: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for pod in gpu_pods(snapshot):
        if pod.spec.node in whole and not pod.over and (number := int(asked_by(pod.spec).get(GPU, 0))):
            held[pod.spec.node][pod.subject] = number
    return held


def _idle_cards(node: Node, held: Mapping[str, int], idle: list[CardLoad]) -> Iterator[tuple[str, str]]:
    """Yield pods with their idle GPUs.

    If no series names a pod, yield the pods of a node only if all of its cards are idle.
    """
    by_pod = grouped((load.pod, load) for load in idle)
    unnamed = by_pod.pop("", [])
    for name, some in by_pod.items():
        cards = ", ".join(load.uuid or load.index for load in some[:_MOST_SHOWN])
        yield name, f"{name}: {len(some)} of its {held[name]} GPUs on node/{node.name} at 0 % for an hour: {cards}"
    offered = count_of(node.capacity, GPU)
    if not by_pod and offered and len(unnamed) >= offered:
        for name, number in held.items():
            yield (name, f"{name}: owns {number} of the {offered} GPUs of node/{node.name}, all at 0 % for an hour")


def _found(subject: str, some: list[tuple[Pod, str]]) -> FoundCause:
    pod = some[0][0]
    log = logs(pod.meta, "--all-containers", "--tail=20")
    node = f"node/{pod.spec.node}"
    written = origins((HIDDEN, CLASS_NOT_NAMED, NOT_REQUESTED), subject)
    return FoundCause(
        IDLE,
        subject,
        tuple(message for _, message in some),
        (f"Read why it waits: {log}", "Ask its owner whether it is still needed."),
        tuple(pod.subject for pod, _ in some),
        Certainty.LIKELY,
        (*written, *origins((NOT_INJECTED, FAULTY), node)),
    )


SEARCHES = (Search((IDLE,), ("Node", "Pod", USE), find_idle),)
