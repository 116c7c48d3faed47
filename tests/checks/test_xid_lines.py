"""The forms in which drivers print an Xid, and similar lines."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.checks.examine import with_policy
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.xid import read_xid
from gpu_healthcheck.healthcheck.memory.findings import pid_of
from gpu_healthcheck.healthcheck.model import Finding, Severity
from gpu_healthcheck.healthcheck.probes.kernel_log import Record, parse_record
from tests.examples import finding_in

OFF_BUS = "GPU has fallen off the bus."
UNKNOWN_PROCESS = "pid='<unknown>', name=<unknown>, "
WRITTEN = "NVRM: Xid (PCI:0000:05:00): 79, " + OFF_BUS


def record(text: str, seq: int = 7, at: float = 12.5) -> Record:
    return Record(seq, at, 0, text)


def read(text: str) -> Finding | None:
    return finding_in(record(text), Expectation())


def overriding(reason: str, severity: Severity) -> Expectation:
    return Expectation(policy=Policy({reason: severity}))


FORMS = [
    (f"NVRM: Xid (PCI:0000:05:00): 79, {UNKNOWN_PROCESS}{OFF_BUS}", "Xid79", "gpu/0000:05:00.0"),
    (f"NVRM: Xid (PCI:0000:05:00): 79, pid=1234, name=python, {OFF_BUS}", "Xid79", "gpu/0000:05:00.0"),
    (f"NVRM: Xid (PCI:0000:05:00): 79, {OFF_BUS}", "Xid79", "gpu/0000:05:00.0"),
    (f"NVRM: Xid (PCI:0000:b3:00.0): 79, {OFF_BUS}", "Xid79", "gpu/0000:b3:00.0"),
    (f"NVRM: Xid (PCI:00000000:B3:1F): 79, {OFF_BUS}", "Xid79", "gpu/0000:b3:1f.0"),
    (f"NVRM: Xid (PCI:00010000:B3:1F.0): 79, {OFF_BUS}", "Xid79", "gpu/10000:b3:1f.0"),
    (f"NVRM: Xid (PCI:0008:01:00): 79, {OFF_BUS}", "Xid79", "gpu/0008:01:00.0"),
    ("NVRM: Xid (0000:03:00): 31, Channel 00000001", "Xid31", "gpu/0000:03:00.0"),
    ("NVRM: Xid (0000:03:00.0): 31, Channel 00000001", "Xid31", "gpu/0000:03:00.0"),
    ("NVRM: Xid (PCI:0000:3f:00): 46", "Xid46", "gpu/0000:3f:00.0"),
    ("NVRM: Xid (0000:3f:00): 46", "Xid46", "gpu/0000:3f:00.0"),
    ("NVRM: Xid (PCI:0000:3f:00): 46,", "Xid46", "gpu/0000:3f:00.0"),
    ("NVRM: Xid (PCI:0000:B3:00): 48, pid=9, name=A, DBE", "Xid48", "gpu/0000:b3:00.0"),
    ("NVRM: Xid (PCI:0000:05:00): 45, Ch 00000008 caused by previous Xid 79", "Xid45", "gpu/0000:05:00.0"),
    (
        f"NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 94, {UNKNOWN_PROCESS}Contained: CE User Channel (0x9)",
        "Xid94",
        "gpu/0000:01:00.0/gi5",
    ),
    ("NVRM: Xid (PCI:0000:01:00 GPU-I:12): 95, Uncontained: LTC TAG (0x2, 0x1)", "Xid95", "gpu/0000:01:00.0/gi12"),
    ("NVRM: Xid (PCI:0000:01:00.0 GPU-I:00 GPU-CI:00): 13, pid=1, name=x, y", "Xid13", "gpu/0000:01:00.0/gi0"),
    (
        "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)",
        "Xid149",
        "gpu/0008:01:00.0",
    ),
    (
        "NVRM: Xid (PCI:0000:cb:00): 119, Timeout after 6s of waiting for RPC response from GPU4 GSP!\nmore",
        "Xid119",
        "gpu/0000:cb:00.0",
    ),
]
NAMES = [
    "python3",
    "ray::WorkerDict",
    "nvc:[driver]",
    "my train, v2 (beta)",
    'it\'s "quoted"',
    "a: 79, b",
    "é\ufffd",
    "nvidia-smi]",
    "[bracket",
    "",
    # As the packet filter begins, where it logs a packet: 15 bytes at most.
    "IN= OUT=",
    "IN=a OUT=b c",
    "IN= OUT= MAC=02",
    "IN= OUT= SRC=1.",
    ", AA Fatal(0x0)",
]


@pytest.mark.parametrize(("text", "reason", "subject"), FORMS)
def test_every_documented_form_is_read(text: str, reason: str, subject: str) -> None:
    finding = read(text)

    assert finding
    assert (finding.reason, finding.subject) == (reason, subject)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pid", ["1234", "'<unknown>'"])
def test_a_process_may_be_called_anything_and_is_its_pid(pid: str, name: str) -> None:
    seen = read_xid(record(f"NVRM: Xid (PCI:0000:05:00): 79, pid={pid}, name={name}, {OFF_BUS}"), Expectation())

    assert seen
    assert seen.finding
    assert (seen.reason, seen.finding.severity, seen.subject) == ("Xid79", Severity.REBOOT, "gpu/0000:05:00.0")
    assert pid_of(seen.process) == (pid if pid == "1234" else "")
    assert seen.process == f"{pid} {name}".rstrip() if pid == "1234" else seen.process == ""
    assert seen.detail.startswith(f"ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS: {OFF_BUS}")
    assert name in seen.detail


@pytest.mark.parametrize(
    "message", ["channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS", "channel 0x0000000a"]
)
@pytest.mark.parametrize("name", [*NAMES, "x, pid=7", "x, GPU 0, Ch 1", "'<unknown>'", "a, channel 0x1"])
def test_a_name_never_becomes_the_text_of_a_driver_that_begins_with_the_channel(name: str, message: str) -> None:
    seen = read_xid(record(f"NVRM: Xid (PCI:0000:05:00): 31, pid=1234, name={name}, {message}"), Expectation())

    assert seen
    assert (seen.reason, seen.subject, seen.process) == ("Xid31", "gpu/0000:05:00.0", f"1234 {name}".rstrip())
    assert seen.detail.startswith(f"ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT: {message} (process 1234")


@pytest.mark.parametrize(
    ("text", "process", "rest"),
    [
        ("pid=1234, name=python, Ch 00000008, errorString CTX", "1234 python", "Ch 00000008, errorString CTX"),
        ("pid='<unknown>', name=<unknown>, GPU has fallen", "", "GPU has fallen"),
        ("pid=1234, name=<unknown>, GPU has fallen", "1234", "GPU has fallen"),
        ("pid=1234, name=python", "1234 python", ""),
        ("pid=1234, name=a, b, c", "1234 a", "b, c"),
        ("pid=1234, name=x, 0cb5(2d50) 8503d428", "1234 x", "0cb5(2d50) 8503d428"),
        ("pid=7194, Contained: CE User Channel (0x9)", "7194", "Contained: CE User Channel (0x9)"),
        ("pid=1234", "1234", ""),
        ("Ch 00000008", "", "Ch 00000008"),
        ("somebody said pid=1, name=x, GPU", "", "somebody said pid=1, name=x, GPU"),
    ],
)
def test_the_process_and_the_drivers_text_are_separated(text: str, process: str, rest: str) -> None:
    seen = read_xid(record(f"NVRM: Xid (PCI:0000:05:00): 109, {text}"), Expectation())

    assert seen
    assert seen.process == process
    by = f" (process {process})" if process else ""
    assert seen.detail == f"ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR{rest and ': '}{rest}{by}"


@pytest.mark.parametrize(
    ("code", "text", "place"),
    [
        (13, "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address", "GPC 1, TPC 3"),
        (13, "pid=7, name=x, Graphics SM Global Exception on (GPC 11, TPC 0, SM 1): Errors", "GPC 11, TPC 0"),
        (13, "Graphics Exception: ESR 0x50c730=0x1f", ""),
        (31, "MMU Fault on (GPC 1, TPC 3, SM 0)", ""),
    ],
)
def test_xid_13_names_the_position_on_the_gpu(code: int, text: str, place: str) -> None:
    seen = read_xid(record(f"NVRM: Xid (PCI:0000:05:00): {code}, {text}"), Expectation())

    assert seen
    assert seen.place == place


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("Ch 00000008 caused by previous Xid 79", 79),
        ("pid=7, name=python, Ch 00000008 caused by previous Xid 154\n", 154),
        ("Ch 00000008", 0),
        ("Ch 00000008 caused by previous Xid", 0),
        ("caused by previous Xid 79, said somebody", 0),
    ],
)
def test_a_line_that_names_its_cause_follows_another(text: str, follows: int) -> None:
    seen = read_xid(record(f"NVRM: Xid (PCI:0000:05:00): 45, {text}"), Expectation())

    assert seen
    assert seen.follows == follows


@pytest.mark.parametrize(
    ("code", "text", "recovered"),
    [
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", True),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", False),
        (154, "GPU recovery action changed", False),
        (94, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", False),
    ],
)
def test_a_gpu_that_needs_nothing_any_more_has_recovered(code: int, text: str, recovered: bool) -> None:
    seen = read_xid(record(f"NVRM: Xid (PCI:0000:05:00): {code}, {text}"), Expectation())

    assert seen
    assert (seen.recovery_action == 0) is recovered


@pytest.mark.parametrize("severity", list(Severity))
def test_no_severity_of_a_cluster_makes_a_recovery_a_fault(severity: Severity) -> None:
    text = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"

    assert finding_in(record(f"NVRM: Xid (PCI:0000:05:00): 154, {text}"), overriding("Xid154", severity)) is None


@pytest.mark.parametrize(
    ("code", "escalates"), [(13, False), (31, False), (94, False), (43, False), (79, True), (48, True), (999, True)]
)
def test_application_xid_never_escalates(code: int, escalates: bool) -> None:
    finding = finding_in(record(f"NVRM: Xid (PCI:0000:05:00): {code}, x"), overriding(f"Xid{code}", Severity.RESET))

    assert finding
    assert (finding.escalates, finding.rule) == (escalates, "severity-overrides")


@pytest.mark.parametrize(
    "text",
    [
        f"systemd[1]: forwarded: {WRITTEN}",
        f" {WRITTEN}",
        f"[  100.5] {WRITTEN}",
        f'audit: comm="{WRITTEN}"',
        f"python[17]: {WRITTEN}",
        f"pid=17, name={WRITTEN}",
        f"NVRM: GPU at PCI:0000:9b:00: GPU-5 said {WRITTEN}",
        f"NVRM: {WRITTEN}",
        f"line one\n{WRITTEN}",
    ],
)
def test_text_that_only_quotes_a_line_is_no_finding(text: str) -> None:
    assert read(text) is None
    assert read_xid(record(text), Expectation()) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:05:00)",
        "NVRM: Xid (PCI:0000:05:00):",
        "NVRM: Xid (PCI:0000:05:00): ",
        "NVRM: Xid (PCI:0000:05:00): seventy-nine, x",
        "NVRM: Xid (PCI:0000:05:00): 79 without a comma",
        "NVRM: Xid (PCI:0000:05:00): -79, x",
        "NVRM: Xid (PCI:0000:05:00): 7979797, x",
        "NVRM: Xid (PCI:0000:05): 79, x",
        "NVRM: Xid (PCI:zzzz:05:00): 79, x",
        "NVRM: Xid (PCI:000:05:00): 79, x",
        "NVRM: Xid (PCI:0000:05:00 GPU-I:xx): 79, x",
        "NVRM: Xid PCI:0000:05:00: 79, x",
        "NVRM: SXid (PCI:0000:05:00.0): 20034, Fatal",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "NVRM: GPU at PCI:0000:9b:00: GPU-c2b3",
    ],
)
def test_a_line_of_another_form_is_no_xid(text: str) -> None:
    assert read(text) is None
    assert read_xid(record(text), Expectation()) is None


def test_an_ignored_code_is_counted_though_it_is_no_finding() -> None:
    text = "NVRM: Xid (PCI:0000:05:00): 43, pid=7, name=python, Ch 00000008"

    event = read_xid(record(text), Expectation())

    assert event
    assert (event.reason, event.known) == ("Xid43", True)
    assert with_policy(event, Policy()).finding is None


def test_a_finding_keeps_where_and_when_its_record_stood() -> None:
    finding = finding_in(record(WRITTEN, seq=812, at=99.25), Expectation())

    assert finding == Finding(
        "Xid79",
        Severity.REBOOT,
        "gpu/0000:05:00.0",
        f"ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS: {OFF_BUS}",
        rule="xid.csv:79",
        seq=812,
        at=99.25,
    )


def test_an_absurdly_long_line_gives_a_short_detail() -> None:
    finding = read(f"{WRITTEN} {'x' * 100_000}")

    assert finding
    assert len(finding.detail) == 200


def test_the_raw_record_of_a_multi_line_message_is_read_as_one() -> None:
    raw = rb"4,812,99250000,-,caller=T123;NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=a\x5cb, first\x0asecond"
    parsed = parse_record(raw)

    assert parsed
    finding = finding_in(parsed, Expectation())
    assert finding
    assert (finding.seq, finding.at) == (812, 99.25)
    assert finding.detail.endswith("first\\nsecond (process 1 a\\b)")


@pytest.mark.parametrize(
    ("code", "name", "words", "severity"),
    [
        (145, ", AA Fatal(0x0)", "RLW_SRC_TRACK Fatal XC0 i0 Link 01 (0x000000e2 0x00000001 0x0)", Severity.RESET),
        (149, ", AA Fatal(0x6)", "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00000013 0x00000001 0x0)", None),
    ],
)
def test_process_names_like_the_drivers_words_decide_nothing(
    code: int, name: str, words: str, severity: Severity | None
) -> None:
    plain, named = (
        read(f"NVRM: Xid (PCI:0000:05:00): {code}, pid=4, name={text}, {words}") for text in ("python3", name)
    )

    assert (plain.severity if plain else None, named.severity if named else None) == (severity, severity)


@pytest.mark.parametrize(
    ("before", "is_flag"),
    [
        ("NVRM: GPU0 _deviceTeardown: Disable of Cuda limit activation failed", True),
        ("NVRM: osInitNvMapping: *** Cannot attach gpu", True),
        # A process may have put any of these there: 15 bytes, and a file's name behind them.
        ("NVRM: GPU0 a: x[1234]: segfault at 0 ip 0 sp 0 error 4 in ", False),
        ("NVRM: abcdefghi[1234]: segfault at 0 ip 0 sp 0 error 4 in ", False),
        ("NVRM: x: page allocation failure: ", False),
        ("audit: name=", False),
    ],
)
def test_an_xid_behind_a_message_of_the_driver_s_without_a_newline_is_one(before: str, is_flag: bool) -> None:
    finding = read(f"{before}NVRM: Xid (PCI:0000:01:00): 119, pid=1, name=python, Timeout after 45s of waiting")

    assert (finding.reason if finding else None) == ("Xid119" if is_flag else None)
