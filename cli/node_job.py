"""Job of a command on one node: created from its template in the cluster, and followed to its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import Struct

from gpu_healthcheck.cli.node_requests import CouldNot, NodeRequests
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Conflict, Forbidden, NotFound
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.cluster.retries import TookTooLong
from gpu_healthcheck.healthcheck.deep.job import JobState, TemplateError, account_of, pod_of
from gpu_healthcheck.healthcheck.node.pods import PodState
from gpu_healthcheck.healthcheck.text.printable import printable

_GONE_SECONDS = 180.0
"""Longest wait for the end of an earlier Job; after it, the node is assumed not to answer."""
_LONGEST_JOB_SECONDS = 86400.0
"""Deadline for a template that has none."""
_SLACK_SECONDS = 180.0
_LONGEST_WARNING = 500
_NEVER = datetime.min.replace(tzinfo=UTC)
_LONGEST_LINE = 500
_SAID_ELSEWHERE = ("event", "level", "timestamp", "logger")


class JobKind(Struct, frozen=True):
    """CronJob with the template, and component of its Jobs, which is the command's name too."""

    cron_job: str
    component: str


class NodeJob:
    """The Job of one node, which has a constant name. Raises CouldNot, ClusterError and Interrupted."""

    def __init__(self, requests: NodeRequests, kind: JobKind, name: str) -> None:
        self.name = name
        self._requests = requests
        self._cluster = requests.cluster
        self._kind = kind
        self._retries = requests.retries
        self._progress = requests.progress

    def read(self) -> JobState | None:
        try:
            return self._retries.ask(partial(self._cluster.jobs.read, NAMESPACE, self.name))
        except NotFound:
            return None

    def template(self) -> Mapping[str, Any]:
        cron_job = self._kind.cron_job
        try:
            template = self._retries.ask(partial(self._cluster.jobs.read_template, cron_job))
            pod_of(template)
        except NotFound:
            raise CouldNot(f"there is no CronJob {NAMESPACE}/{cron_job}: apply kubernetes/manifests/ first") from None
        except TemplateError as error:
            raise CouldNot(f"the CronJob {NAMESPACE}/{cron_job} can't be used: {error}") from None
        return template

    def must_be_ours(self, job: JobState, template: Mapping[str, Any]) -> None:
        """Raise if a Job of that name is not this command's. Its result is not trusted, and it is not deleted."""
        component, account = self._kind.component, account_of(template)
        if (job.component, job.account) != (component, account):
            why = (
                f"its component is '{job.component}' and its account '{job.account}'; expected are '{component}' and "
                f"'{account}'"
            )
        elif job.node != self._requests.name:
            why = f"its pods may run on another node than {self._requests.name}"
        else:
            return
        raise CouldNot(
            f"Job {job.namespace}/{job.name} is not a {component}'s; it is neither followed nor deleted",
            why,
            f"find its creator, then: kubectl delete job -n {job.namespace} {job.name}",
        )

    def started(
        self, template: Mapping[str, Any], make: Callable[[], Mapping[str, Any]], unobserved: str = ""
    ) -> JobState:
        """Return the running Job, found or created. `unobserved` is the uid of an ended Job whose result is shown."""
        try:
            return self._retries.until(partial(self._start, template, make, unobserved), _GONE_SECONDS)
        except TookTooLong:
            raise CouldNot(
                f"Job {NAMESPACE}/{self.name} of an earlier run is not deleted: its pod has not ended"
            ) from None

    def _start(
        self, template: Mapping[str, Any], make: Callable[[], Mapping[str, Any]], unobserved: str
    ) -> JobState | None:
        """Return the running Job, found or created; None while an ended Job is still being deleted."""
        known = self.read()
        if known is not None:
            self.must_be_ours(known, template)
        try:
            if known is None:
                job = self._cluster.jobs.create(make())
                self._progress.say(f"Job {job.namespace}/{job.name} created")
                return job
            if not known.outcome and not known.leaving:
                pods = self._cluster.pods.list_of(known)
                state = f"exists already, and its pod {why}" if pods and (why := pods[-1].waiting) else "runs already"
                self._progress.say(f"Job {known.namespace}/{known.name} {state}; it is followed")
                return known
            if known.uid == unobserved and not known.leaving:
                self._progress.say(
                    f"Job {known.namespace}/{known.name} has ended: this is its result. Run the same "
                    "command again to repeat it"
                )
                return known
            if not known.leaving:
                self._cluster.jobs.delete(known)
                self._progress.say(f"Job {known.namespace}/{known.name} of an earlier run deleted ({known.outcome})")
        except (Conflict, NotFound):
            pass  # created or deleted by another client in between
        return None

    def followed(
        self, job: JobState, template: Mapping[str, Any], meanwhile: Callable[[], None] = lambda: None
    ) -> tuple[Following, JobState]:
        """Wait for the end of the Job. `meanwhile` is called before each read."""
        following, seconds = Following(self._requests, job), _deadline_seconds(template)

        def poll() -> JobState | None:
            meanwhile()
            return following.poll()

        try:
            return following, self._retries.until(poll, seconds)
        except TookTooLong:
            raise CouldNot(f"{following.title} has not ended within {seconds:g} s", following.last_message) from None


