"""Selection of the nodes that a sweep tests now, with the reason for each other node, and the Job of each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.deep.claim import claim_on
from gpu_healthcheck.healthcheck.deep.due import (
    Attempt,
    DeepTest,
    engine_obstacle,
    is_due,
    is_overdue,
    last_attempt,
    last_deep_test,
    obstacle,
)
from gpu_healthcheck.healthcheck.deep.job import COMPONENT_LABEL, JobName, JobState, job_on, pod_of, short_name
from gpu_healthcheck.healthcheck.node.devices import CLAIM_TEMPLATE
from gpu_healthcheck.healthcheck.node.gpu_resources import GpuPod
from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE, KEEPS_AWAY, RESULTS, NodeState
from gpu_healthcheck.healthcheck.node.tolerations import tolerates
from gpu_healthcheck.healthcheck.text.moments import timestamp

_RETRY_SHARE = 4
"""A node whose last run had no verdict is tried again after a quarter of the interval."""
_NEVER = datetime.min.replace(tzinfo=UTC)
_NO_ATTEMPT = Attempt(_NEVER)
_SHARING, _MPS = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy"), "mps"
"""Labels of NVIDIA's feature discovery and of GKE."""
_BY_MPS = "MPS shares its GPUs, so a test's pod gets a part of one: only an agent of the full image can run level 2"


class SweepLimits(Struct, frozen=True):
    """Limits of the settings: number of nodes at the same time, and share of an instance type."""

    nodes: int
    percent: int


class Candidate(Struct, frozen=True):
    """Facts about one GPU node for the selection; small, because a fleet has thousands."""

    name: str
    uid: str
    instance_type: str
    gpus: Mapping[str, int]
    tested: DeepTest | None
    tried: Attempt | None
    """Last run without a verdict."""
    obstacle: str
    """Reason on the node against a test; '' without one."""
    under_run: bool
    overdue: bool
    interval: timedelta
    """Period of its deep tests; 0: none."""
    devices: int = 0
    """GPUs that DRA allocates."""


class Decision(Struct, frozen=True):
    """Decision for one node. `why` is the reason against a test; '' for a selected node."""

    node: Candidate
    why: str


def candidate(
    node: NodeState,
    heartbeat_valid_until: datetime | None,
    tolerations: Sequence[Mapping[str, Any]],
    interval: timedelta,
    now: datetime,
) -> Candidate | None:
    """Return the facts of a node; None without GPUs and without an agent's verdict.

    `heartbeat_valid_until`: expiry of its agent's heartbeat. `tolerations` are those of the sweep's pods.
    """
    if not node.gpus and node.devices is None and RESULTS not in node.annotations:
        return None
    tested = last_deep_test(node, now)
    return Candidate(
        name=node.name,
        uid=node.uid,
        instance_type=node.labels.get(INSTANCE_TYPE, ""),
        gpus=node.gpus,
        tested=tested,
        tried=last_attempt(node, now),
        obstacle=obstacle(node, heartbeat_valid_until, now)
        or _kept_away(node, tolerations)
        or _shared(node)
        or engine_obstacle(node),
        under_run=claim_on(node, now) is not None,
        overdue=is_overdue(node, tested, interval, now),
        interval=interval,
        devices=node.devices.gpus if node.devices else 0,
    )


