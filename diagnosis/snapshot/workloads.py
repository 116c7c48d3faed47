"""Owners of pods: Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, their own owners, and Kubeflow's jobs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import Meta, read_meta
from diagnosis.snapshot.pods import Condition, PodSpec, read_conditions, read_spec
from healthcheck.operations.pod_removal import MPI_JOB, PYTORCH_JOB, Retries, read_retries

KINDS = (
    *("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "JobSet", "LeaderWorkerSet"),
    *(PYTORCH_JOB, MPI_JOB),
)


class Workload(Struct, frozen=True):
    """Workload with its numbers of pods: `wanted` are requested, `made` exist, and `ready` work.

    A number is None if the object does not report it.
    """

    meta: Meta
    spec: PodSpec | None = None
    """Pod template; None if it creates no pods itself."""
    template_labels: Mapping[str, str] = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    wanted: int | None = None
    made: int | None = None
    ready: int | None = None
    suspended: bool = False
    conditions: tuple[Condition, ...] = ()
    retries: Retries | None = None
    """Failures that it survives; None for kinds without such rules."""

    @property
    def subject(self) -> str:
        return self.meta.subject


def read_workload(kind: str, raw: Fields) -> Workload:
    """Read a workload. Raises ValueError if it has no name."""
    template = (
        raw.at("spec", "template")
        if raw.has("spec", "template", "spec")
        else raw.at("spec", "jobTemplate", "spec", "template")
    )
    wanted, made, ready = _numbers(kind, raw)
    return Workload(
        read_meta(kind, raw),
        read_spec(template.at("spec")) if template.has("spec", "containers") else None,
        template.words("metadata", "labels"),
        raw.words("spec", "selector", "matchLabels"),
        wanted,
        made,
        ready,
        raw.flag("spec", "suspend"),
        read_conditions(raw),
        read_retries(kind, raw.raw),
    )


def _numbers(kind: str, raw: Fields) -> tuple[int | None, int | None, int | None]:
    spec, status = raw.at("spec"), raw.at("status")
    if kind == "DaemonSet":
        keys = "desiredNumberScheduled", "currentNumberScheduled", "numberReady"
        wanted, made, ready = (status.number(key) for key in keys)
    elif kind == "Job":
        active, done = status.number("active") or 0, status.number("succeeded") or 0
        wanted, made = spec.number("parallelism"), active + done + (status.number("failed") or 0)
        ready = status.number("ready")
    else:
        wanted = spec.number("replicas")
        made, ready = status.number("replicas") or 0, status.number("readyReplicas") or 0
    return wanted, made, ready
