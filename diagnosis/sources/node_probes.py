"""`diagnose --probe-nodes`: check nodes without an agent's record once, by a pod on each that is removed afterwards.

The pod is removed at the end of the command, also by Ctrl-C, SIGTERM and SIGHUP, and whatever the node's kubelet does:
each of its answers has a limit. After SIGKILL, the kubelet ends the pod after LONGEST_SECONDS, and the next such
command removes it.
"""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import NodeRecord, read_record
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, NotFound, Refused, Unavailable
from gpu_healthcheck.healthcheck.cluster.installation import Right
from gpu_healthcheck.healthcheck.cluster.retries import CommandRetries, Interrupted, RetryLimits, TookTooLong
from gpu_healthcheck.healthcheck.deep.job import TemplateError
from gpu_healthcheck.healthcheck.node.pods import PodState, pod_state
from gpu_healthcheck.healthcheck.operations.probe_pod import (
    LONGEST_SECONDS,
    SELECTOR,
    is_left_over,
    probe_pod,
    with_image,
)
from gpu_healthcheck.healthcheck.text.printable import printable

_LOOK_SECONDS, _MARGIN_SECONDS = 0.5, 15.0
_GONE_SECONDS = 20.0
"""Longest wait for the kubelet to end a pod."""
_APPEARS_SECONDS = 35.0
"""Time in which a pod may appear after the answer to its creation was lost: a webhook may take 30 s."""
_NO_IMAGE = ("ErrImageNeverPull", "InvalidImageName", "ImagePullBackOff", "CreateContainerConfigError")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST_LINE = 500
_VERBS = ("create", "get", "list", "delete")


class NodeProbeAnswer(Struct, frozen=True):
    """Answer of the pod on a node, or the reason without one. `left` names a pod that could not be removed."""

    record: NodeRecord | None = None
    why_not: str = ""
    left: str = ""


class NodeProbeError(Exception):
    """No node can be probed. The message has the reasons, one per line."""


def _template(cluster: Cluster, image: str) -> dict[str, Any]:
    """Return the pod template of the agent in the cluster, or of this version.

    Raises NodeProbeError, ClusterError.
    """
    try:
        template = cluster.pods.read_agent_daemon_set()["spec"]["template"]
    except (NotFound, Forbidden) as error:
        if not image:
            raise NodeProbeError(f"the agent's image can't be read ({error}): set --probe-image") from error
        text = (files("gpu_healthcheck.healthcheck.operations") / "agent-daemonset.yaml").read_text("utf-8")
        template = yaml.safe_load(text)["spec"]["template"]
    try:
        return with_image(template, image) if image else template
    except TemplateError as error:
        raise NodeProbeError(str(error)) from error


def _must_have_rights(cluster: Cluster, namespace: str) -> None:
    """Check the permissions. Raises NodeProbeError with the missing ones, and ClusterError."""
    wanted = [Right(verb, "pods", namespace=namespace) for verb in _VERBS]
    wanted.append(Right("get", "pods/log", namespace=namespace))
    if missing := [str(right) for right in wanted if not cluster.rights.is_allowed(right)]:
        raise NodeProbeError("\n  ".join(["your permissions are not enough, and no pod was created", *missing]))


