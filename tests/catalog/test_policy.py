"""`severity-overrides` as a person writes it, and its errors."""

from __future__ import annotations

import re

import pytest

from healthcheck.catalog.policy import Policy, parse_overrides
from healthcheck.model import Severity


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("", {}),
        ("\n  \n# only a comment\n", {}),
        ("xid 13 = RESET", {"Xid13": Severity.RESET}),
        ("XID 13=ISOLATE", {"Xid13": Severity.ISOLATE}),
        ("Xid 013 = MONITOR", {"Xid13": Severity.MONITOR}),
        ("sxid 11004 = REBOOT", {"SXid11004": Severity.REBOOT}),
        ("dcgm 52 = MONITOR", {"Dcgm52": Severity.MONITOR}),
        ("GpuCountLow = MONITOR  # while we wait for parts", {"GpuCountLow": Severity.MONITOR}),
        ("Xid79 = PASS", {"Xid79": Severity.PASS}),
        ("  xid   13   =   RESET  \r\n", {"Xid13": Severity.RESET}),
        ("xid 13 = RESET\nxid 13 = REBOOT", {"Xid13": Severity.REBOOT}),
        ("xid 13 = RESET\n\nEfaCountLow = RESET", {"Xid13": Severity.RESET, "EfaCountLow": Severity.RESET}),
    ],
)
def test_overrides_are_read_a_line_each(text: str, overrides: dict[str, Severity]) -> None:
    assert parse_overrides(text) == overrides


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("xid 13", "line 1: 'xid 13'; write `Reason = SEVERITY` or `xid 13 = RESET`"),
        ("xid = RESET", "line 1: 'xid = RESET'; write"),
        ("= RESET", "line 1: '= RESET'; write"),
        ("xid 1234567 = RESET", "line 1: 'xid 1234567 = RESET'; write"),
        ("xid -1 = RESET", "line 1: 'xid -1 = RESET'; write"),
        ("gpu count = RESET", "line 1: 'gpu count = RESET'; write"),
        ("# fine\n\nxid 13 = reset", "line 3: severity 'reset'; allowed are PASS, MONITOR, RESET, REBOOT or ISOLATE"),
        ("xid 13 = SKIP", "line 1: severity 'SKIP'; allowed are"),
        ("xid 13 =", "line 1: severity ''; allowed are"),
        ("xid 13 = RESET = REBOOT", "line 1: severity 'RESET = REBOOT'; allowed are"),
        ("x" * 9999, f"line 1: '{'x' * 60}'; write"),
    ],
)
def test_a_bad_line_is_named_with_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_overrides(text)


def test_a_reason_without_an_override_keeps_its_own_severity() -> None:
    policy = Policy({"Xid13": Severity.RESET})

    assert policy.severity_of("Xid13", Severity.MONITOR) is Severity.RESET
    assert policy.severity_of("Xid31", Severity.MONITOR) is Severity.MONITOR
