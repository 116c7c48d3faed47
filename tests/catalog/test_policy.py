"""`severity-overrides` as a person writes it, and its errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.catalog.policy import Policy, parse_overrides, parse_thresholds
from gpu_healthcheck.healthcheck.model import Severity, Threshold


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
    assert parse_thresholds(text) == {}


@pytest.mark.parametrize(
    ("text", "thresholds"),
    [
        ("xid 43 = RESET after 3 in 10m", {"Xid43": Threshold(Severity.RESET, 3, 600)}),
        ("XID 043=MONITOR  after 2  in 60s # why", {"Xid43": Threshold(Severity.MONITOR, 2, 60)}),
        ("Xid43 = REBOOT after 16 in 24h", {"Xid43": Threshold(Severity.REBOOT, 16, 86400)}),
        ("sxid 20034 = ISOLATE after 2 in 90m", {"SXid20034": Threshold(Severity.ISOLATE, 2, 5400)}),
        (
            "xid 43 = RESET after 3 in 10m\nxid 43 = REBOOT after 5 in 1h",
            {"Xid43": Threshold(Severity.REBOOT, 5, 3600)},
        ),
    ],
)
def test_a_line_with_a_count_is_a_threshold_in_addition_to_the_severity(
    text: str, thresholds: dict[str, Threshold]
) -> None:
    assert parse_thresholds(f"xid 43 = PASS\n{text}") == thresholds
    assert parse_overrides(f"xid 43 = PASS\n{text}") == {"Xid43": Severity.PASS}


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
        (
            "a\nxid 13 = RESET after 3 in 10m",
            "line 1: 'a'; write `Reason = SEVERITY` or `xid 13 = RESET`, or with a count",
        ),
        (
            "#\nxid 43 = RESET after 3",
            "line 2: 'xid 43 = RESET after 3'; write `SEVERITY after COUNT in TIME`, as in",
        ),
        ("xid 43 = RESET after three in 10m", "write `SEVERITY after COUNT in TIME`, as in `xid 43 = RESET after 3"),
        ("xid 43 = RESET after -3 in 10m", "write `SEVERITY after COUNT in TIME`"),
        ("xid 43 = RESET after 3 in 10m or so", "write `SEVERITY after COUNT in TIME`"),
        ("xid 43 = RESET after 1 in 10m", "the count is 2 to 16, as in `xid 43 = RESET after 3 in 10m`"),
        ("xid 43 = RESET after 17 in 10m", "the count is 2 to 16"),
        ("xid 43 = RESET after 3 in 59s", "the time is 1m to 24h"),
        ("xid 43 = RESET after 3 in 25h", "the time is 1m to 24h"),
        ("xid 43 = RESET after 3 in 1h30m", "write `SEVERITY after COUNT in TIME`"),
        ("xid 43 = RESET after 3 in 10", "write `SEVERITY after COUNT in TIME`"),
        ("xid 43 = PASS after 3 in 10m", "severities with `after` are MONITOR, RESET, REBOOT, ISOLATE"),
        ("dcgm 52 = RESET after 3 in 10m", "`after` counts Xid and SXid lines of the kernel log"),
        ("GpuCountLow = RESET after 3 in 10m", "`after` counts Xid and SXid lines of the kernel log"),
        ("Xid13Repeated = RESET after 3 in 10m", "`after` counts Xid and SXid lines of the kernel log"),
        ("xid 43 = RESET AFTER 3 in 10m", "line 1: severity 'RESET AFTER 3 in 10m'; allowed are"),
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


def test_the_example_lines_of_the_documentation_are_read() -> None:
    rules = (Path(__file__).parents[2] / "docs/rules.md").read_text()
    (lines,) = re.findall(r"```text\n(.*?)```", rules, re.DOTALL)

    assert parse_overrides(lines) == {"GpuCountLow": Severity.REBOOT, "Xid13": Severity.RESET, "Xid43": Severity.PASS}
    assert parse_thresholds(lines) == {"Xid43": Threshold(Severity.RESET, 3, 600)}
