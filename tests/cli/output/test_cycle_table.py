"""Output of one cycle for people: a line per check, its findings below, and the evidence on request."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from gpu_healthcheck.cli.judged_cycle import judged
from gpu_healthcheck.cli.output import cycle_table as one_cycle
from gpu_healthcheck.cli.output.cycle_table import show
from gpu_healthcheck.healthcheck.captures.evidence_file import EvidenceCycle
from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.checks import driver_messages
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    KernelEvent,
    Nature,
    NotConfigured,
    Observation,
    Probe,
    Reason,
    Severity,
    TooEarly,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import ContainerRuntime, ReadFile
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from tests.checks.evidence import P5
from tests.examples import BOOT, MACHINE, NODE, NOW, UNOBSERVED

LINKS = Probe("links", lambda _: (), tuple[str, ...])
SEEN = Observation("8 GPUs, 143 of 144 NVLinks active", "18 per GPU", "p5.48xlarge in instance-profiles.conf")
INACTIVE = Finding("NvLinkInactive", Severity.RESET, "gpu/0000:53:00.0", "link 7 is inactive")


def check(name: str, *said: Judgement, group: str = "3-topology-check", needs: Iterable[Probe[object]] = ()) -> Check:
    return Check(name, group, tuple(needs), lambda *_: iter(said), ())


def look(*checks: Check, evidence: Evidence | None = None, expected: Expectation = P5) -> EvidenceCycle:
    return EvidenceCycle(NODE, MACHINE, BOOT, NOW, checks, expected, 60.0, evidence or Evidence({}))


def lines(capsys: pytest.CaptureFixture[str], cycle: EvidenceCycle, *, verbose: bool = False) -> list[str]:
    show(judged(cycle), None, verbose=verbose)
    return capsys.readouterr().out.splitlines()


def test_cycle_table_line_has_observation_expectation_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    messages = lines(capsys, look(check("nvlink", SEEN), check("pcie-link", Observation("16 lanes each", "", "NVML"))))

    expected = "expected 18 per GPU (p5.48xlarge in instance-profiles.conf)"
    assert messages == [
        f"3 nvlink     pass  8 GPUs, 143 of 144 NVLinks active; {expected}",
        "3 pcie-link  pass  16 lanes each (NVML)",
        "",
        f"{NODE} (p5.48xlarge): pass",
    ]


def test_cycle_table_lists_findings_below_their_check(capsys: pytest.CaptureFixture[str]) -> None:
    messages = lines(capsys, look(check("nvlink", INACTIVE, SEEN, UNOBSERVED), check("driver", UNOBSERVED)))

    assert [line.split()[:3] for line in messages[:1]] == [["3", "nvlink", "fail"]]
    assert [line.strip() for line in messages[1:3]] == [
        "GPU 0000:53:00.0 reported NvLinkInactive (NvLinkInactive RESET on gpu/0000:53:00.0): link 7 is inactive",
        "DriverNotLoaded: NVML: Driver Not Loaded (/usr/lib64/libnvidia-ml.so.1)",
    ]
    assert messages[3].split(maxsplit=3) == ["3", "driver", "unknown", "DriverNotLoaded: as above"]


def test_cycle_table_without_an_observation_shows_the_first_finding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    messages = lines(capsys, look(check("nvlink", INACTIVE)))

    words = "GPU 0000:53:00.0 reported NvLinkInactive (NvLinkInactive RESET on gpu/0000:53:00.0)"
    assert messages[0] == f"3 nvlink  fail  {words}: link 7 is inactive"


def test_cycle_table_shows_checks_that_do_not_apply(capsys: pytest.CaptureFixture[str]) -> None:
    messages = lines(capsys, look(check("imex", NotConfigured("no GB200: no IMEX"))))

    assert messages[0] == "3 imex  not-configured  no GB200: no IMEX"


def test_cycle_table_shows_faults_that_need_a_second_cycle(capsys: pytest.CaptureFixture[str]) -> None:
    early = (TooEarly("a rate needs two readings"), TooEarly("it began anew", "gpu/1"))
    messages = lines(capsys, look(check("pcie-replays", Observation("8 GPUs", "few"), *early)))

    assert messages[0].split("  ")[-1] == "8 GPUs; expected few; a rate needs two readings; gpu/1: it began anew"


def test_cycle_table_refers_to_a_cause_shown_above(capsys: pytest.CaptureFixture[str]) -> None:
    messages = lines(capsys, look(check("gpu-count", UNOBSERVED), check("nvlink", SEEN, INACTIVE, UNOBSERVED)))

    assert messages[1].endswith("(p5.48xlarge in instance-profiles.conf); DriverNotLoaded: as above")
    assert messages[2].strip().startswith("GPU 0000:53:00.0 reported NvLinkInactive (NvLinkInactive RESET on ")


@pytest.mark.parametrize(
    ("reasons", "message"),
    [
        ((), "no Xid in the kernel log"),
        (("Xid79",), "1 Xid in the kernel log: Xid79"),
        (("Xid13", "Xid79", "Xid13"), "3 Xids in the kernel log: Xid13 2 times, Xid79"),
    ],
)
def test_cycle_table_event_check_counts_its_log_lines(
    reasons: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    met = [KernelEvent(reason, "gpu/0", seq, 1.0) for seq, reason in enumerate(reasons)]
    events = replace(check("xid", *met), reasons=(Reason("Xid", Severity.MONITOR, "", ""),), nature=Nature.EVENT)

    assert lines(capsys, look(events))[0].split("  ")[-1] == message


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((), "no fault message in the kernel log"),
        (("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20",), "no fault message in the kernel log"),
        (
            ("NVRM: API mismatch: the client 1", "NVRM: API mismatch: the client 2"),
            "2 fault messages in the kernel log: DriverLibraryMismatch 2 times",
        ),
    ],
)
def test_cycle_table_counts_only_fault_messages_of_the_driver(
    texts: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Evidence({RING: tuple(Record(seq, 1.0, 0, text) for seq, text in enumerate(texts))})

    messages = lines(capsys, look(driver_messages.CHECK, evidence=log))
    assert messages[0].rpartition("  ")[2] == message


def test_cycle_table_omits_reasons_overridden_to_pass(capsys: pytest.CaptureFixture[str]) -> None:
    expected = Expectation(policy=Policy({"NvLinkInactive": Severity.PASS}))
    messages = lines(capsys, look(check("nvlink", SEEN, INACTIVE), expected=expected))

    assert len(messages) == 3
    assert messages[-1] == f"{NODE} (unknown instance type: no expectation): pass"


@pytest.mark.parametrize(("width", "broken"), [(80, True), (120, False), (200, False)])
def test_cycle_table_wraps_within_its_column(
    width: int, broken: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminal(**_: object) -> Screen:
        return Screen(width=width, force_terminal=True, color_system=None, legacy_windows=False)

    monkeypatch.setattr(one_cycle, "Screen", terminal)
    messages = [
        line.rstrip() for line in lines(capsys, look(check("nvlink", SEEN), check("imex", NotConfigured("none"))))
    ]

    assert max(len(line) for line in messages) <= width
    column = messages[0].index("result")
    assert (messages[1][column:].startswith("8 GPUs"), len(messages) > 5) == (True, broken)
    assert all(line[:column].strip() == "" for line in messages[2:-3])


def test_cycle_table_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """A file of evidence is untrusted."""
    wild = "\x1b[2J\r\n[red]\u202e"
    odd = Finding("Odd", Severity.MONITOR, wild, wild)
    result = (Observation(wild, wild, wild), odd, Unobserved(UnobservedCause.named(wild), wild), TooEarly(wild))
    evidence = Evidence(
        {LINKS: (wild,), Probe("other", lambda _: 0, int): Unobserved(UnobservedCause.named("Odd"), wild)}
    )
    show(judged(look(check("odd", *result), evidence=evidence)), None, verbose=True)
    out = capsys.readouterr().out

    assert re.findall(r"[^\n -~]", out) == []
    assert out.count("[red]") == 3 + 2 + 2 + 1 + 1 + 1


def test_verbose_evidence_of_a_container_runtime_omits_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    evidence = Evidence({CONTAINER_RUNTIME: ContainerRuntime("/c", known_from="kubelet", files=(ReadFile("/c", 1.5),))})
    message = " ".join(lines(capsys, look(check("nvlink", SEEN), evidence=evidence), verbose=True)).split("0.000 s")[1]

    assert "".join(message.split()) == (
        "ContainerRuntime(path='/c',known_from='kubelet',files=(ReadFile(path='/c',written=1.5),))"
    )


def test_verbose_evidence_counts_what_was_cut(capsys: pytest.CaptureFixture[str]) -> None:
    records = tuple(Record(seq, 1.0, 0, "x" * 900) for seq in range(5000))
    silent = Probe("nvml", lambda _: 0, int)
    evidence = Evidence({LINKS: ("up", "down"), silent: UNOBSERVED, RING: records}, seconds={"links": 0.0123})
    messages = lines(capsys, look(check("nvlink", SEEN), evidence=evidence), verbose=True)

    assert messages[messages.index("links, 0.012 s") + 1] == "('up', 'down')"
    assert "DriverNotLoaded: NVML: Driver Not Loaded (/usr/lib64/libnvidia-ml.so.1)" in messages
    assert any("4936" in line for line in messages)
    assert any("+800" in line for line in messages)
    assert len(messages) < 300
