"""Processes of the host, from one pass over /proc that all probes of a check cycle share."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.opening import entries_of, is_gone, open_file, read
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.probes.container_runtime.origins import Origin, Origins
from gpu_healthcheck.healthcheck.text.printable import printable

CONTAINERD, CRIO, DOCKERD, CRI_DOCKERD = "containerd", "crio", "dockerd", "cri-dockerd"
FABRIC_MANAGER, IMEX = "nv-fabricmanager", "nvidia-imex"
KUBELET, KUBELITE, K3S, RKE2, K0S = "kubelet", "kubelite", "k3s", "rke2", "k0s"
DEVICE_PLUGIN, VGPU_MONITOR = "nvidia-device-plugin", "vGPUmonitor"
_PLUGINS = (DEVICE_PLUGIN, VGPU_MONITOR)
HOSTENGINE, DCGM_EXPORTER = "nv-hostengine", "dcgm-exporter"
_ENGINES = (HOSTENGINE, DCGM_EXPORTER)
_NAMES = (
    *(CONTAINERD, CRIO, DOCKERD, CRI_DOCKERD, FABRIC_MANAGER, IMEX, *_PLUGINS, *_ENGINES),
    *(KUBELET, KUBELITE, K3S, "k3s-server", "k3s-agent", RKE2, K0S),
)
_LONGEST_COMM = 15
"""Most bytes of a process name in the kernel (TASK_COMM_LEN)."""
_BY_COMM = {name[:_LONGEST_COMM].encode(): name for name in _NAMES}
MOST = 256
"""Most processes of one name that are read: far more than any node runs outside of pods."""
_UPTIME = re.compile(rb"(\d{1,12}\.\d\d) ")
_TICKS_PER_SECOND = 100
"""USER_HZ, the unit of times in /proc/PID/stat: 100 on every architecture that has NVIDIA GPUs."""
_ONLY_ROOT = re.compile(rb"^Uid:\t0\t0\t0\t0$", re.MULTILINE)
"""Line of /proc/PID/status with the real, effective, saved and file-system user ID."""
_DEAD = (b"Z", b"X", b"x")
_LONGEST_COMMAND = 1 << 16
_LONGEST_CGROUP = 1 << 14
_LONGEST_LIST = 1 << 22
_MOST_OPEN = 1 << 16
_LISTENING = b"00010000"
"""Value of __SO_ACCEPTCON in /proc/net/unix."""
_UNIT = re.compile(rb"/([A-Za-z0-9:_.\\@-]{1,255}\.service)(?=/|$)", re.MULTILINE)
_NAMESPACE = re.compile(r"mnt:\[(\d{1,20})\]")
_DELETED = " (deleted)"


class Process(Struct, frozen=True):
    """A process. `since_boot` is its start, in seconds after the boot; None if that is unknown.

    `program` is its executable file and `unit` its systemd service; '' if it has none, or if reading it is not
    permitted. `namespace` identifies the mounts that it uses, as `mnt:[4026531841]`. `origin` distinguishes host
    processes from those in containers.
    """

    pid: int
    name: str
    arguments: tuple[str, ...]
    since_boot: float | None = None
    program: str = ""
    unit: str = ""
    namespace: str = ""
    origin: Origin = Origin.HOST

    def flag(self, *names: str) -> str:
        """Return the last value of a flag in the arguments; '' if there is none."""
        return flag_of(self.arguments, *names)

    def __str__(self) -> str:
        """Return the process as text: `containerd (pid 812, containerd.service)`."""
        return f"{self.name} (pid {self.pid}{f', {self.unit}' if self.unit else ''})"


class KnownProcesses(Struct, frozen=True):
    """Processes of the programs that this project knows, by pid, which may belong to the node.

    - `others` counts, by name, processes in unprivileged containers: users can give their processes these names.
    - `crowded` are the names with more processes than the limit that is read.
    - `plugins` are device plugins and HAMi's monitors, which run in containers and administer the host.
    - `engines` are the processes with a DCGM engine, of any origin.
    """

    processes: tuple[Process, ...]
    others: Mapping[str, int] = field(default_factory=dict)
    crowded: frozenset[str] = frozenset()
    plugins: tuple[Process, ...] = ()
    engines: tuple[Process, ...] = ()


def flag_of(arguments: Sequence[str], *names: str) -> str:
    """Return the last value of a flag with one of these names; '' if there is none.

    Its form is `--name=value` or `--name value`, also with a single dash.
    """
    value = ""
    for place, word in enumerate(arguments):
        flag, equals, text = word.partition("=")
        if flag.startswith("-") and flag.removeprefix("-").removeprefix("-") in names:
            value = text if equals else "".join(arguments[place + 1 : place + 2])
    return value


def find(root: Path) -> KnownProcesses:
    """Return the running processes of known programs. Raises OSError if /proc can't be read."""
    folder = open_file(root / "proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return _found(folder)
    finally:
        os.close(folder)


def called(root: Path, names: Collection[str]) -> list[tuple[int, Origin, bytes]]:
    """Return the live processes with these names: pid, origin and control groups.

    Raises OSError as `find` does.
    """
    by_comm = {name[:_LONGEST_COMM].encode(): name for name in names}
    folder = open_file(root / "proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        origins, found = Origins(folder), []
        for pid, _ in _known(folder, by_comm):
            cgroup = _read(folder, f"{pid}/cgroup", _LONGEST_CGROUP)
            # Read the state after the control group: for a dead process, the kernel may show the root group, as if of
            # the host.
            state, _ = _state(_read(folder, f"{pid}/stat", 1024))
            if cgroup.strip() and state and state not in _DEAD:
                found.append((int(pid), origins.of(pid, cgroup), cgroup))
        return found
    finally:
        os.close(folder)


def uptime(root: Path) -> float:
    """Return the seconds since the boot, including suspended time. Raises OSError, and ProbeError without a number."""
    raw = read(root / "proc/uptime", 64)
    found = _UPTIME.match(raw)
    if found is None:
        raise ProbeError(f"/proc/uptime: {raw[:32]!r} is not a number of seconds")
    return float(found[1])


def ages(root: Path, pids: Iterable[str]) -> dict[str, float]:
    """Return the ages in seconds of these processes of the host, by pid, except of those that have ended.

    Raises OSError, and the errors of `uptime`.
    """
    if not are_the_hosts(root):
        return {}
    now = uptime(root)
    folder = open_file(root / "proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        started = {pid: _state(_read(folder, f"{pid}/stat", 1024))[1] for pid in pids}
    finally:
        os.close(folder)
    return {pid: max(now - since_boot, 0.0) for pid, since_boot in started.items() if since_boot is not None}


def are_the_hosts(root: Path) -> bool:
    """Whether all processes of the host are visible.

    Process 2 belongs to the kernel, never to a container. If it is visible, all processes are.
    """
    try:
        return read(root / "proc/2/comm", 64).strip() == b"kthreadd"
    except OSError:
        return False


def is_elsewhere(root: Path, process: Process) -> bool:
    """Whether the process has other mounts than the host's first process, as in a container or a confined snap."""
    first = _link(root / "proc/1/ns/mnt")
    return bool(first and process.namespace and first != process.namespace)


def root_of(root: Path, process: Process) -> Path:
    """Return the root of the process's absolute paths: its own root if it has other mounts than the host.

    A captured tree can contain anything at /proc/PID/root. A link there is followed only if it is the kernel's own,
    which leads to another namespace and has no text. Then the namespace file exists too.
    """
    own = root / f"proc/{process.pid}/root"
    if not is_elsewhere(root, process):
        return root
    if own.is_symlink():
        return own if _is_kernels(own.parent) else root
    return own if own.is_dir() else root


def socket_path(root: Path, endpoint: str) -> str:
    """Return the normalised path of an endpoint: `/run/x.sock` for `unix:///var/run/x.sock`."""
    path = endpoint.removeprefix("unix:")
    path = f"/{path.lstrip('/')}" if path.startswith("//") else path
    with contextlib.suppress(OSError):
        path = host_files.resolve(root, path)
    return host_files.in_run(path)


def holder_of(root: Path, kubelet: Process, socket: str, among: Sequence[Process]) -> Process | None:
    """Return the process that listens on the socket, as far as the kernel shows it.

    systemd keeps open the sockets on which it listens for others, so other owners give no evidence.
    """
    links = {f"socket:[{inode}]" for inode in _listening(root, kubelet.pid, socket)}
    return next((process for process in among if links and _has_open(root, process.pid, links)), None)


def listens_on(root: Path, pid: int) -> tuple[str, ...]:
    """Return the paths of listening sockets in the network namespace of that process. Raises OSError."""
    lines = host_files.read_whole(root, f"/proc/{pid}/net/unix", _LONGEST_LIST).splitlines()[1:]
    rows = (line.split(None, 7) for line in lines)
    return tuple(os.fsdecode(row[7]) for row in rows if len(row) == 8 and row[3] == _LISTENING)


@contextmanager
def opened(root: Path, pid: int) -> Iterator[int]:
    """Yield the process's folder in /proc. While it is open, it never shows a later process with the same pid.

    Raises OSError.
    """
    folder = open_file(root / f"proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


def runs_as_root(folder: int, of: Path) -> bool:
    """Whether the process of an opened folder has root's user IDs only, in the user namespace of the process `of`.

    Raises OSError.
    """
    users = os.readlink("ns/user", dir_fd=folder)
    return (
        users == str((of / "ns/user").readlink())
        and _ONLY_ROOT.search(read("status", _LONGEST_CGROUP, folder)) is not None
    )


def is_hosts_root(root: Path, folder: int, since_boot: float | None) -> bool:
    """Whether the process of an opened folder, with that start time, runs as the host's root outside of all containers.

    The folder must be the kernel's own, not one of a captured tree, and this process must run in the host's user
    namespace, as in a privileged pod. Raises OSError.
    """
    own = Path(f"/proc/{os.getpid()}")
    if not _is_kernels(own / f"fd/{folder}") or not runs_as_root(folder, own):
        return False
    proc = open_file(root / "proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        origin = Origins(proc).of("", read("cgroup", _LONGEST_CGROUP, folder))
    finally:
        os.close(proc)
    # The state is read last: a process that has ended has no start time.
    return origin is Origin.HOST and since_boot is not None and _state(read("stat", 1024, folder))[1] == since_boot


def _found(folder: int) -> KnownProcesses:
    # A host has thousands: read one short file for each, and more only for the programs of interest.
    origins = Origins(folder)
    own: dict[str, list[Process]] = {}
    others: Counter[str] = Counter()
    crowded: set[str] = set()
    plugins: list[Process] = []
    engines: list[Process] = []
    for pid, name in _known(folder):
        cgroup = _read(folder, f"{pid}/cgroup", _LONGEST_CGROUP)
        origin = origins.of(pid, cgroup)
        if name in _PLUGINS:
            trusted = len(plugins) < MOST and (origin is not Origin.CONTAINER or origins.administers(pid))
            plugins += filter(None, [_process(folder, pid, name, cgroup, origin)] if trusted else [])
        elif name in _ENGINES:
            engines += filter(None, [_process(folder, pid, name, cgroup, origin)] if len(engines) < MOST else [])
        elif origin is Origin.CONTAINER:
            others[name] += 1
        elif len(own.get(name, ())) == MOST:
            crowded.add(name)
        elif (process := _process(folder, pid, name, cgroup, origin)) is not None:
            own.setdefault(name, []).append(process)
    found = sorted((one for some in own.values() for one in some), key=lambda one: one.pid)
    return KnownProcesses(tuple(found), others, frozenset(crowded), tuple(plugins), tuple(engines))


def _known(folder: int, by_comm: Mapping[bytes, str] = _BY_COMM) -> Iterator[tuple[str, str]]:
    """Yield pid and name of each process with the name of a known program."""
    for entry in entries_of(folder):
        pid = entry.name
        if pid.isascii() and pid.isdigit() and not entry.is_symlink():
            name = _name(folder, pid, by_comm)
            if name is not None:
                yield pid, name


def _process(folder: int, pid: str, name: str, cgroup: bytes, origin: Origin) -> Process | None:
    """Return the process; None if it is dead or vanished while being read.

    Its empty files would otherwise make it appear to be the host's.
    """
    state, since_boot = _state(_read(folder, f"{pid}/stat", 1024))
    if state in _DEAD:
        return None
    words = _words(_read(folder, f"{pid}/cmdline", _LONGEST_COMMAND))
    program = _link(f"{pid}/exe", folder).removesuffix(_DELETED)
    namespace = _link(f"{pid}/ns/mnt", folder)
    if (_name(folder, pid), _read(folder, f"{pid}/cgroup", _LONGEST_CGROUP)) != (name, cgroup):
        return None
    return Process(int(pid), name, words, since_boot, program, _unit(cgroup), namespace, origin)


def _name(folder: int, pid: str, by_comm: Mapping[bytes, str] = _BY_COMM) -> str | None:
    """Return the known program whose name the process has."""
    return by_comm.get(_read(folder, f"{pid}/comm", 64).rstrip())


def _read(folder: int, path: str, most: int) -> bytes:
    """Return the beginning of a small file; empty bytes if the process has ended or is hidden."""
    try:
        return read(path, most, folder)
    except OSError as error:
        if is_gone(error) or isinstance(error, PermissionError):
            return b""
        raise


def _link(path: str | Path, folder: int | None = None) -> str:
    """Return the target of a link; '' if it can't be read.

    Reading those of other users' processes requires CAP_SYS_PTRACE.
    """
    try:
        text = os.readlink(path, dir_fd=folder)
    except OSError:
        return ""
    return text if text.isprintable() else ""


def _state(text: bytes) -> tuple[bytes, float | None]:
    """Return the state and the start time in seconds after the boot (proc(5): fields 3 and 22).

    The time includes suspended time, like /proc/uptime, so the age is the difference of the two, without another clock.
    """
    # The name (field 2) is in parentheses and may contain any character.
    fields = text.rpartition(b")")[2].split()
    try:
        return fields[0], int(fields[19]) / _TICKS_PER_SECOND
    except (IndexError, ValueError, OverflowError):
        return b"", None


def _words(command: bytes) -> tuple[str, ...]:
    """Return the words of a command line as printable text.

    They appear as the name of a file or a socket, or in a step shown to a person. The kernel ends each word with a zero
    byte; a capture as text has blanks instead.
    """
    words = command.rstrip(b"\0\n").split(b"\0") if b"\0" in command else command.split()
    return tuple(printable(word.decode("utf-8", "replace")) for word in words)


def _unit(cgroup: bytes) -> str:
    """Return the innermost systemd service of a cgroup path.

    The path is `0::/system.slice/containerd.service`, or starts with `/../`, relative to this process's cgroup. k3s and
    RKE2 start their containerd themselves. It then belongs to their unit, and a restart of that unit restarts it.
    """
    found: list[bytes] = _UNIT.findall(cgroup)
    return found[-1].decode() if found else ""


def _is_kernels(folder: Path) -> bool:
    """Whether this folder of a process is the kernel's own: its namespaces lead to their files."""
    try:
        named = _NAMESPACE.fullmatch(str((folder / "ns/mnt").readlink()))
        return named is not None and (folder / "ns/mnt").stat().st_ino == int(named[1])
    except OSError:
        return False


def _listening(root: Path, pid: int, socket: str) -> Iterator[str]:
    """Yield the inodes of the listening sockets of that name, in the process's network namespace."""
    name = os.fsencode(socket.rpartition("/")[2])
    try:
        lines = host_files.read_whole(root, f"/proc/{pid}/net/unix", _LONGEST_LIST).splitlines()[1:]
    except OSError:
        return
    for line in lines:
        if not line.endswith(name):
            continue
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[3] == _LISTENING and socket_path(root, os.fsdecode(fields[7])) == socket:
            yield fields[6].decode("ascii", "replace")


def _has_open(root: Path, pid: int, links: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for _, entry in zip(range(_MOST_OPEN), entries_of(root / f"proc/{pid}/fd"), strict=False):
            if _link(entry.path) in links:
                return True
    return False