class Following:
    """One Job, polled for its pod, its log and its end."""

    def __init__(self, requests: NodeRequests, job: JobState) -> None:
        self._cluster = requests.cluster
        self._job = job
        self._retries = requests.retries
        self._progress = requests.progress
        self._lines: dict[str, LogLines] = {}
        self._waiting = ""
        self._last_notice = ""
        self._last_line = ""
        self.title = f"Job {job.namespace}/{job.name}"
        self._end = f"kubectl delete job -n {job.namespace} {job.name}"

    @property
    def last_message(self) -> str:
        """Return the last line of the Job's log, and later messages about the Job and its pod."""
        return "; ".join(filter(None, [self._last_line, self._last_notice])) or "nothing"

    def poll(self) -> JobState | None:
        """Report what is new, and return the Job if it has ended."""
        try:
            job = self._cluster.jobs.read(self._job.namespace, self._job.name)
        except NotFound:
            job = None
        if job is None or job.uid != self._job.uid:
            raise CouldNot("its Job was deleted, possibly with the node")
        # A log that is read after the end of the Job is complete.
        pods = self._cluster.pods.list_of(job)
        if pods:
            self._report_pod(pods[-1])
        elif not job.outcome:
            self._report_missing_pod(job)
        return job if job.outcome else None

    def _report_missing_pod(self, job: JobState) -> None:
        self._progress.stage("its Job has no pod yet")
        why = "it is suspended by a queue or a person" if job.suspended else self._warning(job.uid)
        if why:
            self._report_once(f"{self.title} has no pod: {why}")

    def _report_pod(self, pod: PodState) -> None:
        if pod.waits_for:
            # If the pod can't be scheduled, its condition has the same message as the Events.
            more = self._warning(pod.uid) if pod.node else f"fix that, or end the run: {self._end}"
            why = "; ".join(filter(None, [pod.waiting, more]))
            self._progress.stage(f"its pod {why}")
            if why == self._waiting:  # most pods start before the second poll
                self._report_once(f"pod {pod.name} {why}")
            self._waiting = why
            return
        lines = self._lines.setdefault(pod.uid, LogLines())
        try:
            log = self._cluster.pods.read_log_of(pod, lines.since, lambda: self._retries.is_over)
            for line in lines.take(log):
                self._progress.stage(line)
                self._progress.say(line)
                self._last_line, self._last_notice = line, ""
        except ClusterError as error:
            self._report_once(f"the log of pod {pod.name} can't be read now: {error}")
        if pod.ended:
            self._report_once(f"pod {pod.name} ended: {pod.ended}")

    def _warning(self, uid: str) -> str:
        """Return the newest warning Event about the object; '' without one, or without permission to read Events."""
        try:
            return "".join(self._cluster.events.list_warnings(self._job.namespace, uid)[-1:])[:_LONGEST_WARNING]
        except Forbidden:
            return ""

    def _report_once(self, text: str) -> None:
        """Report a state once while it does not change."""
        if text != self._last_notice:
            self._progress.say(text)
        self._last_notice = text


def _deadline_seconds(template: Mapping[str, Any]) -> float:
    """Return the longest duration of a Job of this template, with a margin to observe its end."""
    result = template["spec"].get("activeDeadlineSeconds")
    return (result if isinstance(result, int) else _LONGEST_JOB_SECONDS) + _SLACK_SECONDS


class LogLines:
    """Remove repeated lines from a log that is read repeatedly, each time from the second of its last line."""

    def __init__(self) -> None:
        self._last = (_NEVER, "")

    @property
    def since(self) -> datetime | None:
        """Return the start of the next read; None for the beginning."""
        return self._last[0] if self._last[1] else None

    def take(self, text: str) -> Iterator[str]:
        """Yield the new lines of `text` that begin with a time; lines without one are skipped."""
        for line in text.split("\n"):
            stamp, _, message = line.partition(" ")
            try:
                at = datetime.fromisoformat(stamp)
            except ValueError:
                continue
            # Of two lines in one microsecond, the text of the timestamp decides: it may have more digits.
            if at.tzinfo and (at, stamp) > self._last:
                self._last = (at, stamp)
                yield log_line(message)


def log_line(line: str) -> str:
    """Return a JSON log line as words, without empty values; any other line unchanged. At most 500 characters."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or "event" not in entry:
        return printable(line, _LONGEST_LINE)
    entries = ((key, value) for key, value in entry.items() if key not in _SAID_ELSEWHERE)
    rest = ", ".join(f"{key} {_plain(value)}" for key, value in entries if value not in ("", [], {}, None))
    level = f"{entry['level']}: " if entry.get("level") not in ("info", "debug", None) else ""
    return printable(f"{level}{entry['event']}{f' ({rest})' if rest else ''}", _LONGEST_LINE)


def _plain(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return "; ".join(value)
    return value if isinstance(value, str) else json.dumps(value)
