"""A file of ours on the node: whole or as it was, and one process's at a time."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.host import node_file
from gpu_healthcheck.healthcheck.host.node_file import NotAFile

HOLD = """
import sys
from pathlib import Path
from gpu_healthcheck.healthcheck.host import node_file
print(node_file.lock(Path(sys.argv[1])) is not None, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.json"


@pytest.mark.parametrize("on_disk", [True, False])
def test_file_is_replaced_atomically(path: Path, on_disk: bool) -> None:
    node_file.replace_whole(path, b"old", on_disk=on_disk)
    with path.open("rb") as reader:
        node_file.replace_whole(path, b"new", on_disk=on_disk)
        assert reader.read() == b"old"
    assert (path.read_bytes(), list(path.parent.iterdir())) == (b"new", [path])


def test_full_disk_leaves_the_previous_file(path: Path) -> None:
    node_file.replace_whole(path, b"old")
    with no_room(), pytest.raises(OSError, match="File too large"):
        node_file.replace_whole(path, b"new")
    assert path.read_bytes() == b"old"


@contextmanager
def no_room() -> Iterator[None]:
    """The kernel refuses whatever this process writes to a file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


PLANTED: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": socket_at,
    "a link to a file": lambda path: path.symlink_to("/etc/hostname"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_path_that_is_no_file_is_not_opened_but_replaced(path: Path, plant: Callable[[Path], object]) -> None:
    plant(path)
    plant(path.with_suffix(".new"))
    with pytest.raises(NotAFile, match="not a regular file"):
        node_file.read_start(path, 10)
    with pytest.raises(NotAFile, match="not a regular file"):
        node_file.lock(path)

    node_file.replace_whole(path, b"new")

    assert (node_file.read_start(path, 10), list(path.parent.iterdir())) == (b"new", [path])


def test_owners_file_replaces_no_other_file(path: Path) -> None:
    path.with_suffix(".new").write_bytes(b"somebody's")
    path.write_bytes(b"old")
    path.chmod(0o644)
    node_file.replace_for_owner(path, b"new")

    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)
    assert path.with_suffix(".new").read_bytes() == b"somebody's"


def test_owners_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        node_file.replace_for_owner(tmp_path / "folder", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(("most", "read"), [(0, b""), (3, b"012"), (9, b"0123")])
def test_read_is_limited(path: Path, most: int, read: bytes) -> None:
    path.write_bytes(b"0123")
    assert node_file.read_start(path, most) == read


def another(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def has_it(process: subprocess.Popen[str]) -> bool:
    assert process.stdout
    return process.stdout.readline().strip() == "True"


def test_lock_has_one_holder_until_its_release_or_end(tmp_path: Path) -> None:
    path = tmp_path / "made/lock"
    mine = node_file.lock(path)
    assert mine is not None
    with another(path) as waits_in_vain:
        assert not has_it(waits_in_vain)
        waits_in_vain.kill()
    node_file.unlock(mine)

    with another(path) as holder:
        assert has_it(holder)
        assert node_file.lock(path) is None
        holder.kill()
    again = node_file.lock(path)
    assert again is not None
    node_file.unlock(again)


def test_lock_in_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        node_file.lock(tmp_path / "file/lock")
