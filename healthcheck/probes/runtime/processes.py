"""The kubelet and the container runtimes among the host's processes, and which runtime the kubelet talks to."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from healthcheck.clock import now
from healthcheck.probes.runtime import host_files

CONTAINERD, CRIO = "containerd", "crio"
STANDARD_SOCKET = "/run/containerd/containerd.sock"
"""The kubelet's default for --container-runtime-endpoint on Linux."""
_SOCKETS = {
    "kubelet": STANDARD_SOCKET,
    "kubelite": "/var/snap/microk8s/common/run/containerd.sock",
    "k3s": "/run/k3s/containerd/containerd.sock",
    "rke2": "/run/k3s/containerd/containerd.sock",
    "k0s": "/run/k0s/containerd.sock",
}
"""Programs that are the kubelet or hold it, the likeliest first, and the socket that each uses unless told otherwise.

RKE2 and k0s start a kubelet as a process of its own beside them.
"""
_UPTIME = re.compile(rb"(\d{1,12}\.\d\d) ")
_TICKS_PER_SECOND = 100
"""USER_HZ, the unit of times in /proc/PID/stat: 100 on every architecture that has NVIDIA GPUs."""
_DEAD = (b"Z", b"X", b"x")
_LONGEST_COMMAND = 1 << 16
_LONGEST_LIST = 1 << 22
_LISTENING = "00010000"
"""__SO_ACCEPTCON, as /proc/net/unix shows it."""


@dataclass(frozen=True, slots=True)
class Process:
    """`started` is in seconds of UTC, None where it can't be told."""

    pid: int
    name: str
    arguments: tuple[str, ...]
    started: float | None

    def flag(self, *names: str) -> str:
        """The last value of a flag, written `--flag=value` or `--flag value`; '' without one."""
        value = ""
        for place, word in enumerate(self.arguments):
            name, given, told = word.partition("=")
            if name in names:
                value = told if given else "".join(self.arguments[place + 1 : place + 2])
        return value


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The socket on which the kubelet expects its runtime, and who says so."""

    socket: str
    source: str


def find(root: Path) -> tuple[Process, ...]:
    """The programs that we look for, by number; none where there is no /proc to look at."""
    try:
        booted = now().wall.timestamp() - _uptime(root)
        folder = os.open(root / "proc", os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, ValueError):
        return ()
    try:
        return tuple(sorted(_found(folder, booted), key=lambda one: one.pid))
    finally:
        os.close(folder)


def are_the_hosts(root: Path) -> bool:
    """Process 2 is the kernel's own, and no container's: who sees it sees them all."""
    try:
        return (root / "proc/2/comm").read_bytes().strip() == b"kthreadd"
    except OSError:
        return False


def kubelet_of(found: Sequence[Process]) -> Process | None:
    by_likelihood = list(_SOCKETS)
    known = [one for one in found if _program(one.name) in _SOCKETS]
    return min(known, key=lambda one: by_likelihood.index(_program(one.name)), default=None)


def endpoint_of(root: Path, kubelet: Process) -> Endpoint:
    """Its flag outranks its file (kubelet's own order); what neither says is the program's default."""
    if socket := kubelet.flag("--container-runtime-endpoint"):
        return Endpoint(socket_path(root, socket), f"--container-runtime-endpoint of {kubelet.name}")
    config = kubelet.flag("--config")
    if config and (socket := _configured_endpoint(root, config)):
        return Endpoint(socket_path(root, socket), f"containerRuntimeEndpoint in {config}")
    return Endpoint(socket_path(root, _SOCKETS[_program(kubelet.name)]), f"default of {kubelet.name}")


def socket_path(root: Path, endpoint: str) -> str:
    """`unix:///var/run/x.sock` as `/run/x.sock`: one name for one socket."""
    path = endpoint.removeprefix("unix://")
    with contextlib.suppress(OSError):
        path = host_files.resolve(root, path)
    # On every host it is a link, and a captured tree may lack it.
    return f"/run/{path.removeprefix('/var/run/')}" if path.startswith("/var/run/") else path


def holder_of(root: Path, kubelet: Process, socket: str, among: Sequence[Process]) -> Process | None:
    """Who has that socket open and listens on it, as far as the kernel lets us see."""
    links = {f"socket:[{inode}]" for inode in _listening(root, kubelet.pid, socket)}
    return next((one for one in among if links and _has_open(root, one.pid, links)), None)


def _program(name: str) -> str:
    return "k3s" if name.startswith("k3s") else name


def _uptime(root: Path) -> float:
    found = _UPTIME.match((root / "proc/uptime").read_bytes())
    if found is None:
        raise ValueError("no number of seconds")
    return float(found[1])


def _found(folder: int, booted: float) -> Iterator[Process]:
    # A host has thousands: one short path and one read for each, and more only for those that we look for.
    for pid in os.scandir(folder):
        if not (pid.name.isascii() and pid.name.isdigit()):
            continue
        name = _read(folder, f"{pid.name}/comm").rstrip().decode("utf-8", "replace")
        if name not in (CONTAINERD, CRIO) and _program(name) not in _SOCKETS:
            continue
        state, seconds = _state(_read(folder, f"{pid.name}/stat"))
        if state not in _DEAD:
            words = _read(folder, f"{pid.name}/cmdline").rstrip(b"\0").split(b"\0")
            started = None if seconds is None else booted + seconds
            yield Process(int(pid.name), name, tuple(word.decode("utf-8", "replace") for word in words), started)


def _read(folder: int, path: str) -> bytes:
    """The beginning of a file; nothing where the process has gone."""
    try:
        file = os.open(path, os.O_RDONLY, dir_fd=folder)
    except OSError:
        return b""
    try:
        return os.read(file, _LONGEST_COMMAND)
    except OSError:
        return b""
    finally:
        os.close(file)


def _state(text: bytes) -> tuple[bytes, float | None]:
    """State, and seconds after the boot at which it was started (proc(5): fields 3 and 22)."""
    # The name, field 2, stands in parentheses and may hold anything.
    fields = text.rpartition(b")")[2].split()
    try:
        return fields[0], int(fields[19]) / _TICKS_PER_SECOND
    except (IndexError, ValueError, OverflowError):
        return b"", None


def _configured_endpoint(root: Path, config: str) -> str:
    try:
        told = yaml.safe_load(host_files.read(root, config)[0])
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return ""
    socket = told.get("containerRuntimeEndpoint") if isinstance(told, dict) else None
    return socket if isinstance(socket, str) else ""


def _listening(root: Path, pid: int, socket: str) -> Iterator[str]:
    """Inodes of the sockets of that name, in the kubelet's own network."""
    try:
        with (root / f"proc/{pid}/net/unix").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_LONGEST_LIST).splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[3] == _LISTENING and socket_path(root, fields[7]) == socket:
            yield fields[6]


def _has_open(root: Path, pid: int, links: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for entry in (root / f"proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed while we look
                if str(entry.readlink()) in links:
                    return True
    return False
