"""The kubelet and the container runtime of a simulated node, with the file layout of each distribution."""

import os
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

TOOLKIT_PROGRAM = "usr/bin/nvidia-container-runtime"
# Modification time of every file: the build of the image, so that files are older than all processes.
IMAGE_MADE = 1_750_000_000
_TICKS_PER_SECOND = 100
_FIRST_PID = 901
_FIRST_INODE = 77001
_FIRST_DESCRIPTOR = 3
_MOUNTS_OF_HOST = "mnt:[4026531841]"
_MACHINES = {"x86_64": 62, "aarch64": 183}
"""e_machine of ELF (elf.h)."""

V2 = 'plugins."io.containerd.grpc.v1.cri"'
V3 = 'plugins."io.containerd.cri.v1.runtime"'


def handler(section: str, name: str, program: str = "", *, systemd_cgroup: bool = True) -> str:
    """Return the tables of containerd's configuration that define the handler."""
    table = f"{section}.containerd.runtimes.{name}"
    lines = [f"[{table}]", 'runtime_type = "io.containerd.runc.v2"', f"[{table}.options]"]
    lines += [f'BinaryName = "{program}"', f"SystemdCgroup = {str(systemd_cgroup).lower()}"]
    return "\n".join(lines) + "\n"


def default(section: str, name: str) -> str:
    return f'[{section}.containerd]\ndefault_runtime_name = "{name}"\n'


RUNC_V2 = handler(V2, "runc")
NVIDIA_V2 = handler(V2, "nvidia", f"/{TOOLKIT_PROGRAM}")
NVIDIA_V3 = handler(V3, "nvidia", f"/{TOOLKIT_PROGRAM}")


class RuntimeProcess(msgspec.Struct, frozen=True):
    """Process: name, arguments, service, and listening sockets.

    `program`: the executable; by default the first argument.
    """

    comm: str
    words: tuple[str, ...]
    unit: str = ""
    listens: tuple[str, ...] = ()
    program: str = ""


class Distribution(msgspec.Struct, frozen=True):
    """Layout: `files` and `programs` below the root; `links` by path."""

    files: Mapping[str, str]
    processes: tuple[RuntimeProcess, ...]
    programs: tuple[str, ...] = (TOOLKIT_PROGRAM,)
    links: Mapping[str, str] = {}
    folders: tuple[str, ...] = ()


_LAYOUTS = Path(__file__).with_name("distributions.yaml")
DISTRIBUTIONS = msgspec.yaml.decode(_LAYOUTS.read_bytes(), type=dict[str, Distribution])


class ContainerRuntime:
    """Container runtime of a simulated node: its files and processes."""

    def __init__(self, root: Path, write: Callable[[str, object], None]) -> None:
        self._root = root
        self._write = write
        self._laid_out = DISTRIBUTIONS["eks-al2023"]
        self._pids: list[int] = []
        self.runs = False
        """Whether the processes start at a boot: on a node without them, no check asks for a container runtime."""

    def install(self, distribution: str) -> None:
        """Replace the existing runtime; no process runs before `start`."""
        for path in (*self._laid_out.files, *self._laid_out.programs, *self._laid_out.links):
            (self._root / path).unlink(missing_ok=True)
            self._forget_empty((self._root / path).parent)
        for path in self._laid_out.folders:
            self._forget_empty(self._root / path)
        self._laid_out = DISTRIBUTIONS[distribution]
        for path, text in self._laid_out.files.items():
            self.put(path, text)
        for path in self._laid_out.programs:
            self.put_program(path)
        for path, target in self._laid_out.links.items():
            (self._root / path).symlink_to(target)
        for path in self._laid_out.folders:
            (self._root / path).mkdir(parents=True)

    def put(self, path: str, text: str) -> None:
        """Write a file as the image contains it, unchanged since."""
        self._write(path, text)
        os.utime(self._root / path, (IMAGE_MADE, IMAGE_MADE))

    def put_program(self, path: str, architecture: str = "x86_64") -> None:
        """Write an executable ELF file; only its header is read."""
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # 64 bits, little end first
        executable, version, size = 2, 1, 64
        fields = (executable, _MACHINES[architecture], version, 0, 0, 0, 0, size, 56, 0, 64, 0, 0)
        file.write_bytes(identity + struct.pack("<HHIQQQIHHHHHH", *fields))
        file.chmod(0o755)
        os.utime(file, (IMAGE_MADE, IMAGE_MADE))

    def boot(self, age_seconds: float) -> None:
        """Show the host's mounts, and start the processes if they run on this node."""
        self._link("proc/1/ns/mnt", _MOUNTS_OF_HOST)
        if self.runs:
            self.start(age_seconds)

    def start(self, age_seconds: float) -> None:
        """Start the processes of the runtime with this age."""
        self.stop()
        self.runs = True
        uptime = float((self._root / "proc/uptime").read_text().split()[0])
        started = int(max(0.0, uptime - age_seconds) * _TICKS_PER_SECOND)
        sockets = [path for process in self._laid_out.processes for path in process.listens]
        inodes = {path: inode for inode, path in enumerate(sockets, _FIRST_INODE)}
        for pid, process in enumerate(self._laid_out.processes, _FIRST_PID):
            self._pids.append(pid)
            self._run(pid, process, started, inodes)

    def stop(self) -> None:
        for pid in self._pids:
            shutil.rmtree(self._root / f"proc/{pid}", ignore_errors=True)
        self._pids.clear()
        self.runs = False

    def _forget_empty(self, folder: Path) -> None:
        """Remove the folder and its empty parents: some distributions are detected by a folder."""
        while folder != self._root and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent

    def _run(self, pid: int, process: RuntimeProcess, started: int, inodes: Mapping[str, int]) -> None:
        """Write the process's files in /proc (proc(5)); `started`: ticks after boot."""
        folder = f"proc/{pid}"
        self._write(f"{folder}/comm", process.comm)
        about = f"{pid} ({process.comm}) S 1 {pid} {pid} 0 -1 4194560 {'0 ' * 8}20 0 1 0 {started} 0"
        self._write(f"{folder}/stat", about)
        (self._root / folder / "cmdline").write_text("".join(f"{word}\0" for word in process.words))
        self._write(
            f"{folder}/cgroup", f"0::/system.slice/{process.unit}" if process.unit else "0::/podruntime/runtime"
        )
        self._write(f"{folder}/net/unix", _listening(inodes))
        self._link(f"{folder}/exe", process.program or process.words[0])
        self._link(f"{folder}/root", "/")
        self._link(f"{folder}/ns/mnt", _MOUNTS_OF_HOST)
        self._link(f"{folder}/fd/0", "/dev/null")
        for descriptor, path in enumerate(process.listens, _FIRST_DESCRIPTOR):
            self._link(f"{folder}/fd/{descriptor}", f"socket:[{inodes[path]}]")

    def _link(self, path: str, target: str) -> None:
        link = self._root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _listening(inodes: Mapping[str, int]) -> str:
    """Return /proc/net/unix: each listening socket, and one connection to it, which has the same name."""
    lines = ["Num       RefCount Protocol Flags    Type St Inode Path"]
    for path, inode in inodes.items():
        lines.append(f"0000000000000000: 00000002 00000000 00010000 0001 01 {inode} {path}")
        lines.append(f"0000000000000000: 00000003 00000000 00000000 0001 03 {inode + 1000} {path}")
    return "\n".join(lines)
