"""Check: IMEX runs if an NVLink fabric spans several nodes and the host is set up to run IMEX."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.catalog.hardware import fabric_of
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    Unobserved,
)
from gpu_healthcheck.healthcheck.probes import services

NOT_RUNNING = Reason(
    "ImexNotRunning",
    Severity.MONITOR,
    "nvidia-imex does not run: it is enabled on this node, and without it jobs can't share GPU memory with other "
    "nodes of the rack.",
    "Start nvidia-imex and read its log; if the DRA driver runs IMEX for jobs, disable nvidia-imex on the host.",
    flickers=True,
    source="NVIDIA IMEX guide; NVSentinel issue 1471 for nodes without it",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    row = fabric_of(expected.instance_type)
    states = evidence[services.SERVICES]
    running = states.find(services.IMEX) is not None
    if row is None or not row.imex:
        yield NotConfigured("no NVLink fabric spans this node and others")
    elif not running and not states.imex_enabled:
        # The DRA driver requires that IMEX is disabled on the host, and runs IMEX in a pod while a job needs it.
        yield NotConfigured("systemd does not start nvidia-imex on this node")
    elif not running and states.of_host and states.is_unsure(services.IMEX):
        why = f"unknown whether the node's own nvidia-imex runs: {states.namesakes(services.IMEX)}"
        yield Unobserved(services.UNCERTAIN, why)
    elif not running and not states.of_host:
        yield Unobserved(services.PROCESSES_HIDDEN, "the host's processes are not visible")
    else:
        if not running:
            detail = f"no process {services.IMEX}, although systemd starts it here"
            yield NOT_RUNNING.on("node", detail)
        namesakes = states.namesakes(services.IMEX)
        summary = ("running" if running else "not running") + (f"; not counted: {namesakes}" if namesakes else "")
        yield Observation(summary, "running", f"{row.instance_type} in fabrics.csv")


CHECK = Check("imex", "3-topology-check", (services.SERVICES,), judge, (NOT_RUNNING,))
