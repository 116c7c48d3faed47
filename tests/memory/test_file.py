"""The memory's file: whole or not at all, one writer at a time, and never in the way when it is broken."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory import exits
from gpu_healthcheck.healthcheck.memory.file import MemoryFile, MemoryFileError
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, CountedProcess, Memory, ProcessHit, Release
from gpu_healthcheck.healthcheck.model import Nature, Now
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware, GpuPosition
from tests.examples import BOOT, GPU, WALL, active_finding, fault, memory_with
from tests.host.test_node_file import PLANTED, no_room

MEMORY = memory_with(
    replace(
        active_finding(fault(about={"serial": "165"}, rule="xid.csv:79", escalates=False), seq=41),
        processes=(CountedProcess("7 a, b", 1.5), CountedProcess("", 2.000001)),
    ),
    active_finding(fault("GpuCountLow", subject="node"), Nature.LEVEL, check="gpu-count", boot_id="the boot before"),
    cursor=2**40,
    driver_loaded_at=17.25,
    instance_type="p5.48xlarge",
    released=Release("ann", "cable reseated", WALL, ()),
    acknowledged=(Acknowledgement("Xid79", GPU, BOOT, 7, WALL), Acknowledgement("Dcgm", "dcgm", BOOT, None, WALL)),
    gpus={"0000:53:00.0": {"index": "0", "uuid": "GPU-1", "serial": "165"}},
    recovery={"0000:53:00.0": 2},
    last_xid={"0000:53:00.0": 12.000001},
    hits={("Xid13", "0000:53:00.0"): (ProcessHit("7 a, b", "GPC 1, TPC 3", 1.5, WALL), ProcessHit("", "", 2.5, WALL))},
    ended={("Xid79", "165"): (WALL, WALL)},
    first=EarlierHardware(32, {"0000:53:00.0": GpuPosition(0, "0000:51:00.0"), "0000:64:00.0": GpuPosition(-1, "")}, 2),
)
SECOND_AGENT = """
import sys
from pathlib import Path
from gpu_healthcheck.healthcheck.memory.file import MemoryFile
file = MemoryFile(Path(sys.argv[1]))
print(file.acquire(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[MemoryFile]:
    memory_file = MemoryFile(tmp_path / "state")
    assert memory_file.acquire() is True
    yield memory_file
    memory_file.unlock()


def start_second_agent(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SECOND_AGENT, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def first_line(agent: subprocess.Popen[str]) -> str:
    assert agent.stdout
    return agent.stdout.readline().strip()


def test_a_missing_file_is_no_memory(file: MemoryFile) -> None:
    assert file.read() is None


@pytest.mark.parametrize(
    "memory",
    [MEMORY, Memory(), Memory(first=EarlierHardware(0)), Memory(cursor=10**19 - 1)],
    ids=["all parts", "empty", "no EFA device", "the last position in a log"],
)
def test_a_written_memory_is_read_back_exactly(file: MemoryFile, memory: Memory) -> None:
    file.write(memory)

    assert file.read() == memory


def test_a_write_replaces_the_file_without_leftovers(file: MemoryFile) -> None:
    file.write(memory_with())
    with file.path.open("rb") as reader:
        file.write(MEMORY)
        seen_by_a_reader = json.loads(reader.read().splitlines()[1])

    assert seen_by_a_reader["findings"] == []
    assert sorted(path.name for path in file.directory.iterdir()) == ["lock", "memory.json"]


def test_an_interrupted_write_leaves_the_old_memory(file: MemoryFile) -> None:
    file.write(MEMORY)
    file.path.with_suffix(".new").write_bytes(b'{"schema": 1, "mach')  # as a crash before the rename leaves it

    assert file.read() == MEMORY
    file.write(memory_with())
    assert file.read() == memory_with()


def test_a_full_disk_leaves_the_old_memory(file: MemoryFile) -> None:
    file.write(MEMORY)
    with no_room(), pytest.raises(MemoryFileError, match=r"memory\.json: File too large"):
        file.write(memory_with())

    assert file.read() == MEMORY


def test_only_the_owner_of_the_lock_writes(tmp_path: Path) -> None:
    with pytest.raises(MemoryFileError, match="only the owner of the lock may write"):
        MemoryFile(tmp_path).write(MEMORY)


def test_second_agent_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    first = start_second_agent(tmp_path)
    assert first_line(first) == "True"
    ours = MemoryFile(tmp_path)
    assert (ours.acquire(), ours.acquire()) == (False, False)

    first.kill()  # a crash releases it as an exit does
    first.communicate()

    assert (ours.acquire(), ours.acquire()) == (True, True)
    second = start_second_agent(tmp_path)
    assert first_line(second) == "False"
    second.communicate("\n")
    ours.unlock()


def test_children_do_not_inherit_the_lock(tmp_path: Path) -> None:
    ours = MemoryFile(tmp_path)
    ours.acquire()
    child = subprocess.Popen(["sleep", "60"], close_fds=False)

    ours.unlock()
    again = MemoryFile(tmp_path)

    assert again.acquire() is True
    child.kill()
    child.communicate()
    again.unlock()


def test_a_lock_can_be_released_twice(tmp_path: Path) -> None:
    ours = MemoryFile(tmp_path)
    ours.acquire()
    ours.unlock()
    ours.unlock()

    assert ours.acquire() is True
    ours.unlock()


def whole(schema: object = 2, digest: str = "", **changes: object) -> bytes:
    """A file that is one, or that is none by one value alone."""
    nothing: dict[str, object] = {key: [] for key in ("findings", "acknowledged", "hits", "ended")}
    nothing |= {key: {} for key in ("gpus", "recovery", "last_xid")} | {"released": None, "driver_loaded_at": None}
    body = json.dumps({"machine": "", "boot_id": "b", "cursor": 1, **nothing, **changes}).encode()
    header = {"schema": schema, "sha256": digest or hashlib.sha256(body).hexdigest()}
    return json.dumps(header).encode() + b"\n" + body + b"\n"


def test_a_file_of_an_earlier_version_is_read(file: MemoryFile) -> None:
    """A file of an earlier version, without the machine's earlier hardware."""
    file.path.write_bytes(whole())

    assert file.read() == Memory(boot_id="b", cursor=1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00" * 4096,  # as a file system leaves a file after a crash
        whole()[:-20],
        whole().replace(b'"cursor": 1', b'"cursor": 2'),
        b"{}",
        b"[" * 100_000,
        b'{"schema": 1, "machine": "", "boot_id": "b", "cursor": 1, "driver_loaded_at": null, "findings": []}',
        whole(schema=3),
        whole(digest="0"),
        whole(cursor="x"),
        whole(findings=["Xid79"]),
        whole(findings=[{"boot_id": "b"}]),
        whole(released={"by": "ann"}),
        whole(hits=[["Xid13"]]),
        whole(ended=[["Xid79", "1", "yesterday"]]),
        whole(first=None),
        whole(first={"efa": 1, "places": {"0000:53:00.0": [1]}}),
        whole() + b" " * (5 << 20),
    ],
)
def test_file_that_is_no_memory_is_set_aside_and_reported(file: MemoryFile, raw: bytes) -> None:
    file.path.write_bytes(raw)

    with pytest.raises(MemoryFileError, match=r"memory\.json: .*; renamed to memory\.unreadable"):
        file.read()

    assert file.directory.joinpath("memory.unreadable").read_bytes() == raw
    assert file.read() is None
    file.write(MEMORY)
    assert file.read() == MEMORY


def test_directory_in_place_of_the_file_is_reported(file: MemoryFile) -> None:
    file.path.mkdir()

    with pytest.raises(MemoryFileError, match=r"memory\.json: Is a directory"):
        file.read()
    with pytest.raises(MemoryFileError, match=r"memory\.json: Is a directory"):
        file.write(MEMORY)


@pytest.mark.parametrize("path", ["/proc/1/state", "/sys/state", "/dev/null/state"])
def test_unwritable_folder_is_reported(path: str) -> None:
    with pytest.raises(MemoryFileError, match=path):
        MemoryFile(Path(path)).acquire()


def test_vanished_directory_is_reported(file: MemoryFile) -> None:
    (file.directory / "lock").unlink()
    file.directory.rmdir()

    with pytest.raises(MemoryFileError, match="No such file or directory"):
        file.write(MEMORY)
    assert file.read() is None


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a read-only file system")
    directory = tmp_path / "read-only"
    directory.mkdir()
    MemoryFile(directory).acquire()
    (directory / "memory.json").write_bytes(b"torn")
    mounted = subprocess.run(["mount", "--bind", "-o", "ro", directory, directory], check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no mount in this container: {mounted.stderr!r}")
    yield directory
    subprocess.run(["umount", directory], check=True)


def test_read_only_file_system_is_reported_and_read(read_only: Path) -> None:
    file = MemoryFile(read_only)

    with pytest.raises(MemoryFileError, match="Read-only file system"):
        file.acquire()
    with pytest.raises(MemoryFileError, match="it can't be renamed: Read-only file system"):
        file.read()


def test_memory_with_any_releases_is_read_back(file: MemoryFile) -> None:
    """As long as an annotation is read, one after the other, each letter of many bytes."""
    memory = Memory("machine", BOOT)
    for number in range(40):
        rows = [Acknowledgement(f"{number}-{row}{'😀' * 4000}", "😀" * 4000, BOOT, None, WALL) for row in range(7)]
        memory = exits.after_release(memory, Release("x", f"{number}", WALL, tuple(rows)), Now(WALL, float(number)))

    file.write(memory)

    assert file.read() == memory
    assert len(memory.acknowledged) >= 7
    assert memory.acknowledged[-1].reason.startswith("39-6")


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("name", ["memory.json", "lock"])
def test_folder_in_place_of_a_file_is_reported(tmp_path: Path, name: str, plant: Callable[[Path], object]) -> None:
    plant(tmp_path / name)
    file = MemoryFile(tmp_path)
    if name == "lock":
        with pytest.raises(MemoryFileError, match="lock: not a regular file"):
            file.acquire()
        assert "lock: not a regular file" in file.unlocked
    else:
        assert file.acquire() is True
        with pytest.raises(MemoryFileError, match="not a regular file"):
            file.read()
        file.write(MEMORY)
        assert file.read() == MEMORY
    file.unlock()
