"""Open devices of real processes in the real /proc. Those of memory stand for GPUs."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.host.command import ChildError
from gpu_healthcheck.healthcheck.host.open_devices import OpenDevices
from gpu_healthcheck.healthcheck.host.open_devices_child import open_minors
from tests.device_files import NEEDS_THEM
from tests.waiting import eventually

MEMORY, NULL, ZERO = 1, 3, 5
READY = "print(flush=True); sys.stdin.read()"
FIRST_THREAD_ENDS = f"""
import ctypes, os, sys, threading
def work():
    os.open(sys.argv[1], os.O_RDONLY)
    {READY}
    os._exit(0)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@contextmanager
def running(code: str, *words: str, within: Sequence[str] = ()) -> Iterator[str]:
    """Run a process without open devices of its own, and yield its folder in /proc."""
    command = [*within, sys.executable, "-c", f"import os, sys\n{code}", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n", process.stderr and process.stderr.read()
        yield f"/proc/{process.pid}"
        process.communicate("")


def opening(path: Path | str, flags: str = "O_RDONLY") -> str:
    return f"os.open({str(path)!r}, os.{flags})\n{READY}"


def device(path: Path, kind: int = stat.S_IFCHR, minor: int = NULL) -> Path:
    os.mknod(path, kind | 0o666, os.makedev(MEMORY, minor))
    return path


def regular(path: Path) -> Path:
    path.touch()
    return path


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def link_to_a_file(path: Path) -> Path:
    path.symlink_to(regular(path.with_name("x")))
    return path


def test_device_is_found_by_its_number() -> None:
    with running(opening("/dev/null")) as process:
        assert open_minors(process, MEMORY) == {NULL}
        assert open_minors(process, 195) == set()


@pytest.mark.parametrize("make", [regular, pipe, link_to_a_file])
def test_device_name_alone_is_no_device(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with running(opening(make(tmp_path / "null"), "O_RDWR")) as process:
        assert open_minors(process, MEMORY) == set()
        (tmp_path / "null").unlink()
        assert open_minors(process, MEMORY) == set()


IN_ITS_OWN_MOUNTS = """
import subprocess
subprocess.run(["mount", "--bind", *sys.argv[1:]], check=True)
os.open(sys.argv[2], os.O_RDONLY)
"""


@NEEDS_THEM
@pytest.mark.parametrize(("is_device", "found"), [(True, {ZERO}), (False, set())])
def test_mount_of_a_container_is_followed(tmp_path: Path, *, is_device: bool, found: set[int]) -> None:
    """A file of any name may be mounted over a device, and a device over a file."""
    name = regular(tmp_path / "null")
    source, target = ("/dev/zero", str(name)) if is_device else (str(name), "/dev/zero")
    unshare = ("unshare", "--mount", "--propagation=private")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace here")
    with running(IN_ITS_OWN_MOUNTS + READY, source, target, within=unshare) as process:
        assert open_minors(process, MEMORY) == found


@NEEDS_THEM
class TestDeviceFiles:
    def test_device_is_found_behind_a_link_and_after_its_removal(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(device(tmp_path / "x"))
        with running(opening(tmp_path / "link", "O_RDWR")) as process:
            assert open_minors(process, MEMORY) == {NULL}
            (tmp_path / "x").unlink()
            assert open_minors(process, MEMORY) == {NULL}
            regular(tmp_path / "x")
            assert open_minors(process, MEMORY) == {NULL}

    def test_device_named_by_o_path_is_not_open(self, tmp_path: Path) -> None:
        """A container may make a file of any device, and name it by O_PATH, without a right to open it."""
        with running(opening(device(tmp_path / "x"), "O_PATH")) as process:
            assert open_minors(process, MEMORY) == set()
        both = f"os.open({str(tmp_path / 'x')!r}, os.O_PATH)\n{opening(tmp_path / 'x')}"
        with running(both) as process:
            assert open_minors(process, MEMORY) == {NULL}

    def test_block_device_is_no_device(self, tmp_path: Path) -> None:
        with running(opening(device(tmp_path / "null", stat.S_IFBLK), "O_PATH")) as process:
            assert open_minors(process, MEMORY) == set()


def test_process_without_its_first_thread_has_its_devices() -> None:
    with running(FIRST_THREAD_ENDS, "/dev/zero") as process:
        eventually(lambda: not list(Path(process, "fd").iterdir()))
        assert open_minors(process, MEMORY) == {ZERO}


def test_child_answers_for_each_process_separately() -> None:
    with OpenDevices(Path("/"), MEMORY) as devices, running(opening("/dev/zero")) as first, running(READY) as second:
        assert devices.of(int(first.rpartition("/")[2])) == {ZERO}
        assert devices.of(int(second.rpartition("/")[2])) == set()
    assert open_minors(second, MEMORY) == set()


def test_unreadable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "proc/self/fd").mkdir(parents=True)
    (tmp_path / "proc/self/task").mkdir()
    (tmp_path / "proc/7").mkdir()
    (tmp_path / "proc/7/fd").symlink_to("fd")
    with OpenDevices(tmp_path, MEMORY) as devices, pytest.raises(ChildError, match="Too many levels"):
        devices.of(7)
