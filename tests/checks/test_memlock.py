"""Amount of memory that a pod may lock."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.memlock import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity
from gpu_healthcheck.healthcheck.probes.efa.infiniband import RDMA
from gpu_healthcheck.healthcheck.probes.limits import LIMITS, ProcessLimits
from tests.checks.evidence import P5, judgements, rdma

GIB = 1 << 30


def judge(own: ProcessLimits | None, efa: int = 32) -> list[Judgement]:
    return judgements(CHECK, P5, {RDMA: rdma(efa), LIMITS: own})


@pytest.mark.parametrize(("limit", "message"), [(16 * GIB, "16,384 MiB"), (64 * GIB, "65,536 MiB")])
def test_enough_is_no_finding(limit: int, message: str) -> None:
    assert judge(ProcessLimits(limit)) == [
        Observation(f"a pod may lock {message} of memory", "no limit", "EFA's installer")
    ]


def test_no_limit_is_as_it_should_be() -> None:
    assert judge(ProcessLimits(None)) == [
        Observation("a pod may lock memory without limit", "no limit", "EFA's installer")
    ]


@pytest.mark.parametrize(
    ("limit", "message"),
    [(16 * GIB - 1, "16,383 MiB"), (8 * GIB, "8,192 MiB"), (8 << 20, "8 MiB"), (0, "0 KiB"), (65536, "64 KiB")],
)
def test_less_is_a_finding(limit: int, message: str) -> None:
    assert judge(ProcessLimits(limit))[0] == Finding(
        "MemlockLow", Severity.MONITOR, "node", f"a pod may lock {message} of memory"
    )


def test_outside_of_a_pod_it_is_unknown() -> None:
    assert judge(None) == [NotConfigured("the limit of pods is unknown outside of a pod of this node")]


@pytest.mark.parametrize("own", [None, ProcessLimits(0), ProcessLimits(None)])
def test_a_node_without_efa_needs_none(own: ProcessLimits | None) -> None:
    assert judge(own, efa=0) == [NotConfigured("no EFA device")]
