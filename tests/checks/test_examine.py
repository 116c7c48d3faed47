"""One check cycle: every distinct probe is read once, and a failed probe leaves its cause.

The severities are those of the cluster's policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.checks.examine import CHECK_FAILED, judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Host,
    Judgement,
    NotConfigured,
    Observation,
    Outcome,
    Probe,
    ProbeError,
    Severity,
    Unobserved,
    UnobservedCause,
)
from tests.checks.evidence import untimed
from tests.examples import UNOBSERVED, fault

HOST = Host(Path("/nowhere"))


def counted(name: str, facts: Any = 8) -> tuple[Probe[Any], list[Host]]:
    """Return a probe, and the list of the hosts that it has read."""
    asked: list[Host] = []

    def read(host: Host) -> Any:
        asked.append(host)
        if isinstance(facts, Exception):
            raise facts
        return facts

    return Probe(name, read, object), asked


def check(name: str, *needs: Probe[Any], report: Callable[[Evidence], Any] = lambda _: []) -> Check:
    def judge_it(seen: Evidence, _: Any) -> Iterator[Judgement]:
        yield from report(seen)

    return Check(name, "0-nvidia-smi", needs, judge_it, ())


def test_a_probe_that_two_checks_need_is_read_once() -> None:
    shared, asked = counted("nvml")

    evidence = read_probes(HOST, [check("a", shared), check("b", shared)])

    assert [host.root for host in asked] == [HOST.root]
    assert evidence[shared] == 8


def test_shared_source_is_read_once_in_each_cycle() -> None:
    reads: list[Path] = []

    def scan(root: Path) -> int:
        reads.append(root)
        return len(reads)

    probe, other = (Probe(name, lambda host: host.once(scan), int) for name in ("one", "other"))
    checks = [Check("x", "g", (probe, other), lambda _, __: iter(()), ())]
    host = Host(Path("/node"))

    looks = [read_probes(host, checks) for _ in range(2)]

    assert [(evidence[probe], evidence[other]) for evidence in looks] == [(1, 1), (2, 2)]
    assert reads == [Path("/node")] * 2


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (
            ProbeError("/sys/bus/pci/devices: No such file or directory"),
            "pci: /sys/bus/pci/devices: No such file or directory",
        ),
        (ZeroDivisionError("division by zero"), "pci: ZeroDivisionError: division by zero"),
        (RecursionError("too deep"), "pci: RecursionError: too deep"),
    ],
)
def test_a_probe_that_fails_leaves_its_cause_and_the_others_go_on(error: Exception, detail: str) -> None:
    failing, _ = counted("pci", error)
    working, _ = counted("nvml")
    checks = [check("blind", failing), check("half-blind", working, failing), check("seeing", working)]

    outcomes = judge(checks, read_probes(HOST, checks), Expectation())

    cause = Unobserved(UnobservedCause.named("ProbeFailed"), detail)
    assert untimed(outcomes) == [
        Outcome("blind", "0-nvidia-smi", unobserved=(cause,)),
        Outcome("half-blind", "0-nvidia-smi", unobserved=(cause,)),
        Outcome("seeing", "0-nvidia-smi"),
    ]


@pytest.mark.parametrize(
    "error", [TypeError("'<' not supported"), RecursionError("deep"), OSError(24, "Too many open files")]
)
def test_failing_judge_is_unobserved_alone_and_keeps_its_earlier_judgements(error: Exception) -> None:
    def says(_: Evidence) -> Iterator[Judgement]:
        yield fault()
        raise error

    outcomes = judge(
        [check("a", report=says), check("b", report=lambda _: [fault("Xid48")])], Evidence({}), Expectation()
    )

    assert [[finding.reason for finding in outcome.findings] for outcome in outcomes] == [["Xid79"], ["Xid48"]]
    ((blind,), ()) = (outcome.unobserved for outcome in outcomes)
    assert blind.cause == CHECK_FAILED
    assert blind.detail.startswith(f"a: {type(error).__name__}: ")
    assert "(test_examine.py:" in blind.detail


def test_texts_of_a_failure_are_short_and_printable() -> None:
    def says(_: Evidence) -> Iterator[Judgement]:
        raise ValueError("\x1b[2J\ud800" + "x" * 5000)
        yield

    (outcome,) = judge([check("a", report=says)], Evidence({}), Expectation())

    (blind,) = outcome.unobserved
    assert blind.detail.isprintable()
    assert len(blind.detail) < 300


def test_a_judge_is_not_called_without_its_evidence() -> None:
    probe, _ = counted("nvml")

    (outcome,) = judge([check("a", probe, report=lambda seen: [seen[probe]])], Evidence({}), Expectation())

    assert outcome.unobserved == (Unobserved(UnobservedCause.named("NotLooked"), "nvml was not read"),)


def test_judge_may_yield_several_judgements() -> None:
    words = [fault(), UNOBSERVED, fault("GpuLost")]

    (outcome,) = untimed(judge([check("a", report=lambda _: words)], Evidence({}), Expectation()))

    assert outcome == Outcome("a", "0-nvidia-smi", (fault(), fault("GpuLost")), unobserved=(UNOBSERVED,))
    assert outcome.observed is False


def test_check_that_does_not_apply_is_not_configured() -> None:
    (outcome,) = judge([check("a", report=lambda _: [NotConfigured("no EFA device")])], Evidence({}), Expectation())

    assert (outcome.configured, outcome.observed, outcome.findings) == (False, True, ())
    assert outcome.seen == (Observation("no EFA device"),)


@pytest.mark.parametrize("severity", [Severity.MONITOR, Severity.RESET, Severity.ISOLATE])
def test_a_cluster_gives_a_reason_its_own_severity(severity: Severity) -> None:
    policy = Policy({"GpuCountLow": severity})
    low = fault("GpuCountLow", Severity.REBOOT, "node")

    (outcome,) = judge([check("a", report=lambda _: [low])], Evidence({}), Expectation(policy=policy))

    assert [finding.severity for finding in outcome.findings] == [severity]


def test_a_reason_that_a_cluster_passes_over_is_no_finding() -> None:
    policy = Policy({"GpuCountLow": Severity.PASS})
    low = fault("GpuCountLow", Severity.REBOOT, "node")

    (outcome,) = judge([check("a", report=lambda _: [low, fault()])], Evidence({}), Expectation(policy=policy))

    assert [finding.reason for finding in outcome.findings] == ["Xid79"]


def test_it_is_known_how_long_each_source_and_each_check_took() -> None:
    """Each source and each check is measured by its own clock, with at least the time that it waited."""

    def slow(_: Host) -> int:
        time.sleep(0.02)
        return 8

    def slowly(_: Evidence) -> list[Judgement]:
        time.sleep(0.01)
        return []

    asked, quick = Probe("asked", slow, int), counted("quick")[0]
    checks = [check("thinks", asked, report=slowly), check("knows", quick)]
    evidence = read_probes(HOST, checks)
    thinks, _ = judge(checks, evidence, Expectation())

    assert list(evidence.seconds) == ["asked", "quick"]
    assert evidence.seconds["asked"] >= 0.02
    assert thinks.seconds >= 0.01


def test_cycle_keeps_one_earlier_cycle() -> None:
    probe, _ = counted("nvml")
    checks = [check("a", probe)]
    first = read_probes(HOST, checks)
    second = read_probes(HOST, checks, first)
    third = read_probes(HOST, checks, second)

    assert (first.earlier(probe), second.earlier(probe)) == (None, (8, second.at - first.at))
    assert third.before is not None
    assert (third.before.at, third.before.before) == (second.at, None)


def test_a_cause_is_logged_and_shown_by_its_name_alone() -> None:
    message = str(Unobserved(CHECK_FAILED, "ecc: poison"))
    assert message == "Unobserved(cause=UnobservedCause(name='CheckFailed'), detail='ecc: poison', subject='')"
