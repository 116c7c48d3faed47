"""Owners of pods: Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, their own owners, and Kubeflow's jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import field
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.snapshot.meta import ApiObject, read_object
from gpu_healthcheck.diagnosis.snapshot.pods import Conditions, PodSpec
from gpu_healthcheck.healthcheck.operations.pod_removal import MPI_JOB, PYTORCH_JOB, Retries, read_retries
from gpu_healthcheck.healthcheck.text.boundary import At, read, value_at, whole

KINDS = (
    *("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "JobSet", "LeaderWorkerSet"),
    *(PYTORCH_JOB, MPI_JOB),
)
_TEMPLATE, _CRON_TEMPLATE = "spec.template", "spec.jobTemplate.spec.template"


def _pod_template(value: object) -> PodSpec | None:
    return read(PodSpec, value) if value_at(value, "containers") is not None else None


def _job_pods(status: object) -> int:
    return sum(whole(value_at(status, key) or 0) for key in ("active", "succeeded", "failed"))


class Workload(ApiObject, frozen=True):
    """Workload with its numbers of pods: `wanted` are requested, `made` exist, and `ready` work.

    A number is None if the object does not report it.
    """

    spec: Annotated[PodSpec | None, At(f"{_TEMPLATE}.spec", f"{_CRON_TEMPLATE}.spec"), _pod_template] = None
    """Pod template; None if it creates no pods itself."""
    template_labels: Annotated[
        Mapping[str, str], At(f"{_TEMPLATE}.metadata.labels", f"{_CRON_TEMPLATE}.metadata.labels")
    ] = field(default_factory=dict)
    selector: Annotated[Mapping[str, str], At("spec.selector.matchLabels")] = field(default_factory=dict)
    wanted: Annotated[int | None, At("spec.replicas")] = None
    made: Annotated[int | None, At("status.replicas")] = 0
    ready: Annotated[int | None, At("status.readyReplicas")] = 0
    suspended: Annotated[bool, At("spec.suspend")] = False
    conditions: Conditions = ()
    retries: Annotated[Retries | None, At()] = None
    """Failures that it survives; None for kinds without such rules."""


class _DaemonSet(Workload, frozen=True):
    wanted: Annotated[int | None, At("status.desiredNumberScheduled")] = None
    made: Annotated[int | None, At("status.currentNumberScheduled")] = None
    ready: Annotated[int | None, At("status.numberReady")] = None


class _Job(Workload, frozen=True):
    wanted: Annotated[int | None, At("spec.parallelism")] = None
    made: Annotated[int | None, At("status"), _job_pods] = 0
    ready: Annotated[int | None, At("status.ready")] = None


def read_workload(kind: str, raw: Any) -> Workload:
    """Read a workload. Raises ValueError if it has no name, or a value of the wrong type."""
    workload = read_object({"DaemonSet": _DaemonSet, "Job": _Job}.get(kind, Workload), kind, raw)
    return replace(workload, retries=read_retries(kind, raw))
