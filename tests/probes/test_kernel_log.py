"""Records of /dev/kmsg: every form, every loss, from a file, from the simulated node and from the real device."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.checks import CHECKS, KERNEL_LINES
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, Host, Nature, ProbeError
from gpu_healthcheck.healthcheck.probes import kernel_log
from gpu_healthcheck.healthcheck.probes.kernel_log import (
    RING,
    KernelLog,
    Record,
    RecordBatch,
    boot_id,
    parse_record,
    read_ring,
)
from gpu_healthcheck.sim.node import SimulatedNode

XID = "NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b"6,339,5140900,-;NET: Registered", Record(339, 5.1409, 0, "NET: Registered")),
        (b"4,812,99250000,-,caller=T123;text", Record(812, 99.25, 0, "text")),
        (b"4,812,99250000,c,caller=C0,more=1,;text", Record(812, 99.25, 0, "text")),
        (b"12,7,1000000,-;from user space", Record(7, 1.0, 1, "from user space")),
        (b"30,7,1000000,-;from a daemon", Record(7, 1.0, 3, "from a daemon")),
        (b"7,0,0,-;", Record(0, 0.0, 0, "")),
        (b"4,1,2000000,-;a;b;c", Record(1, 2.0, 0, "a;b;c")),
        (b"4,1,2000000,-;  indented", Record(1, 2.0, 0, "  indented")),
        (rb"4,1,2000000,-;one\x0atwo\x09\x5cn", Record(1, 2.0, 0, "one\ntwo\t\\n")),
        (rb"4,1,2000000,-;\xc3\xa9\XFF\x", Record(1, 2.0, 0, "é\\XFF\\x")),
        (rb"4,1,2000000,-;caf\xe9 \xff", Record(1, 2.0, 0, "caf\\xe9 \\xff")),
        (b"4,1,2000000,-;raw \xff\xfe bytes", Record(1, 2.0, 0, "raw \\xff\\xfe bytes")),
        (b"4,18446744073709551,9223372036854775807,-;x", Record(18446744073709551, 9223372036854.775807, 0, "x")),
    ],
)
def test_a_record_is_read(line: bytes, record: Record) -> None:
    assert parse_record(line) == record


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"6,339,5140900,-",
        b"6,339,5140900",
        b"6,339,;text",
        b"6;text",
        b";text",
        b"six,339,5140900,-;text",
        b"-6,339,5140900,-;text",
        b"6 339 5140900 -;text",
        XID.encode(),
        b" SUBSYSTEM=pci",
        b"\x00" * 100,
        b"9" * 5000 + b",1,1,-;text",
        b"6,1,1," + b"x" * 5000 + b";text",
        "\N{ARABIC-INDIC DIGIT SIX},1,1,-;text".encode(),
    ],
)
def test_a_line_that_is_no_record_is_none(line: bytes) -> None:
    assert parse_record(line) is None


def log_of(path: Path, *lines: bytes) -> KernelLog:
    path.write_bytes(b"".join(lines))
    return KernelLog(path)


def numbered(*numbers: int) -> bytes:
    return b"".join(b"4,%d,%d,-;number %d\n" % (number, number * 1_000_000, number) for number in numbers)


def seqs(batch: RecordBatch) -> list[int]:
    return [record.seq for record in batch.records]


class TestFiles:
    """A saved log is read as the device is."""

    def test_all_records_come_at_once_and_then_the_end(self, tmp_path: Path) -> None:
        with log_of(tmp_path / "kmsg", numbered(1, 2, 3)) as log:
            batch = log.read()

            assert (seqs(batch), batch.ended, batch.more, batch.cursor) == ([1, 2, 3], True, False, 3)
            assert log.read() == RecordBatch((), ended=True, cursor=3)

    def test_an_empty_log_has_no_cursor(self, tmp_path: Path) -> None:
        with log_of(tmp_path / "kmsg") as log:
            assert log.read() == RecordBatch((), ended=True)

    def test_continuation_lines_belong_to_the_record_before_them(self, tmp_path: Path) -> None:
        more = b" SUBSYSTEM=pci\n DEVICE=+pci:0000:53:00.0\n"

        with log_of(tmp_path / "kmsg", numbered(1), more, numbered(2), more) as log:
            batch = log.read()

        assert (seqs(batch), batch.unreadable, batch.lost) == ([1, 2], 0, 0)
        assert [record.text for record in batch.records] == ["number 1", "number 2"]

    def test_records_of_user_space_are_refused_and_counted(self, tmp_path: Path) -> None:
        forged = b"".join(
            b"%d,%d,1,-;%s\n" % (priority, seq, XID.encode()) for seq, priority in enumerate((8, 12, 30, 191))
        )

        with log_of(tmp_path / "kmsg", forged, numbered(4)) as log:
            batch = log.read()

        assert (seqs(batch), batch.refused, batch.lost, batch.cursor) == ([4], 4, 0, 4)

    def test_a_record_that_begins_otherwise_is_counted_and_not_made(self, tmp_path: Path) -> None:
        others = b"4,1,1,-;usb: NVRM: Xid\n4,2,1,-;NVRM\n4,3,1,-; NVRM: Xid\n4,4,1,-;nvidia-nvswitch3: SXid\n"
        (tmp_path / "kmsg").write_bytes(others + b"4,5,1,-,caller=T1;NVRM: Xid\n12,6,1,-;NVRM: Xid\n6,8,1,-;last\n")

        with KernelLog(tmp_path / "kmsg", begins=("NVRM: ", "nvidia-nvswitch")) as log:
            batch = log.read()

        assert (seqs(batch), batch.accepted, batch.refused, batch.lost, batch.cursor) == ([4, 5], 6, 1, 1, 8)

    def test_gaps_in_the_sequence_are_counted_as_lost(self, tmp_path: Path) -> None:
        with log_of(tmp_path / "kmsg", numbered(10, 11, 15, 16, 116)) as log:
            assert log.read().lost == 3 + 99

    def test_judged_record_is_skipped(self, tmp_path: Path) -> None:
        (tmp_path / "kmsg").write_bytes(numbered(1, 2, 3, 4))

        with KernelLog(tmp_path / "kmsg", after=2) as log:
            batch = log.read()

        assert (seqs(batch), batch.lost) == ([3, 4], 0)

    def test_records_overwritten_since_the_cursor_are_lost(self, tmp_path: Path) -> None:
        (tmp_path / "kmsg").write_bytes(numbered(10, 11))

        with KernelLog(tmp_path / "kmsg", after=2) as log:
            batch = log.read()

        assert (seqs(batch), batch.lost) == ([10, 11], 7)

    def test_the_oldest_record_of_a_ring_is_no_loss_when_nothing_was_judged_yet(self, tmp_path: Path) -> None:
        with log_of(tmp_path / "kmsg", numbered(5000, 5001)) as log:
            assert log.read().lost == 0

    @pytest.mark.parametrize(
        "damage", [b"6,2\n", b"\x00\x00\x00\n", b"garbage\n", b"6,2,2000000,-\n", b"\xff\xfe\n", b"x" * 300_000 + b"\n"]
    )
    def test_a_damaged_line_is_counted_and_its_neighbours_are_read(self, tmp_path: Path, damage: bytes) -> None:
        with log_of(tmp_path / "kmsg", numbered(1), damage, numbered(2)) as log:
            batch = log.read()

        assert (seqs(batch), batch.unreadable, batch.lost) == ([1, 2], 1, 0)

    def test_an_absurdly_long_record_is_cut_and_its_neighbours_are_read(self, tmp_path: Path) -> None:
        long = b"4,2,1,-;" + XID.encode() + b"x" * 3_000_000 + b"\n"

        with log_of(tmp_path / "kmsg", numbered(1), long, numbered(3)) as log:
            batch = log.read()

        assert (seqs(batch), batch.unreadable) == ([1, 2, 3], 0)
        assert batch.records[1].text.startswith(XID)
        assert len(batch.records[1].text) < 65536

    def test_a_line_that_is_still_being_written_is_read_when_it_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "kmsg"
        with log_of(path, numbered(1), b"4,2,1,-;half of") as log, path.open("ab") as writer:
            assert seqs(log.read()) == [1]

            writer.write(b" a line\n")
            writer.flush()

            assert [record.text for record in log.read().records] == ["half of a line"]

    def test_empty_lines_and_carriage_returns_do_no_harm(self, tmp_path: Path) -> None:
        with log_of(tmp_path / "kmsg", b"\n\n", numbered(1), b"\n") as log:
            batch = log.read()

        assert (seqs(batch), batch.unreadable) == ([1], 0)

    @pytest.mark.parametrize("line", [b"4,%d,1,-;text\n", b"12,%d,1,-;forged\n", b"garbage %d\n"])
    def test_a_flood_is_read_in_bounded_portions(self, tmp_path: Path, line: bytes) -> None:
        batches = []
        with log_of(tmp_path / "kmsg", *(line % number for number in range(30_000))) as log:
            while not (batch := log.read()).ended:
                batches.append(batch)
            batches.append(batch)

        sizes = [len(record_batch.records) + record_batch.refused + record_batch.unreadable for record_batch in batches]
        assert sum(sizes) == 30_000
        assert max(sizes) <= 2000 + 16384 // 8
        assert [record_batch.more for record_batch in batches[:-1]] == [True] * (len(batches) - 1)

    @pytest.mark.parametrize(
        ("path", "message"),
        [("missing/kmsg", "kmsg: No such file or directory"), ("", "Is a directory")],
    )
    def test_unreadable_log_is_reported_with_the_reason(self, tmp_path: Path, path: str, message: str) -> None:
        with pytest.raises(ProbeError, match=message), KernelLog(tmp_path / path) as log:
            log.read()

    def test_the_whole_ring_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/kmsg").write_bytes(numbered(*range(5000)))

        assert [record.seq for record in read_ring(Host(tmp_path))] == list(range(5000))

    def test_a_file_without_end_in_a_saved_tree_ends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernel_log, "_MOST_READS", 3)
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/kmsg").symlink_to("/dev/zero")

        assert read_ring(Host(tmp_path)) == ()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_the_boot_id_of_a_saved_tree_is_a_plain_files_in_it(make: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "proc/sys/kernel/random"
    folder.mkdir(parents=True)
    make(folder / "boot_id")

    with pytest.raises(ProbeError, match="boot_id"):
        boot_id(tmp_path)


class TestSimulatedNode:
    """The same, live: one record per read, as the device gives them."""

    @pytest.fixture
    def log(self, node: SimulatedNode) -> Iterator[KernelLog]:
        with KernelLog(node.root / "dev/kmsg") as log:
            yield log

    def test_a_record_is_there_as_soon_as_it_was_written(self, node: SimulatedNode, log: KernelLog) -> None:
        log.read()
        written = node.xid(0, 79, "GPU has fallen off the bus.")

        batch = log.read()

        assert batch.records[-1] == Record(written.sequence, written.timestamp_us / 1e6, 0, XID)
        assert (batch.ended, batch.more, batch.cursor) == (False, False, written.sequence)
        assert log.read() == RecordBatch((), cursor=written.sequence)

    def test_overwritten_records_are_counted(self, node: SimulatedNode, log: KernelLog) -> None:
        log.read()
        node.kernel_log.overrun(17)
        node.kernel_log.write("after the flood")

        batch = log.read()

        assert ([record.text for record in batch.records], batch.lost) == (["after the flood"], 17)

    def test_a_restarted_reader_goes_on_where_the_last_one_stopped(self, node: SimulatedNode, log: KernelLog) -> None:
        cursor = log.read().cursor
        written = node.kernel_log.write("while nobody read")
        node.kernel_log.replay()

        with KernelLog(node.root / "dev/kmsg", after=cursor) as second:
            batch = second.read()

        assert (seqs(batch), batch.lost) == ([written.sequence], 0)

    def test_the_boot_id_is_the_nodes(self, node: SimulatedNode) -> None:
        before = boot_id(node.root)
        node.reboot()

        assert (len(before), boot_id(node.root)) == (36, node.boot_id)
        assert before != node.boot_id

    def test_missing_boot_id_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(ProbeError, match="boot_id: No such file"):
            boot_id(tmp_path)


DEVICE = Path("/dev/kmsg")
EVENT_CHECKS = tuple(check for check in CHECKS if check.nature is Nature.EVENT)
CRASH = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)  # PR_SET_NAME
ctypes.string_at(1)
"""


