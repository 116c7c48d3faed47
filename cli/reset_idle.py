"""`gpu-healthcheck reset-idle`: reset the GPUs of one idle node with RESET findings, with the account of this pod.

It evicts no pod: a node whose GPUs are in use is left as it is.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, partial

import structlog

from gpu_healthcheck.cli.eviction import refused_evictions
from gpu_healthcheck.cli.node_requests import CouldNot, NodeRequests
from gpu_healthcheck.cli.output.progress import NodeProgress
from gpu_healthcheck.cli.reset_node import POLL_SECONDS, NodeReset, ResetOptions, ResetOutcome
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, NotFound
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.cluster.retries import CommandRetries, Interrupted
from gpu_healthcheck.healthcheck.deep.claim import RunKind
from gpu_healthcheck.healthcheck.deep.reset_command import OPERANDS
from gpu_healthcheck.healthcheck.deep.reset_plan import reset_targets
from gpu_healthcheck.healthcheck.host.log import log_as_json
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, FAULT, Options, exit_code
from gpu_healthcheck.healthcheck.model import Status
from gpu_healthcheck.healthcheck.node.state import MODE
from gpu_healthcheck.healthcheck.operations.drain import DrainPermissions
from gpu_healthcheck.healthcheck.operations.reset_job import (
    AUTOMATION,
    MAY_NEED_RESET,
    is_left_off,
    is_reset_now,
    job_name,
    why_not_automatic,
)

log = structlog.get_logger()

_SECONDS = 300.0
"""Longest wait until the GPUs are free of the operator's operands, and until pods can request them again."""
_MOST_NAMED = 20


def main(arguments: list[str] | None = None) -> int:
    Options("reset-idle", __doc__).parse_args(arguments)
    log_as_json("info")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    cluster = Cluster()
    try:
        name = next(_names(cluster, datetime.now(UTC)), "")
        if not name:
            log.info("no node to reset")
            return 0
        outcome = _reset(cluster, name, stopping)
    except (CouldNot, ClusterError, Interrupted) as error:
        return _say(error)
    log.info("done", node=name, status=outcome.status, left=list(outcome.left), why_not=outcome.why_not)
    return 0 if outcome.status == Status.PASS.value and not outcome.left else FAULT


def _say(error: Exception) -> int:
    details = error.details if isinstance(error, CouldNot) else ()
    log.error("not reset", why=": ".join(filter(None, [str(error) or "interrupted", "; ".join(details)])))
    return COULD_NOT


def _names(cluster: Cluster, now: datetime) -> Iterator[str]:
    """Yield the nodes to reset, or to return after an interrupted reset; none while another reset is active."""
    for node in cluster.nodes.select(f"{MODE}={RunKind.RESET.value}"):
        if is_reset_now(node, now):
            log.info("another reset is active", node=node.name)
            return
    for label in OPERANDS:
        for node in cluster.nodes.select(f"{label}=false"):
            if is_left_off(node, now) and not _foreign_job(cluster, node.name, is_new=bool(reset_targets(node, ()))):
                yield node.name
    heartbeats = cache(partial(cluster.leases.heartbeats, now))
    skipped = 0
    for name in cluster.nodes.names(MAY_NEED_RESET):
        why = _why_not(cluster, name, now)
        beat = None if why else heartbeats().get(name)
        if not why and (beat is None or now - beat.renewed > timedelta(seconds=beat.seconds)):
            why = "its agent is silent"
        if not why:
            yield name
        elif (skipped := skipped + 1) <= _MOST_NAMED:
            log.info("skipped", node=name, why=why)


def _why_not(cluster: Cluster, name: str, now: datetime) -> str:
    try:
        node = cluster.nodes.read(name)
    except NotFound:
        return "it is gone"
    why = why_not_automatic(node, now) or _foreign_job(cluster, name) or next(refused_evictions(cluster, node, now), "")
    pod = None if why else next(iter(cluster.pods.list_with_gpus(name)), None)
    return why or (f"in use: {pod}" if pod is not None else "")


def _foreign_job(cluster: Cluster, name: str, *, is_new: bool = True) -> str:
    """Return the reason if the node's Job is a person's; '' otherwise, or if it has ended and no new one is needed.

    This account may not delete it.
    """
    try:
        job = cluster.jobs.read(NAMESPACE, job_name(name))
    except NotFound:
        return ""
    is_in_the_way = job.made_by != AUTOMATION and (is_new or not job.outcome)
    return "" if not is_in_the_way else f"Job {job.namespace}/{job.name} of a person's reset is there"


def _reset(cluster: Cluster, name: str, stopping: threading.Event) -> ResetOutcome:
    progress = NodeProgress(lambda text, *_: log.info(text, node=name), lambda _: None)
    retries, ending = (CommandRetries(event, progress.say, POLL_SECONDS) for event in (stopping, threading.Event()))
    options = ResetOptions((), force=False, allowed=DrainPermissions(), seconds=_SECONDS, is_automatic=True)
    reset = NodeReset(NodeRequests(cluster, name, retries, progress), options, ending)
    return reset.run(reset.plan())


if __name__ == "__main__":
    sys.exit(exit_code(main))
