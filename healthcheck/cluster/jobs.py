"""Jobs and their templates, and all other workloads of this project."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from gpu_healthcheck.healthcheck.cluster.connection import Requests, created
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.deep.job import (
    COMPONENT_LABEL,
    MADE_BY_LABEL,
    SHOWN,
    JobState,
    account_of,
    claims_devices,
    tested_node,
)
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.printable import printable

_JOBS = "/apis/batch/v1/namespaces/{}/jobs"


class PodOwner(Struct, frozen=True):
    """A pod, or an object that runs pods. `kind` is the name that kubectl uses, such as `daemonsets`."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Jobs(Requests):
    """Reads and writes Jobs, their template, and the owners of pods."""

    def read_template(self, cron_job: str) -> dict[str, Any]:
        """Return the Job template of one of this project's CronJobs."""
        path = f"/apis/batch/v1/namespaces/{NAMESPACE}/cronjobs/{quote(cron_job)}"
        template = (self._json("get", path, "cronjobs").get("spec") or {}).get("jobTemplate")
        return template if isinstance(template, dict) else {}

    def select(self, namespace: str, selector: str) -> tuple[list[JobState], str]:
        """Return the Jobs with these labels, and the resource version for a watch without gaps."""
        jobs: list[JobState] = []
        version = ""
        for page in self._listing(_JOBS.format(namespace), "jobs", {"labelSelector": selector}):
            jobs += self._each("jobs", page.get("items") or [], _job)
            version = str(page.get("metadata", {}).get("resourceVersion", ""))
        return jobs, version

    def watch(self, namespace: str, selector: str, since: str, seconds: int) -> Iterator[tuple[JobState, bool]]:
        """Yield each change of these Jobs after the listing `since`, and whether the Job still exists.

        The watch ends after `seconds` at the latest.
        """
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(seconds, 1)),
        }
        for kind, job in self._watch(_JOBS.format(namespace), "jobs", query):
            yield _job(job), kind != "DELETED"

    def read(self, namespace: str, name: str) -> JobState:
        return _job(self._json("get", f"{_JOBS.format(namespace)}/{quote(name)}", "jobs"))

    def create(self, job: Mapping[str, Any]) -> JobState:
        """Create the Job. Raises Conflict if the name exists."""
        return _job(self._json("create", _JOBS.format(job["metadata"]["namespace"]), "jobs", job))

    def note_shown(self, job: JobState, now: datetime) -> None:
        """Record on the Job that its result was shown. Raises Conflict if another Job now has its name."""
        patch = {"metadata": {"uid": job.uid, "annotations": {SHOWN: timestamp(now)}}}
        self._json("patch", f"{_JOBS.format(job.namespace)}/{quote(job.name)}", "jobs", patch, merge="merge")

    def delete(self, job: JobState) -> None:
        """Delete a Job, which remains visible until its pods have ended.

        Raises Conflict if another Job now has its name.
        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": job.uid},
        }
        self._json("delete", f"{_JOBS.format(job.namespace)}/{quote(job.name)}", "jobs", options)

    def list_workloads(self, selector: str) -> Iterator[PodOwner]:
        """Yield active workloads and bare pods with these labels, in all namespaces: not ended and not suspended."""
        for path, resource, has_ended in _WORKLOADS:
            for page in self._pages(path, resource, {"labelSelector": selector}):
                if not has_ended(page):
                    yield PodOwner(resource, page["metadata"]["namespace"], page["metadata"]["name"])


def _job(job: Mapping[str, Any]) -> JobState:
    metadata = job["metadata"]
    return JobState(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        node=tested_node(job),
        created=created(metadata) or datetime.now(UTC),
        outcome=_outcome(job),
        leaving="deletionTimestamp" in metadata,
        suspended=(job.get("spec") or {}).get("suspend") is True,
        unshown=(metadata.get("annotations") or {}).get(SHOWN) == "",
        component=str((metadata.get("labels") or {}).get(COMPONENT_LABEL, "")),
        made_by=str((metadata.get("labels") or {}).get(MADE_BY_LABEL, "")),
        account=account_of(job),
        claims=claims_devices(job),
    )


def _outcome(job: Mapping[str, Any]) -> str:
    conditions = (job.get("status") or {}).get("conditions") or ()
    ended = {condition.get("type"): condition for condition in conditions if condition.get("status") == "True"}
    if "Failed" in ended:
        return printable(str(ended["Failed"].get("reason") or "Failed"))
    return "Complete" if "Complete" in ended else ""


def _is_suspended(cron_job: Mapping[str, Any]) -> bool:
    return (cron_job.get("spec") or {}).get("suspend") is True


def _pod_has_ended(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


_WORKLOADS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("/apis/apps/v1/daemonsets", "daemonsets", lambda _: False),
    ("/apis/apps/v1/deployments", "deployments", lambda _: False),
    ("/apis/batch/v1/cronjobs", "cronjobs", _is_suspended),
    ("/apis/batch/v1/jobs", "jobs", lambda job: bool(_job(job).outcome)),
    ("/api/v1/pods", "pods", _pod_has_ended),
)
"""Our workloads and pods: API path of each kind, and the test whether an object has ended or is suspended."""
