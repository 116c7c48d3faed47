"""The Xid check over a ring. Line forms and severities have tests of their own in tests/healthcheck."""

from __future__ import annotations

from healthcheck.catalog.policy import Policy
from healthcheck.checks.xid import CHECK
from healthcheck.expectation import Expectation
from healthcheck.model import Nature, Severity, Sighting
from healthcheck.probes.kernel_log import RING, Record
from tests.checks.evidence import says


def ring(*texts: str) -> tuple[Record, ...]:
    return tuple(Record(seq, float(seq), 0, text) for seq, text in enumerate(texts))


def found(expected: Expectation, *texts: str) -> list[tuple[str, Severity, str]]:
    said = says(CHECK, expected, {RING: ring(*texts)})
    findings = [one.finding for one in said if isinstance(one, Sighting) and one.finding]
    return [(one.reason, one.severity, one.subject) for one in findings]


def test_an_empty_ring_is_no_finding() -> None:
    assert found(Expectation()) == []


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
        ("Xid43", Severity.RESET, "gpu/0000:53:00.0")
    ]


def test_an_xid_is_an_event() -> None:
    assert CHECK.nature is Nature.EVENT
