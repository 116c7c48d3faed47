"""Choice of the pods that are evicted from a Node, and when. Pure functions, no I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.deep.claim import claim_on
from gpu_healthcheck.healthcheck.model import Severity, Status
from gpu_healthcheck.healthcheck.node.evictions import MOST_PODS, EvictionState, PodEviction
from gpu_healthcheck.healthcheck.node.gpu_resources import GpuPod, gpu_pod
from gpu_healthcheck.healthcheck.node.state import EVICT, RELEASE, RESULTS, SEVERITY, STATUS, TAINT, NodeState
from gpu_healthcheck.healthcheck.node.tolerations import tolerates
from gpu_healthcheck.healthcheck.operations.drain import has_ended, why_stays
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord

_SEVERITIES = (Severity.REBOOT.name, Severity.ISOLATE.name)
SELECTOR = f"{SEVERITY} in ({','.join(_SEVERITIES)})"
"""Label selector of the Nodes that EVICT_SEVERITY can concern: few, however large the fleet is."""
_NEVER = ("kube-system", NAMESPACE)
_DEVICE = re.compile(r"(GPU-[0-9a-f-]{36})(::[0-9]+)?\Z", re.ASCII)
"""Device of NVIDIA's device plugin: the UUID of a GPU, with a number if the GPU is shared by time."""
_MOST_GPUS, _LONGEST_NAME = 4096, 253
_SLURM, _SLURM_GROUPS = "slurmd", ("slinky.slurm.net/", "slurm.nebius.ai/")


class Fault(Struct, frozen=True):
    """Findings for which a Node's pods are evicted: the worst one, and the faulty GPUs."""

    reason: str
    severity: Severity
    subject: str
    uuids: frozenset[str] | None
    """UUIDs of the faulty GPUs; None: the fault concerns the whole node, or a UUID is unknown."""

    @property
    def title(self) -> str:
        return f"{self.reason} {self.subject}"

    def __str__(self) -> str:
        return f"{self.reason} ({self.severity.name}) on {self.subject}"


class Target(Struct, frozen=True):
    """A pod that uses a faulty GPU."""

    namespace: str
    name: str
    uid: str
    is_ending: bool
    is_slurm_node: bool
    """The pod is a node of a Slurm cluster: Slurm must drain it, which also requeues its jobs."""
    only_claims: bool = False
    """The pod has ResourceClaims alone, which may be for other devices."""


class EvictionPlan(Struct, frozen=True):
    """Evictions of one Node after one read of it."""

    pods: tuple[PodEviction, ...] = ()
    """All evictions, for the annotation."""
    announced: tuple[PodEviction, ...] = ()
    """The new ones, which must be announced."""
    ready: tuple[PodEviction, ...] = ()
    """Those whose delay has passed."""


def is_selected(node: NodeState) -> bool:
    """Whether the Node matches SELECTOR."""
    return node.labels.get(SEVERITY) in _SEVERITIES


def marks_of(node: NodeState) -> tuple[object, ...]:
    """Return the fields of a Node whose change by another client may change its evictions."""
    return node.uid, node.labels, node.taints, {**node.annotations, EVICT: ""}


def fault_on(node: NodeState, least: Severity | None) -> Fault | None:
    """Return the fault of this severity or worse for which pods must leave the Node; None: no pod is evicted.

    A person who releases the node sets the label `status` or the annotation `release`, before the agent lifts the
    taint.
    """
    if least is None or not node.tainted() or node.labels.get(STATUS) != Status.FAIL or RELEASE in node.annotations:
        return None
    rows = records.on_node(AgentRecord, node, RESULTS).findings or ()
    found = [row for row in rows if row.severity is not None and row.severity >= least and row.reason and row.subject]
    if not found:
        return None
    worst = max(found, key=lambda row: row.severity or Severity.PASS)
    uuids = [(row.about or {}).get("uuid", "") if str(row.subject).startswith("gpu/") else "" for row in found]
    return Fault(
        printable(str(worst.reason), _LONGEST_NAME),
        worst.severity or least,
        printable(str(worst.subject), _LONGEST_NAME),
        frozenset(uuids) if all(uuids) else None,
    )