@pytest.fixture
def device() -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can write to /dev/kmsg")
    try:
        DEVICE.open("rb").close()
    except OSError as error:
        pytest.skip(f"{DEVICE}: {error}")
    return DEVICE


def drain(log: KernelLog) -> list[RecordBatch]:
    batches = [log.read()]
    while batches[-1].more:
        batches.append(log.read())
    return batches


class TestRealDevice:
    def test_the_ring_is_read_from_its_oldest_record_in_order(self, device: Path) -> None:
        with KernelLog(device, frozenset(range(32))) as log:
            records = [record for batch in drain(log) for record in batch.records]
            unreadable = log.read().unreadable

        assert len(records) > 10
        assert unreadable == 0
        assert [record.seq for record in records] == sorted({record.seq for record in records})

    def test_user_space_line_is_refused_as_a_forgery(self, device: Path) -> None:
        mark = uuid.uuid4().hex
        with KernelLog(device) as kernel_only, KernelLog(device, frozenset({1})) as from_user_space:
            drain(kernel_only), drain(from_user_space)
            # Priority 4 asks for the kernel's own facility; the kernel makes 1 of it.
            # Without the newline it would wait, unreadable, for its continuation.
            device.write_bytes(f"<4>NVRM: Xid (PCI:0000:53:00): 79, {mark}\x07\\ é\xff\n".encode("latin-1"))
            refused, taken = drain(kernel_only), drain(from_user_space)

        assert [record.text for batch in refused for record in batch.records if mark in record.text] == []
        assert sum(batch.refused for batch in refused) >= 1
        texts = [record.text for batch in taken for record in batch.records if mark in record.text]
        assert texts == [f"NVRM: Xid (PCI:0000:53:00): 79, {mark}\x07\\ \\xe9\\xff"]

    @pytest.mark.parametrize("begin", [*KERNEL_LINES, "NVRM: Xid (PCI:0000:05:00)", "NVRM: loading NVIDIA UNIX"])
    def test_crash_line_of_a_process_is_not_the_drivers(self, device: Path, begin: str) -> None:
        """The record is of facility 0 and begins with the name, which is whatever the process calls itself."""
        with KernelLog(device, begins=KERNEL_LINES) as log:
            drain(log)
            crashed = subprocess.Popen([sys.executable, "-c", CRASH, begin])
            crashed.wait()
            records = [record for batch in drain(log) for record in batch.records]

        said = [one for one in records if f"[{crashed.pid}]: segfault at" in one.text]
        if not said:
            pytest.skip("this kernel says nothing of a crash (debug.exception-trace), or said too much just before")
        assert (said[0].facility, said[0].text.startswith(begin[:15])) == (0, True)
        outcomes = judge(EVENT_CHECKS, Evidence({RING: tuple(said)}), Expectation())
        assert [outcome.events for outcome in outcomes if outcome.events] == []

    def test_a_cursor_skips_what_was_judged(self, device: Path) -> None:
        with KernelLog(device) as log:
            cursor = drain(log)[-1].cursor
        assert cursor

        with KernelLog(device, after=cursor) as log:
            seen = drain(log)

        assert [record.seq for batch in seen for record in batch.records if record.seq <= cursor] == []
        assert sum(batch.lost for batch in seen) == 0
