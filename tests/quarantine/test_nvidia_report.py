"""NVIDIA's own report: collected of a node that failed, within its time and its size, whatever the script does."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.host import nvidia_report
from gpu_healthcheck.healthcheck.host.nvidia_report import BugReport
from tests.quarantine.world import World, end_of
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

AT = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)
WRITES = 'while [ "$1" != --output-file ]; do shift; done\necho "report of $NODE_NAME" | gzip >"$2.gz"'


def install(root: Path, body: str) -> None:
    """As the host's driver brings it."""
    script = root / "usr/bin" / nvidia_report.PROGRAM
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


def test_a_node_that_failed_leaves_its_report_on_the_host(world: World) -> None:
    install(world.host.root, WRITES)
    world.host.write_value("nccl/fails", "nvlink")

    world.run()

    report = Path(world.record["bug_report"])
    assert (report.parent, report.suffix, report.is_file()) == (world.reports, ".gz", True)
    assert world.marks == ("", "", False)


def test_a_node_that_passed_needs_none(world: World) -> None:
    install(world.host.root, WRITES)
    world.run()
    assert ("bug_report" in world.record, list(world.reports.glob("nvidia*"))) == (False, [])


def test_without_the_script_there_is_none(tmp_path: Path) -> None:
    assert BugReport(tmp_path, tmp_path / "reports").collect(AT) == ""


@pytest.mark.parametrize("body", ["sleep 999", "exit 3", "kill -9 $$"])
def test_a_script_that_hangs_or_fails_leaves_none(tmp_path: Path, body: str) -> None:
    install(tmp_path, body)
    assert BugReport(tmp_path, tmp_path / "reports", 0.5).collect(AT) == ""


def test_a_stopped_run_does_not_wait(world: World) -> None:
    install(world.host.root, "sleep 999")
    world.host.write_value("nccl/fails", "nvlink")
    with world.started() as process:
        eventually(lambda: world.record.get("findings") and "running" not in world.record)
        process.send_signal(signal.SIGTERM)
        code = end_of(process).code

    assert (code, world.record["recommendation"], world.marks) == (1, "reset", ("", "", False))
    assert "bug_report" not in world.record


def test_what_one_has_written_before_it_hung_is_kept(tmp_path: Path) -> None:
    install(tmp_path, 'echo begun >"$2"; sleep 999')
    report = BugReport(tmp_path, tmp_path / "reports", 1.0).collect(AT)
    assert Path(report).read_text() == "begun\n"
    assert Path(report).name == "nvidia-bug-report-20261121T010203Z.log"


def test_no_report_is_larger_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_report, "MOST_BYTES", 4096)
    install(tmp_path, 'head -c 1000000 /dev/zero >"$2"')
    report = BugReport(tmp_path, tmp_path / "reports").collect(AT)
    assert Path(report).stat().st_size == 4096


def test_old_reports_make_room_and_foreign_files_stay(tmp_path: Path) -> None:
    install(tmp_path, 'echo new >"$2"')
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "notes.txt").write_text("a person's")
    for day in range(1, 6):
        (folder / f"nvidia-bug-report-2026110{day}T000000Z.log.gz").write_text("old")

    BugReport(tmp_path, folder).collect(AT)

    assert sorted(file.name for file in folder.iterdir()) == [
        "notes.txt",
        "nvidia-bug-report-20261104T000000Z.log.gz",
        "nvidia-bug-report-20261105T000000Z.log.gz",
        "nvidia-bug-report-20261121T010203Z.log",
    ]
