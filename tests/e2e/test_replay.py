"""`gpu-healthcheck replay` as a person and as a program meets it, on saved files."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.captures.capture_files import Captures
from gpu_healthcheck.healthcheck.captures.kernel_logs import BootRecords, Line
from gpu_healthcheck.healthcheck.captures.replay import Replay
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding
from gpu_healthcheck.healthcheck.model import Nature, Now
from gpu_healthcheck.healthcheck.probes.kernel_log import Record
from gpu_healthcheck.sim.scenarios import Scenario, scenarios
from tests.captures.renderings import BOOTED, FORMS, ONE_OF_EACH_KIND, WITHOUT_TIMES, capture, records
from tests.console import typed

OFF_BUS = "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."
CONTAINED = "NVRM: Xid (PCI:0000:64:00 GPU-I:05 GPU-CI:01): 94, pid=7, name=a b, Contained: CE User Channel (0x9)"
MECHANICAL = "NVRM: Xid (PCI:0000:75:00): 54, Power Cables unplugged"
IGNORED = "NVRM: Xid (PCI:0000:75:00): 43, pid=7, name=python3, Ch 00000008"
BANNER = "Linux version 6.1.0-18-cloud-amd64 (build@host) #1 SMP"
CHATTER = "usb 1-1: new high-speed USB device number 4 using xhci_hcd"
EVENTS = tuple(one for one in CHECKS if one.nature is Nature.EVENT)
HEALTHY = records((0.0, BANNER), (4.0, CHATTER), (9.0, IGNORED))
FAULTY = records((0.0, BANNER), (4.0, CHATTER), (9.0, OFF_BUS), (10.0, OFF_BUS), (11.0, CONTAINED))


def run(*words: str, config: Path | None = None, stdin: bytes = b"") -> tuple[int, str, str]:
    environment = {**os.environ, "CONFIG_DIR": str(config or "/nowhere")}
    if stdin:
        program = [sys.executable, "-m", "cli", "replay", *words]
        done = subprocess.run(program, env=environment, input=stdin, capture_output=True, check=False)
    else:
        done = typed(["replay", *words], environment)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def dmesg(*lines: tuple[float, str]) -> bytes:
    return capture(FORMS["dmesg"], records(*lines))


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    def save(content: bytes, name: str = "node.log") -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return save


def replayed(*files: str) -> list[ActiveFinding]:
    captures = Captures(files)
    replay = Replay(EVENTS, Expectation(), 86400.0)
    for batch in captures.batches():
        replay.take(batch)
    return list(replay.ended(captures.boot_id, captures.undated_by).active)


def judged(records: Sequence[Record]) -> list[ActiveFinding]:
    """Return the judgements of the records themselves, with every one shown."""
    replay = Replay(EVENTS, Expectation(), 86400.0)
    lines = tuple(Line(record, f"record:{record.seq}", record.text) for record in records)
    replay.take(BootRecords(1, "", lines, BOOTED, Now(BOOTED, records[-1].at)))
    return list(replay.ended("", timedelta()).active)


def found(standing: list[ActiveFinding]) -> set[tuple[str, str, str, int]]:
    return {
        (finding.finding.reason, finding.finding.subject, finding.finding.severity.name, finding.count)
        for finding in standing
    }


@pytest.mark.parametrize("name", FORMS)
def test_form_with_a_fault_fails_and_without_passes(name: str, saved: Any) -> None:
    faulty, healthy = saved(capture(FORMS[name], FAULTY)), saved(capture(FORMS[name], HEALTHY), "healthy")

    assert found(replayed(faulty)) == {
        ("Xid79", "gpu/0000:05:00.0", "REBOOT", 2),
        ("Xid94", "gpu/0000:64:00.0/gi5", "MONITOR", 1),
    }
    assert found(replayed(healthy)) == set()


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("scenario", [one for one in scenarios() if one.kernel_log], ids=lambda entry: entry.name)
def test_scenarios_log_is_judged_alike_in_each_kind_of_form(scenario: Scenario, name: str, saved: Any) -> None:
    """Every line that a check reads passes the reader, which parses only lines that can concern a GPU."""
    story = records((0.0, BANNER), *((10.0 + at, text) for at, text in enumerate(scenario.kernel_log)))

    assert found(replayed(saved(capture(FORMS[name], story)))) == found(judged(story))


@pytest.mark.parametrize("name", sorted(set(FORMS) - WITHOUT_TIMES))
def test_monitor_event_ends_by_the_captures_time(name: str, saved: Any) -> None:
    day_later = [*FAULTY, Record(99, 11.0 + 86400.0 + 61.0, 0, CHATTER)]

    assert [finding.finding.reason for finding in replayed(saved(capture(FORMS[name], day_later)))] == ["Xid79"]


def test_boot_ends_what_a_reboot_ends(saved: Any) -> None:
    log = dmesg((50.0, OFF_BUS), (51.0, MECHANICAL)) + dmesg((0.0, BANNER), (5.0, CHATTER))

    assert [finding.finding.reason for finding in replayed(saved(log))] == ["Xid54"]
    again = dmesg((50.0, OFF_BUS)) + dmesg((0.0, BANNER), (5.0, OFF_BUS))
    assert [(finding.count, finding.finding.source[-2:]) for finding in replayed(saved(again))] == [(1, ":3")]


@pytest.mark.parametrize(("second", "third", "severity"), [(18, 18, "REBOOT"), (1, 5, "ISOLATE")])
def test_reboots_of_a_recurring_fault_are_dated_by_their_start(
    second: int, third: int, severity: str, saved: Any
) -> None:
    """A boot of several days ends at its end; faults that ended earlier did so at its beginning."""
    named = "NVRM: GPU at PCI:0000:05:00: GPU-12345678-1234-1234-1234-123456789012"

    def boot(day: int, days: int) -> bytes:
        since, until = (BOOTED + timedelta(days=number) for number in (day, day + days))
        result = ((since, BANNER), (until, named), (until, OFF_BUS))
        return "".join(f"{at:%Y-%m-%dT%H:%M:%S+0000} node kernel: {text}\n" for at, text in result).encode()

    name = saved(boot(0, 1) + boot(2, second) + boot(2 + third, 1))
    _, out, _ = run("--json", name)

    assert json.loads(out)["severity"] == severity


def test_text_output_shows_the_rule_and_the_line(saved: Any) -> None:
    name = saved(capture(FORMS["dmesg"], FAULTY))
    code, out, err = run(name)

    assert (code, err) == (1, "")
    assert out.splitlines()[0].startswith("REBOOT Xid79 on gpu/0000:05:00.0 (2 times): ")
    assert out.splitlines()[1] == f"  rule xid.csv:79, {name}:3"
    assert out.splitlines()[2] == f"  [{9.0:12.6f}] {OFF_BUS}"
    assert out.splitlines()[-1] == f"{name}: fail, severity REBOOT"


def test_json_output_is_the_record(saved: Any) -> None:
    name = saved(gzip.compress(capture(FORMS["journal short-iso"], FAULTY)))
    code, out, err = run("--json", "--instance-type", "p5.48xlarge", name)
    record = json.loads(out)

    assert (code, err) == (1, "")
    assert (record["status"], record["severity"], record["instance_type"]) == ("fail", "REBOOT", "p5.48xlarge")
    assert record["timestamp"] == "2026-11-20T08:00:11Z"
    assert record["hostname"] == "ip-10-0-0-1"
    assert [row["check"] for row in record["checks"]] == ["0-nvidia-smi"]
    worst = record["findings"][0]
    assert (worst["rule"], worst["source"], worst["count"]) == ("xid.csv:79", f"{name}:3", 2)
    assert (worst["first_seen"], worst["last_seen"]) == ("2026-11-20T08:00:09Z", "2026-11-20T08:00:10Z")


@pytest.mark.parametrize(("log", "status"), [(HEALTHY, "unknown"), (FAULTY, "fail")])
def test_damaged_packed_log_is_unknown_or_fails(log: Sequence[Record], status: str, saved: Any) -> None:
    packed = gzip.compress(capture(FORMS["dmesg -T"], log)) + gzip.compress(dmesg((20.0, CHATTER)))
    assert run(saved(packed))[0] == {"unknown": 0, "fail": 1}[status]
    for content in (packed[:-9], packed[:-8] + bytes(8)):
        code, out, _ = run("--json", saved(content, "node.log.gz"))
        record = json.loads(out)

        assert (code, record["status"]) == ({"unknown": 2, "fail": 1}[status], status)
        assert {row["cause"] for row in record["unobserved"]} == {"CaptureDamaged"}


def test_standard_input_is_read() -> None:
    code, out, _ = run("--json", "-", stdin=capture(FORMS["kmsg"], FAULTY))

    assert (code, json.loads(out)["findings"][0]["source"]) == (1, "-:7")


def test_verbose_output_lists_lines_without_a_fault(saved: Any) -> None:
    forged = f"<12>[   12.000001] {OFF_BUS}\nhost app: {OFF_BUS}\n".encode()
    code, _, err = run("-v", saved(capture(FORMS["dmesg"], HEALTHY) + forged))

    assert code == 0
    assert err.splitlines() == [
        "no fault: Xid43 on gpu/0000:75:00.0: 1",
        "lines refused, their facility is not the kernel's: 1",
        "lines quoted, with other text before the message: 1",
    ]


def test_severity_overrides_apply(saved: Any, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "severity-overrides").write_text("xid 79 = MONITOR\n")
    code, out, _ = run("--json", saved(capture(FORMS["dmesg"], FAULTY)), config=config)

    assert (code, json.loads(out)["findings"][0]["rule"]) == (0, "severity-overrides")


COUNTED = [(9.0 + at, f"NVRM: Xid (PCI:0000:75:00): 43, pid={at // 10}, name=python3, Ch 8") for at in range(0, 30, 5)]
"""Six lines of three processes."""


@pytest.mark.parametrize(
    ("override", "findings", "code"),
    [
        ("", [], 0),
        ("xid 43 = PASS", [], 0),
        ("xid 43 = RESET after 4 in 10m", [], 0),
        ("xid 43 = RESET after 3 in 10m", [("RESET", "severity-overrides: after 3 in 600s", ":6")], 1),
    ],
)
def test_severity_override_by_a_count_of_processes_applies(
    saved: Any, tmp_path: Path, override: str, findings: list[tuple[str, str, str]], code: int
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "severity-overrides").write_text(override)
    name = saved(dmesg((0.0, BANNER), *COUNTED))
    status, out, err = run("--json", "-v", name, config=config)

    assert status == code
    assert [(row["severity"], row["rule"], row["source"]) for row in json.loads(out)["findings"]] == [
        (severity, rule, f"{name}{line}") for severity, rule, line in findings
    ]
    assert ("no fault: Xid43 on gpu/0000:75:00.0: 6" in err) is (not findings)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"PK\x03\x04", "packed with zip"),
        (b"\x1f\x8bnonsense", "cannot be unpacked"),
    ],
)
def test_invalid_file_is_a_usage_error_that_names_it(content: bytes, why: str, saved: Any) -> None:
    name = saved(content)
    code, out, err = run("--json", name)

    assert (code, out) == (3, "")
    assert err.startswith(f"gpu-healthcheck replay: {name}: ")
    assert why in err


def test_path_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    missing, device = tmp_path / "missing", Path("/dev/null")
    for name, why in (
        (tmp_path, "Is a directory"),
        (missing, "No such file"),
        (device, "a device, not a saved capture"),
        (Path("/proc/self/mem"), "Input/output error"),
    ):
        code, _, err = run(str(name))
        assert (code, f"{name}: {why}" in err) == (3, True)


NOTHING_KNOWN = {
    "words": b"hello world\n",
    "a bare message": f"{CHATTER}\n".encode(),
    "another program's log": b"Nov 20 08:00:01 host sshd[12]: Accepted publickey\n",
    "a journal without entries": b"-- No entries --\n",
    "JSON of another program": b'{"log":"' + OFF_BUS.encode() + b'"}\n',
    "a quote": b"# notes\nit said: " + OFF_BUS.encode(),
    "an indented log": f"    [    9.000000] {OFF_BUS}\n".encode(),
    "a collector's form": f"2026-11-20T08:00:01.5Z stdout F [    9.000000] {OFF_BUS}\n".encode(),
}


@pytest.mark.parametrize("kind", [(), ("--as", "kernel-log"), ("--as", "bug-report")], ids=["", "log", "report"])
@pytest.mark.parametrize("content", NOTHING_KNOWN.values(), ids=NOTHING_KNOWN)
def test_file_without_a_kernel_line_is_unknown(content: bytes, kind: Sequence[str], saved: Any) -> None:
    name = saved(content)
    code, out, _ = run("--json", *kind, name)
    record = json.loads(out)

    assert (code, record["status"], record["findings"]) == (2, "unknown", [])
    row = next(row for row in record["unobserved"] if row["cause"] == "NothingRecognised")
    assert row["detail"].startswith(f"{name}: it contains no line of the kernel; expected formats: dmesg")
    assert "could not check: NothingRecognised: " in run(*kind, name)[1]


def test_file_without_a_kernel_line_leaves_the_others_judged(saved: Any) -> None:
    clean, other = saved(capture(FORMS["dmesg"], HEALTHY)), saved(b"hello world\n", "other")
    assert run(clean, other)[0] == 2
    assert run(other, saved(capture(FORMS["dmesg"], FAULTY), "faulty"))[0] == 1


def test_driver_lines_after_an_unknown_prefix_are_reported(saved: Any) -> None:
    name = saved(capture(FORMS["dmesg"], HEALTHY) + f"node-3 | [    9.000000] {OFF_BUS}\n".encode() * 2)
    code, out, _ = run("--json", name)
    record = json.loads(out)

    message = f"2 lines of the driver after an unknown prefix, the first at {name}:4"
    assert (code, record["status"], record["findings"]) == (2, "unknown", [])
    assert {(row["cause"], row["detail"]) for row in record["unobserved"]} == {("LinesNotRead", message)}
    assert f"could not check: LinesNotRead: {message}\n" in run(name)[1]


@pytest.mark.parametrize("text", ["NVRM: Xid [79] on GPU 0000:3b:00.0", "NVRM: GPU 0000:3b:00.0 is off the bus"])
def test_line_about_a_fault_that_no_rule_reads_is_unknown(text: str, saved: Any) -> None:
    name = saved(capture(FORMS["dmesg"], HEALTHY) + f"[    9.000000] {text}\n".encode())
    code, out, _ = run("--json", name)
    record = json.loads(out)

    message = f"1 line of the driver about an Xid or a GPU off the bus, in an unknown form, the first at {name}:4"
    assert (code, record["status"], record["findings"]) == (2, "unknown", [])
    assert {(row["cause"], row["detail"]) for row in record["unobserved"]} == {("LinesNotRead", message)}


def test_several_files_are_one_log(saved: Any) -> None:
    first = saved(dmesg((5.0, CHATTER), (50.0, OFF_BUS)), "first")
    second = saved(dmesg((60.0, OFF_BUS)), "second")

    assert [(finding.count, finding.finding.source) for finding in replayed(first, second)] == [(2, f"{first}:2")]
    rebooted = saved(dmesg((0.0, BANNER), (60.0, CHATTER)), "rebooted")
    assert replayed(first, second, rebooted) == []


MLX5 = "mlx5_core 0000:5e:00.0: "
DEAD = f"{MLX5}mlx5_health_try_recover:335:(pid 3112): health recovery failed"


@pytest.mark.parametrize("form", FORMS)
def test_rdma_device_message_is_judged_in_each_form(form: str, saved: Any) -> None:
    lines = records((0.0, BANNER), (4.0, CHATTER), (9.0, DEAD))
    code, out, _ = run(saved(capture(FORMS[form], lines)), "--json")
    record = json.loads(out)
    (finding,) = record["findings"]
    seen = (finding["reason"], finding["severity"], finding["subject"], finding["rule"])
    assert seen == ("Mlx5Unrecoverable", "REBOOT", "rdma/0000:5e:00.0", "Mlx5Unrecoverable")
    assert ([row["check"] for row in record["checks"]], code) == (["0-nvidia-smi", "9-roce"], 1)


def test_rdma_device_message_ends_with_a_recovery(saved: Any) -> None:
    recovered = f"{MLX5}health recovery succeeded"
    code, out, _ = run(saved(dmesg((0.0, BANNER), (9.0, DEAD), (12.0, recovered))), "--json")
    record = json.loads(out)
    assert (record["findings"], [row["check"] for row in record["checks"]], code) == ([], ["0-nvidia-smi"], 0)
