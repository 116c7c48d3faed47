"""Processes of a simulated host that probes read: the first two, and the services of the GPUs."""

import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

KERNEL_AND_INIT = {1: "systemd", 2: "kthreadd"}
LOG = "var/log/fabricmanager.log"
_TICKS_PER_SECOND = 100
_LONGEST_COMM = 15
ALL_CAPABILITIES, USERS_OF_HOST = "000001ffffffffff", "user:[4026531837]"
DRIVER_ROOT = "/run/nvidia/driver"
NETWORK_OF_HOST = "net:[4026531840]"


@dataclass(frozen=True)
class Container:
    """Process of a container as the kernel shows it. The defaults are those of an ordinary pod."""

    cgroup: str
    capabilities: str = "00000000a80425fb"
    users: str = USERS_OF_HOST
    device: str = "0:301"
    uid: int = 0


class HostServices:
    """Processes and services of a simulated node."""

    def __init__(self, root: Path, write: Callable[[str, object], None]) -> None:
        self._root = root
        self._write = write
        self._pids: dict[str, int] = {}

    def boot(self, uptime_seconds: float) -> None:
        """Remove all processes except the first two."""
        for pid in self._pids.values():
            shutil.rmtree(self._root / f"proc/{pid}", ignore_errors=True)
        self._pids.clear()
        self._write("proc/uptime", f"{uptime_seconds:.2f} {uptime_seconds:.2f}")
        self._write("proc/stat", f"btime {time.time() - uptime_seconds:.0f}")
        for pid, name in KERNEL_AND_INIT.items():
            self._write_process(pid, name, 0.0)
        self._write("proc/1/cgroup", "0::/init.scope")
        self._write("proc/1/status", f"Name:\tsystemd\nCapEff:\t{ALL_CAPABILITIES}")
        self._write("proc/1/mountinfo", "30 1 0:27 / / rw - ext4 /dev/root rw")
        self._link("proc/1/ns/user", USERS_OF_HOST)

    def start(self, name: str, age_seconds: float) -> None:
        """Start or restart a service. `age_seconds`: the age of its process."""
        self.stop(name)
        self._pids[name] = next(pid for pid in count(1041) if pid not in self._pids.values())
        self.run(self._pids[name], name, age_seconds)
        self._write(f"proc/{self._pids[name]}/cgroup", f"0::/system.slice/{name}.service")

    def run(self, pid: int, name: str, age_seconds: float) -> None:
        """Show a process with this age in place of an earlier one with its pid."""
        uptime = float((self._root / "proc/uptime").read_text().split()[0])
        self._write_process(pid, name, max(0.0, uptime - age_seconds))

    def start_in_container(self, pid: int, name: str, container: Container) -> None:
        """Start a process with any name in a pod or another container."""
        self._write_process(pid, name, 0.0)
        self._write(f"proc/{pid}/cgroup", container.cgroup)
        uids = "\t".join([str(container.uid)] * 4)
        self._write(f"proc/{pid}/status", f"Name:\t{name}\nUid:\t{uids}\nCapEff:\t{container.capabilities}")
        self._write(f"proc/{pid}/mountinfo", f"900 800 {container.device} / / rw,relatime - overlay overlay rw")
        self._link(f"proc/{pid}/ns/user", container.users)

    def listen(self, pid: int, address: str, port: int, network: str = "") -> None:
        """Show a listening socket of this process: in its files, and in its network's table.

        `network` is '' for the host's network, which the table of process 1 shows too.
        """
        inode = 40000 + pid
        raw = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
        head = "  sl  local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode"
        row = f"   0: {raw}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 {inode} 1"
        for number in (pid,) if network else (pid, 1):
            self._write(f"proc/{number}/net/tcp", f"{head}\n{row}")
            self._link(f"proc/{number}/ns/net", network or NETWORK_OF_HOST)
        self._link(f"proc/{pid}/fd/3", f"socket:[{inode}]")

    def open_file(self, pid: int, path: str, flags: int = os.O_RDWR) -> int:
        """Let the process have a file open, by its path as this machine has it, and return its descriptor."""
        folder = self._root / f"proc/{pid}/fd"
        descriptor = next(number for number in count(3) if not (folder / str(number)).is_symlink())
        self._link(f"proc/{pid}/fd/{descriptor}", path)
        self._write(f"proc/{pid}/fdinfo/{descriptor}", f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t27\n")
        return descriptor

    def open_device(self, pid: int, major: int, minor: int, name: str = "nvidia0", flags: int = os.O_RDWR) -> None:
        """Let the process have a real device file of its own /dev open. Raises PermissionError without root."""
        file = self._root / f"proc/{pid}/dev/{name}"
        file.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        self.open_file(pid, str(file), flags)

    def end_process(self, pid: int) -> None:
        shutil.rmtree(self._root / f"proc/{pid}", ignore_errors=True)

    def show_driver_root(self, device: str) -> None:
        """Mount a root on the host, as the GPU operator's driver container does."""
        mounts = (("0:27", "/"), (device, DRIVER_ROOT))
        lines = [f"30 1 {number} / {place} rw,relatime - overlay overlay rw" for number, place in mounts]
        self._write("proc/1/mountinfo", "\n".join(lines))

    def pid_of(self, name: str) -> int:
        return self._pids[name]

    def stop(self, name: str) -> None:
        if name in self._pids:
            shutil.rmtree(self._root / f"proc/{self._pids.pop(name)}")

    def enable(self, name: str) -> None:
        """Enable a service, so that systemd starts it at boot."""
        target = self._root / "etc/systemd/system/multi-user.target.wants"
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{name}.service").symlink_to(f"/usr/lib/systemd/system/{name}.service")

    def disable(self, name: str) -> None:
        (self._root / f"etc/systemd/system/multi-user.target.wants/{name}.service").unlink(missing_ok=True)

    def log(self, level: str, text: str) -> None:
        """Append a line to the fabric manager's log."""
        file = self._root / LOG
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as log:
            log.write(f"[{time.strftime('%b %d %Y %H:%M:%S')}] [{level}] [tid 1041] {text}\n")

    def _write_process(self, pid: int, name: str, started_seconds: float) -> None:
        comm = name[:_LONGEST_COMM]
        started = int(started_seconds * _TICKS_PER_SECOND)
        self._write(f"proc/{pid}/comm", comm)
        self._write(f"proc/{pid}/stat", f"{pid} ({comm}) S 1 {pid} {pid} 0 -1 4194560 {'0 ' * 8}20 0 1 0 {started} 0")

    def _link(self, path: str, target: str) -> None:
        link = self._root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