def select(
    nodes: Sequence[Candidate],
    busy: Mapping[str, str],
    tried: Mapping[str, Attempt],
    most_nodes: int,
    limits: SweepLimits,
    now: datetime,
) -> list[Decision]:
    """Return one decision per node, longest untested first.

    `busy`: holders of the GPUs by node name. `tried`: last Job by node name. `most_nodes`: nodes that may still be
    selected.
    """
    of_type = Counter(node.instance_type for node in nodes)
    used = Counter(node.instance_type for node in nodes if node.under_run)
    decisions = []
    for node in sorted(nodes, key=lambda node: (_last(node, tried), node.name)):
        why = _unfit(node, busy.get(node.name, ""), tried.get(node.name, _NO_ATTEMPT), now)
        allowed = max(1, of_type[node.instance_type] * limits.percent // 100)
        if not why and used[node.instance_type] >= allowed:
            named = node.instance_type or "unknown type"
            why = f"{used[node.instance_type]} of {of_type[node.instance_type]} nodes ({named}) have a deep test"
        if not why and most_nodes <= 0:
            why = f"it is tested later: MAX_NODES_PER_SWEEP is {limits.nodes}"
        if not why:
            used[node.instance_type] += 1
            most_nodes -= 1
        decisions.append(Decision(node, why))
    return decisions


def busy_nodes(
    pods: Iterable[GpuPod], holders: Mapping[str, str] | None = None, given_out: Collection[str] = ()
) -> dict[str, str]:
    """Return, by node name, a description of one pod that owns GPUs there.

    `holders` maps node names to owners of claims; None if claims are not visible. They count only on nodes of
    `given_out`, with known devices: elsewhere a claim may be for a GPU of any driver.
    """
    known = given_out if holders is not None else ()
    of_pods = {pod.node: str(pod) for pod in pods if not pod.only_claims or pod.node not in known}
    return {**(holders or {}), **of_pods}


def _last(node: Candidate, tried: Mapping[str, Attempt]) -> datetime:
    of_record = node.tried.at if node.tried else _NEVER
    return max(node.tested.at if node.tested else _NEVER, of_record, tried.get(node.name, _NO_ATTEMPT).at)


def _unfit(node: Candidate, holder: str, tried: Attempt, now: datetime) -> str:
    """Return the reason against the node that is independent of other nodes; '' without one."""
    if not node.interval:
        return "DCGM_L2_INTERVAL is 0 for it: it has no deep tests"
    if node.tested and not is_due(node.tested, node.interval, now):
        return f"tested at {timestamp(node.tested.at)}"
    if node.obstacle:
        return node.obstacle
    if holder:
        return f"in use: {holder}"
    # The later of record and Job counts; a record belongs to the Job that began before it.
    attempt = node.tried if node.tried and node.tried.at >= tried.at else tried
    # The record is as new as its Job, so that Job had a verdict.
    in_vain = node.tested is None or attempt.at > node.tested.at
    return str(attempt) if in_vain and now - attempt.at < node.interval / _RETRY_SHARE else ""


def _kept_away(node: NodeState, tolerations: Sequence[Mapping[str, Any]]) -> str:
    """Return the reason of a taint that the sweep's pod does not tolerate."""
    for taint in node.taints:
        if taint.get("effect") in KEEPS_AWAY and not any(tolerates(toleration, taint) for toleration in tolerations):
            return f"its taint {taint.get('key')} keeps the sweep away"
    return ""


def _shared(node: NodeState) -> str:
    """Return why no pod can own all GPUs. NVIDIA's plugin rejects a second replica with MPS, whatever its settings.

    With time-slicing this depends on a setting of the plugin, which shows only when it rejects a Job.
    """
    return _BY_MPS if any(node.labels.get(key) == _MPS for key in _SHARING) else ""


COMPONENT = "sweep"
SELECTOR = f"{COMPONENT_LABEL}={COMPONENT}"
_BEGINNING = "gpu-sweep"
_CLAIM = "gpus"
_FRESH = timedelta(seconds=60)
"""Time before a Job's start: its claim must exist before its pod can be scheduled, and the scheduler retries after 10
s.
"""


class JobSettings(Struct, frozen=True):
    """Settings for each Job."""

    namespace: str
    deadline_seconds: int
    """Longest time from the start to the end of a Job, including the wait for scheduling."""


def job_for(template: Mapping[str, Any], node: Candidate, order: JobSettings, at: datetime) -> dict[str, Any]:
    """Return the Job for one node. Raises TemplateError.

    It requests every GPU that the node advertises, by a device plugin or DRA. The scheduler then proves that they are
    unused and reserves them for the test. The Job can run on that node only.
    """
    job = job_on(template, JobName(job_name(node.name, at), order.namespace, COMPONENT), node.name, node.uid)
    pod, container = pod_of(job)
    job["spec"]["activeDeadlineSeconds"] = order.deadline_seconds
    resources = container.setdefault("resources", {})
    if node.devices:
        pod["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": CLAIM_TEMPLATE}]
        resources["claims"] = [{"name": _CLAIM}]
    for kind in ("requests", "limits"):
        resources[kind] = {**(resources.get(kind) or {}), **{name: str(count) for name, count in node.gpus.items()}}
    return job


def job_name(node_name: str, at: datetime) -> str:
    """Return a name that is new at each attempt: the last Job may still exist."""
    return short_name(_BEGINNING, node_name, f"{node_name} {at.isoformat()}")


def in_the_way(jobs: Iterable[JobState], unplaced: Iterable[datetime]) -> list[JobState]:
    """Return the Jobs with claimed devices that work may need.

    `unplaced`: since when each pod is unschedulable. A pod that was unschedulable well before a Job began waits for
    something else: those devices were idle then.
    """
    newest = max(unplaced, default=None)
    return [] if newest is None else [job for job in jobs if job.claims and newest >= job.created - _FRESH]


def tolerations(template: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the tolerations of the sweep's pods. Raises TemplateError."""
    pod, _ = pod_of(template)
    return pod.get("tolerations") or ()