def stands_back(node: NodeState, now: datetime) -> bool:
    """Whether a deep diagnostic, quarantine or reset uses the node: it drains the node itself."""
    return claim_on(node, now) is not None


def targets(fault: Fault, pods: Iterable[Mapping[str, Any]]) -> list[Target]:
    """Return the pods, given as API objects, that use a faulty GPU and may be evicted."""
    return [_target(pod, held) for pod in pods if (held := gpu_pod(pod)) and _is_concerned(fault, pod, held)]


def plan_evictions(
    found: Iterable[Target], before: Iterable[PodEviction], delay: timedelta, now: datetime
) -> EvictionPlan:
    """Return the evictions of these pods. `before`: those of the Node's annotation, which keep their announcement."""
    known = {pod.uid: pod for pod in before}
    kept, announced, ready = [], [], []
    for target in islice((one for one in found if not one.is_ending or one.uid in known), MOST_PODS):
        eviction = known.get(target.uid) or _announcement(target, now)
        eviction = replace(eviction, due=min(eviction.at or now, now) + delay)
        if target.uid not in known:
            announced.append(eviction)
        if target.is_ending:
            eviction = replace(eviction, state=EvictionState.REQUESTED, why=None)
        elif eviction.state is not EvictionState.SLURM and (eviction.due or now) <= now:
            ready.append(eviction)
        kept.append(eviction)
    return EvictionPlan(tuple(kept), tuple(announced), tuple(ready))


def _announcement(target: Target, now: datetime) -> PodEviction:
    state = EvictionState.SLURM if target.is_slurm_node else EvictionState.ANNOUNCED
    return PodEviction(namespace=target.namespace, name=target.name, uid=target.uid, state=state, at=now)


def _is_concerned(fault: Fault, pod: Mapping[str, Any], held: GpuPod) -> bool:
    if held.namespace in _NEVER or (has_ended(pod) and "deletionTimestamp" not in pod["metadata"]):
        return False
    tolerations = pod["spec"].get("tolerations") or ()
    if why_stays(pod) or any(tolerates(toleration, TAINT) for toleration in tolerations):
        return False
    gpus = list(islice(_gpus(pod, held), _MOST_GPUS))
    are_known = not Counter(held.holds) - Counter(resource for resource, _ in gpus)
    uuids = {uuid for _, uuid in gpus}
    return fault.uuids is None or not are_known or "" in uuids or not uuids.isdisjoint(fault.uuids)


def _gpus(pod: Mapping[str, Any], held: GpuPod) -> Iterator[tuple[str, str]]:
    """Yield each device that the kubelet reports (KEP-4680): its resource, and the UUID of a whole or shared GPU."""
    status = pod.get("status") or {}
    for container in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        for allocated in container.get("allocatedResourcesStatus") or ():
            if (resource := str(allocated.get("name"))) in held.holds:
                for entry in allocated.get("resources") or ():
                    device = _DEVICE.match(str(entry.get("resourceID")))
                    yield resource, device[1] if device else ""


def _target(pod: Mapping[str, Any], held: GpuPod) -> Target:
    metadata = pod["metadata"]
    return Target(
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        is_ending="deletionTimestamp" in metadata,
        is_slurm_node=any(_slurm_marks(pod)),
        only_claims=held.only_claims,
    )


def _slurm_marks(pod: Mapping[str, Any]) -> Iterator[bool]:
    metadata = pod["metadata"]
    yield from (_SLURM in str(value) for value in (metadata.get("labels") or {}).values())
    for owner in metadata.get("ownerReferences") or ():
        yield str(owner.get("apiVersion", "")).startswith(_SLURM_GROUPS) or _SLURM in str(owner.get("name", ""))
    yield from (container.get("name") == _SLURM for container in pod["spec"].get("containers") or ())