class NodeProbes:
    """Probes of several nodes. `report` is called when the API server stops answering."""

    def __init__(self, cluster: Cluster, image: str, namespace: str, report: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._image = image
        self._namespace = namespace
        self._report = report
        self._stopping = threading.Event()
        self._leaving = threading.Event()
        self._unique = uuid.uuid4().hex

    @property
    def interrupted(self) -> bool:
        return self._stopping.is_set()

    def run(
        self, nodes: Iterable[tuple[str, str]], max_workers: int, probed: Callable[[], None] = lambda: None
    ) -> dict[str, NodeProbeAnswer]:
        """Return the answers of these nodes by name. Raises NodeProbeError, ClusterError.

        A first signal ends the probes, a second one the removal of pods.
        """
        _must_have_rights(self._cluster, self._namespace)
        template = _template(self._cluster, self._image)
        self._remove_leftovers()
        with self._counting_signals(), ThreadPoolExecutor(max_workers, "probe") as threads:
            answers = {node[0]: threads.submit(self._probed, template, node, probed) for node in nodes}
            return {name: answer.result() for name, answer in answers.items()}

    def _remove_leftovers(self) -> None:
        """Remove pods of killed commands, whether or not their kubelets have ended them."""
        now = datetime.now(UTC)
        for pod in self._cluster.pods.list_labelled(self._namespace, SELECTOR):
            if is_left_over(pod, now):
                with suppress(NotFound):
                    self._cluster.pods.delete(self._namespace, pod["metadata"]["name"], grace_seconds=0)

    @contextmanager
    def _counting_signals(self) -> Iterator[None]:
        def count(_number: int, _frame: object) -> None:
            (self._leaving if self._stopping.is_set() else self._stopping).set()

        former = {number: signal.signal(number, count) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, action in former.items():
                signal.signal(number, action)

    def _probed(
        self, template: Mapping[str, Any], node: tuple[str, str], probed: Callable[[], None]
    ) -> NodeProbeAnswer:
        if self.interrupted:
            return NodeProbeAnswer(why_not="interrupted")
        try:
            pod = probe_pod(template, node, self._namespace, self._unique)
        except TemplateError as error:
            return NodeProbeAnswer(why_not=str(error))
        name = pod["metadata"]["name"]
        try:
            self._cluster.pods.create(pod)
        except (Forbidden, Refused, NotFound) as error:
            return NodeProbeAnswer(why_not=str(error))
        except Exception as error:  # noqa: BLE001 - the pod may exist although the answer was lost
            return self._removed(name, NodeProbeAnswer(why_not=str(error)), _APPEARS_SECONDS)
        try:
            answer = self._answer(name)
        except Exception as error:  # noqa: BLE001 - the pod is removed in any case
            answer = NodeProbeAnswer(why_not=f"{type(error).__name__}: {error}")
        probed()
        return self._removed(name, answer)

    def _answer(self, name: str) -> NodeProbeAnswer:
        retries = CommandRetries(self._stopping, self._report, _LOOK_SECONDS)
        seen: list[PodState] = []

        def ended() -> PodState | None:
            raw = self._cluster.pods.read(self._namespace, name)
            seen[:] = [pod_state(raw)]
            is_over = (raw.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            return seen[0] if is_over or seen[0].waits_for.startswith(_NO_IMAGE) else None

        try:
            pod = retries.until(ended, LONGEST_SECONDS + _MARGIN_SECONDS)
            if pod.waits_for:
                return NodeProbeAnswer(why_not=pod.waits_for)
            log = retries.ask(lambda: self._cluster.pods.read_log_of(pod, None, self._stopping.is_set))
        except Interrupted:
            return NodeProbeAnswer(why_not="interrupted")
        except TookTooLong:
            return NodeProbeAnswer(why_not=(seen[0].waits_for if seen else "") or "its check did not finish in time")
        except ClusterError as error:
            return NodeProbeAnswer(why_not="interrupted" if self.interrupted else str(error))
        # Of standard output: a log mixes it with standard error.
        record = read_record(next((line for line in _lines(log) if line.startswith("{")), ""))
        return NodeProbeAnswer(record, "" if record is not None else _without_record(pod, log))

    def _removed(self, name: str, answer: NodeProbeAnswer, appears_seconds: float = 0.0) -> NodeProbeAnswer:
        """Remove the pod, and return the answer, with the pod's name if it could not be removed.

        `appears_seconds`: the time in which it may still appear.
        """
        retries = RetryLimits(
            _GONE_SECONDS, errors=(Unavailable,), sleep=self._leaving.wait, is_over=self._leaving.is_set
        )
        first = (
            replace(retries, seconds=appears_seconds, errors=(Unavailable, NotFound)) if appears_seconds else retries
        )
        try:
            first.ask(lambda: self._cluster.pods.delete(self._namespace, name))
            if not retries.until(lambda: self._is_gone(name), _LOOK_SECONDS):
                # The kubelet does not end it.
                retries.ask(lambda: self._cluster.pods.delete(self._namespace, name, grace_seconds=0))
                return answer if self._is_gone(name) else replace(answer, left=name)
        except NotFound:
            return answer
        except Exception:  # noqa: BLE001 - the person can remove it
            return replace(answer, left=name)
        return answer

    def _is_gone(self, name: str) -> bool:
        try:
            self._cluster.pods.read(self._namespace, name)
        except NotFound:
            return True
        return False


def with_records(snapshot: Snapshot, answers: Mapping[str, NodeProbeAnswer]) -> Snapshot:
    """Return the snapshot with the records of the probed nodes."""
    records = {name: answer.record for name, answer in answers.items() if answer.record is not None}
    nodes = (replace(node, probed=records.get(node.name)) for node in snapshot.nodes)
    return replace(snapshot, nodes=tuple(nodes))


def _without_record(pod: PodState, log: str) -> str:
    last = next(reversed(list(_lines(log))), "")
    return ": ".join(filter(None, (pod.ended or "it printed no record", printable(last, _LONGEST_LINE))))


def _lines(log: str) -> Iterator[str]:
    """Yield the lines without their times; empty lines are left out."""
    return filter(str.strip, (line.partition(" ")[2] for line in log.splitlines()))
