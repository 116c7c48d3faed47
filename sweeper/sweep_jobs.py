"""The Job that tests one node, from the template in the cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from healthcheck.deep.job import COMPONENT_LABEL, JobName, JobState, job_on, pod_of, short_name
from healthcheck.node.devices import CLAIM_TEMPLATE
from sweeper.select import Candidate

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
