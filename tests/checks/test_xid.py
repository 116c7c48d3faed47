"""The Xid check over a ring. Line forms and severities have tests of their own in test_xid_lines and tests/catalog."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.xid import CHECK
from gpu_healthcheck.healthcheck.model import Evidence, KernelEvent, Nature, Severity
from gpu_healthcheck.healthcheck.model.node_facts import DeepDiagnostic
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from tests.checks.evidence import judgements


def ring(*texts: str) -> tuple[Record, ...]:
    return tuple(Record(seq, float(seq), 0, text) for seq, text in enumerate(texts))


def found(expected: Expectation, *texts: str) -> list[tuple[str, Severity, str]]:
    (outcome,) = judge([CHECK], Evidence({RING: ring(*texts)}), expected)
    findings = [event.finding for event in outcome.events if event.finding]
    return [(finding.reason, finding.severity, finding.subject) for finding in findings]


def test_every_record_is_judged_for_itself() -> None:
    xid = "NVRM: Xid (PCI:0000:53:00): {}, x"

    assert found(Expectation(), *(xid.format(code) for code in (79, 43, 13, 79, 154))) == [
        ("Xid79", Severity.REBOOT, "gpu/0000:53:00.0"),
        ("Xid13", Severity.MONITOR, "gpu/0000:53:00.0"),
        ("Xid79", Severity.REBOOT, "gpu/0000:53:00.0"),
        ("Xid154", Severity.MONITOR, "gpu/0000:53:00.0"),
    ]


def test_the_clusters_own_severity_counts() -> None:
    expected = Expectation(policy=Policy({"Xid43": Severity.RESET, "Xid79": Severity.PASS}))

    assert found(expected, "NVRM: Xid (PCI:0000:53:00): 43, x", "NVRM: Xid (PCI:0000:53:00): 79, x") == [
        ("Xid43", Severity.RESET, "gpu/0000:53:00.0"),
        ("Xid79", Severity.PASS, "gpu/0000:53:00.0"),
    ]


def test_an_xid_is_an_event() -> None:
    assert CHECK.nature is Nature.EVENT


RUNS = DeepDiagnostic("l2", 100.0, processes={812: 148.0})
ENDED = DeepDiagnostic("l2", 100.0, 200.0, {812: 256.0})


@pytest.mark.parametrize(
    ("run", "at", "code", "process", "counts"),
    [
        *[(RUNS, 150.0, code, "pid=812, name=nvvs, ", False) for code in (13, 31, 43, 45)],
        *[(RUNS, 150.0, 13, f"pid=812, name={name}, ", False) for name in ("dcgmi", "nv-hostengine", "nvbandwidth")],
        *[(RUNS, 150.0, code, "pid=812, name=nvvs, ", True) for code in (48, 63, 69, 74, 79, 94, 95, 119)],
        (RUNS, 150.0, 13, "pid=812, name=python3, ", True),
        (RUNS, 150.0, 13, "pid=813, name=nvvs, ", True),
        (RUNS, 153.1, 13, "pid=812, name=nvvs, ", True),
        (replace(RUNS, processes={}), 150.0, 13, "pid=812, name=nvvs, ", True),
        (RUNS, 150.0, 13, "pid=812, name=my nvvs, ", True),
        (RUNS, 150.0, 13, "pid=812, name=nvvs2, ", True),
        (RUNS, 150.0, 13, "pid='<unknown>', name=nvvs, ", True),
        (RUNS, 150.0, 13, "pid='<unknown>', name=<unknown>, ", True),
        (RUNS, 150.0, 13, "", True),
        (RUNS, 99.0, 13, "pid=812, name=nvvs, ", True),
        (ENDED, 200.0, 13, "pid=812, name=nvvs, ", False),
        (ENDED, 260.0, 13, "pid=812, name=nvvs, ", False),
        (ENDED, 260.1, 13, "pid=812, name=nvvs, ", True),
        (None, 150.0, 13, "pid=812, name=nvvs, ", True),
    ],
)
def test_only_events_of_a_tests_own_processes_are_attributed_to_it(
    run: DeepDiagnostic | None, at: float, code: int, process: str, counts: bool
) -> None:
    record = Record(1, at, 0, f"NVRM: Xid (PCI:0000:53:00): {code}, {process}x")
    # On a cluster with the code as a fault, so that codes that NVIDIA ignores are distinguished, too.
    expected = Expectation(policy=Policy({f"Xid{code}": Severity.RESET}), deep_run=run)

    (event,) = [
        kernel_event
        for kernel_event in judgements(CHECK, expected, {RING: (record,)})
        if isinstance(kernel_event, KernelEvent)
    ]
    assert (event.finding is not None, event.of_a_test) == (counts, not counts)
