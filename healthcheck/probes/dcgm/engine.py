"""The DCGM engine of this node, if its address is proven, or the reason why no diagnostic may run.

NVIDIA supports one engine per host (docs/decisions/0056). An engine's port requires no password, so only the socket of
a proven process is used. The kernel's tables connect process, socket and network.

Client and engine of different versions can refuse each other (DCGM issue 314), so the `dcgmi` that lies beside the
engine asks it, with the engine's own libraries. The client runs in the engine's root as an unprivileged user: it only
sends requests to the engine's port. A program is run only from a root that no tenant controls: the host's, or that of
the GPU operator's privileged engine. Its file and all folders above it belong to root, and no other user can write to
them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog import dcgm
from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.command import ChildError
from gpu_healthcheck.healthcheck.host.open_devices import OpenDevices
from gpu_healthcheck.healthcheck.host.opening import entries_of, read
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes.container_runtime import processes
from gpu_healthcheck.healthcheck.probes.container_runtime.origins import Origin
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import (
    DCGM_EXPORTER,
    HOSTENGINE,
    KnownProcesses,
    Process,
)
from gpu_healthcheck.healthcheck.probes.driver_files import NVIDIA_MAJOR
from gpu_healthcheck.healthcheck.probes.kubelet_pods import KubeletPod, known_pods, uid_of
from gpu_healthcheck.healthcheck.probes.services import PROCESSES_HIDDEN

PORT = 5555
"""Default port of a hostengine (dcgm_structs.h: DCGM_HE_PORT_NUMBER). dcgmi without a host tries it first."""
_OPERATORS = re.compile(r"nvidia-dcgm-(?!exporter)[a-z0-9-]{1,64}")
"""Pods of the GPU operator's DaemonSet nvidia-dcgm, which are privileged (assets/state-dcgm/0400_dcgm.yml)."""
_LISTENING = "0A"
"""Value of TCP_LISTEN in /proc/net/tcp."""
_LONGEST_TABLE, _LONGEST_ENVIRONMENT, _LONGEST_GROUPS = 1 << 22, 1 << 17, 1 << 14
_MOST_OPEN = 1 << 16
_SOCKET = re.compile(r"socket:\[(\d{1,20})\]")
_REMOTE = b"DCGM_REMOTE_HOSTENGINE_INFO="
_ADDRESS_6 = re.compile(r"([0-9a-f]{32}) [0-9a-f]{2,8} [0-9a-f]{2} 00 ")
"""Line with address, interface, prefix length, and scope 00 (global)."""
_ADDRESS, _LOCAL = re.compile(rb"\|-- (\d{1,3}(?:\.\d{1,3}){3})\s*$"), b"/32 host LOCAL"
_ANYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_LOOPBACK = frozenset({"127.0.0.1", "::1"})


class Engine(Struct, frozen=True):
    """Engine that a diagnostic uses. `host` is its host:port; '' for an engine that the diagnostic starts.

    `pid` is 0 if no process proves the engine. `blocked` is the reason why no diagnostic may run. `may_run_second`
    permits a diagnostic that starts a second engine.
    """

    host: str = ""
    pid: int = 0
    blocked: Unobserved | None = None
    may_run_second: bool = False


NO_ENGINE = Engine()
"""Value for a node without an engine."""


class _Listener(Struct, frozen=True):
    """TCP socket that accepts connections."""

    address: str
    port: int
    inode: str

    @property
    def is_at_dcgmis_own_place(self) -> bool:
        return self.port == PORT and (self.address in _ANYWHERE or self.address == "127.0.0.1")


def choose_engine(root: Path, host: str, *, second_engine: bool) -> Engine:
    """Return the engine for a diagnostic. `host` is DCGM_HOST, `second_engine` DCGM_BESIDE_EXPORTER."""
    if host:
        return Engine(host)
    try:
        return accept_second_engine(find_engine(root, processes.find(root)), second_engine=second_engine)
    except (FileNotFoundError, NotADirectoryError):  # a captured tree may lack /proc
        return Engine()
    except (OSError, ProbeError) as error:
        return Engine(blocked=Unobserved(PROCESSES_HIDDEN, f"{root / 'proc'}: {error}"))


def accept_second_engine(engine: Engine, *, second_engine: bool) -> Engine:
    """Return the engine, or no engine if `second_engine` permits a second engine on the node."""
    return Engine() if second_engine and engine.may_run_second else engine


def read_engine(host: Host) -> Engine:
    """Return the node's engine. Raises ProbeError if /proc cannot be read."""
    try:
        return find_engine(host.root, host.once(processes.find))
    except (FileNotFoundError, NotADirectoryError):  # a captured tree may lack /proc
        return Engine()
    except OSError as error:
        raise ProbeError(f"{error.filename or host.root / 'proc'}: {error.strerror}") from error


def find_engine(root: Path, found: KnownProcesses) -> Engine:
    """Return the engine among these processes. Raises OSError."""
    if not processes.are_the_hosts(root):
        return Engine()
    engines = _with_pods(root, found)
    trusted = [(process, pod) for process, pod in engines if _is_trusted(root, process, pod)]
    for process, _ in trusted:
        if host := _host_of(root, process):
            return Engine(host, process.pid)
    if _is_hosts_network(root) and any(listener.is_at_dcgmis_own_place for listener in _listeners(root, 1)):
        return Engine(blocked=Unobserved(dcgm.ENGINE_UNPROVEN, f"a program listens on 127.0.0.1:{PORT}"))
    for process, pod in engines:
        is_trusted = (process, pod) in trusted
        if is_trusted or (_may_use_gpus(root, process) and not _is_remote(root, process)):
            return Engine(blocked=_why_blocked(process, pod, is_trusted=is_trusted), may_run_second=True)
    return Engine()


def _with_pods(root: Path, found: KnownProcesses) -> list[tuple[Process, KubeletPod | None]]:
    """Return each engine with its pod: exporters first, then the host's engines, then those of pods."""
    pods: dict[str, KubeletPod] = {}
    with suppress(OSError):  # an unknown pod is not proven
        pods = known_pods(root) if any(engine.origin is not Origin.HOST for engine in found.engines) else {}
    ordered = sorted(found.engines, key=lambda process: (process.name, process.origin is not Origin.HOST, process.pid))
    return [(process, _pod_of(root, pods, process)) for process in ordered]


def _why_blocked(process: Process, pod: KubeletPod | None, *, is_trusted: bool) -> Unobserved:
    about = f"{process.name} (pid {process.pid}{f' of pod {pod}' if pod else ''})"
    if is_trusted or process.name == DCGM_EXPORTER:
        return Unobserved(dcgm.ENGINE_EMBEDDED, f"{about} has an engine that is not reachable")
    return Unobserved(dcgm.ENGINE_UNPROVEN, f"{about} is not proven to be the host's or the GPU operator's")


def is_operators(pod: KubeletPod | None, origin: Origin) -> bool:
    """Whether a process belongs to the GPU operator's engine: its pod has that name and privileged access."""
    return origin in (Origin.DRIVER, Origin.PRIVILEGED) and pod is not None and bool(_OPERATORS.fullmatch(pod.name))


def _is_trusted(root: Path, process: Process, pod: KubeletPod | None) -> bool:
    """Whether the process is the host's or the operator's. Hidden rights are not proof here."""
    if process.name != HOSTENGINE or process.origin is Origin.HOST:
        return process.name == HOSTENGINE
    shows_rights = host_files.exists(root, f"/proc/{process.pid}/status")
    return shows_rights and is_operators(pod, process.origin)


def _pod_of(root: Path, pods: dict[str, KubeletPod], process: Process) -> KubeletPod | None:
    if process.origin is Origin.HOST:
        return None
    with suppress(OSError):
        return pods.get(uid_of(host_files.read_whole(root, f"/proc/{process.pid}/cgroup", _LONGEST_GROUPS)))
    return None


def _host_of(root: Path, process: Process) -> str:
    """Return the address of the process for requests from this program.

    '' if there is none, or if another process may answer there.
    """
    own = {found[1] for link in _open_files(root, process.pid) if (found := _SOCKET.fullmatch(link))}
    listeners = list(_listeners(root, process.pid))
    ports = {listener.port for listener in listeners if listener.inode in own}
    exclusive = [
        listener
        for listener in listeners
        if listener.port in ports and all(_is_own(other, listener, own) for other in listeners)
    ]
    for listener in sorted(exclusive, key=lambda listener: (listener.port != PORT, listener.port)):
        if address := _reachable_address(root, process, listener.address):
            return f"[{address}]:{listener.port}" if ":" in address else f"{address}:{listener.port}"
    return ""


def _is_own(other: _Listener, listener: _Listener, own: set[str]) -> bool:
    return other.port != listener.port or other.inode in own


def _reachable_address(root: Path, process: Process, address: str) -> str:
    """Return the address that reaches a socket bound to `address` from this program's network; '' if there is none."""
    if _network(root, str(process.pid)) in ("", _own_network(root)):
        return "127.0.0.1" if address in _ANYWHERE else address
    if address in _LOOPBACK:
        return ""
    return address if address not in _ANYWHERE else next(_addresses(root, process.pid), "")


def _is_hosts_network(root: Path) -> bool:
    """Whether dcgmi, started by this program, shares the host's network."""
    return _network(root, "1") == _own_network(root)


def _own_network(root: Path) -> str:
    """Return this program's network namespace; that of the host if the tree does not name it."""
    return _network(root, "self") or _network(root, "1")


def _network(root: Path, pid: str) -> str:
    with suppress(OSError):
        return os.readlink(root / f"proc/{pid}/ns/net")  # noqa: PTH115 - its text, not a path
    return ""


def _addresses(root: Path, pid: int) -> Iterator[str]:
    """Yield the addresses of the process's network without loopback: IPv4, then global IPv6 (proc_net(5))."""
    with suppress(OSError):
        last = ""
        for line in host_files.read_whole(root, f"/proc/{pid}/net/fib_trie", _LONGEST_TABLE).splitlines():
            if found := _ADDRESS.search(line):
                last = found[1].decode()
            elif _LOCAL in line and last and not last.startswith("127."):
                yield last
    with suppress(OSError):
        table = host_files.read_whole(root, f"/proc/{pid}/net/if_inet6", _LONGEST_TABLE)
        for text_line in table.decode("ascii", "replace").splitlines():
            if row := _ADDRESS_6.match(text_line):
                yield str(IPv6Address(bytes.fromhex(row[1])))


def _listeners(root: Path, pid: int) -> Iterator[_Listener]:
    """Yield the TCP sockets that accept connections in the process's network (proc_net_tcp)."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            sockets = host_files.read_whole(root, f"/proc/{pid}/net/{table}", _LONGEST_TABLE).decode("ascii", "replace")
            rows = (line.split() for line in sockets.splitlines()[1:])
            for row in rows:
                if len(row) > 9 and row[3] == _LISTENING and (listener := _listener(row[1], row[9])) is not None:
                    yield listener


def _listener(local: str, inode: str) -> _Listener | None:
    address, _, port = local.partition(":")
    try:
        words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
        raw = b"".join(words)
        if len(raw) == 4:
            return _Listener(str(IPv4Address(raw)), int(port, 16), inode)
        six = IPv6Address(raw)
        return _Listener(str(six.ipv4_mapped or six), int(port, 16), inode)
    except ValueError:
        return None


def _open_files(root: Path, pid: int) -> Iterator[str]:
    """Yield the files that the process has open; none if they are hidden."""
    with suppress(OSError):
        for _, fd_entry in zip(range(_MOST_OPEN), entries_of(root / f"proc/{pid}/fd"), strict=False):
            with suppress(OSError):
                yield os.readlink(fd_entry.path)  # noqa: PTH115 - its text, not a path


def _may_use_gpus(root: Path, process: Process) -> bool:
    """Whether the process may have a GPU open, as every engine has. True if its files are hidden."""
    if not any(True for _ in _open_files(root, process.pid)):
        return True
    try:
        with OpenDevices(root, NVIDIA_MAJOR) as devices:
            return bool(devices.of(process.pid))
    except ChildError:
        return True


def _is_remote(root: Path, process: Process) -> bool:
    """Whether the process is an exporter that uses a remote engine and has no embedded engine."""
    if process.name != DCGM_EXPORTER:
        return False
    if process.flag("r", "remote-hostengine-info"):
        return True
    with suppress(OSError):
        words = host_files.read_whole(root, f"/proc/{process.pid}/environ", _LONGEST_ENVIRONMENT).split(b"\0")
        return any(word.startswith(_REMOTE) and word != _REMOTE for word in words)
    return False


ENGINE = Probe("dcgm-engine", read_engine, Engine)


_USUAL = "/usr/bin/nv-hostengine"
"""Path of the engine's program in DCGM's packages and images."""
_CHROOT = ("chroot", "--userspec=+65534:+65534", "--groups=")
"""`+` marks numbers: chroot then searches no names, for which it would load libraries of that root as root."""
NOT_STARTED = (125, 126, 127)
"""Exit codes of chroot and of the dynamic loader for a program that did not start; dcgmi has none of them."""
_WRITABLE_BY_OTHERS, _EXECUTABLE, _SETS_IDS = 0o022, 0o111, stat.S_ISUID | stat.S_ISGID


@contextmanager
def own_dcgmi(root: Path, engine: Engine) -> Iterator[tuple[str, ...]]:
    """Yield the command line that runs the engine's own dcgmi; `()` if it has none that may be run.

    The engine's root stays open meanwhile, so another process with the same pid is never used.
    """
    with ExitStack() as opened:
        command: tuple[str, ...] = ()
        with suppress(OSError, ProbeError):
            command = _command(root, engine, opened) if engine.pid else ()
        yield command


def _command(root: Path, engine: Engine, opened: ExitStack) -> tuple[str, ...]:
    process = opened.enter_context(processes.opened(root, engine.pid))
    # The engine is proven by its pid. The open folder shows the same process until its end, so a process that is alive
    # after the proof is the proven one.
    found = processes.find(root)
    if find_engine(root, found) != engine:
        return ()
    proven = next(known for known in found.engines if known.pid == engine.pid)
    top = root if proven.origin is Origin.HOST else _root_of_container(root, proven, process, opened)
    read("stat", 1, process)  # raises OSError if the process has ended
    if top is None:
        return ()
    owner = (root / "proc/1").stat().st_uid  # root's number, as this tree shows it
    for beside in dict.fromkeys((proven.program or _USUAL, _USUAL)):
        path = host_files.resolve(top, f"{beside.rpartition('/')[0]}/dcgmi")
        if _is_roots_program(top, path, owner):
            return (*_CHROOT, str(top), path)
    return ()


def _root_of_container(root: Path, proven: processes.Process, process: int, opened: ExitStack) -> Path | None:
    """Return the root of the operator's engine, held open; None unless the engine runs as the host's root."""
    if not processes.runs_as_root(process, root / "proc/1"):
        return None
    is_link = stat.S_ISLNK(os.stat("root", dir_fd=process, follow_symlinks=False).st_mode)
    if is_link and processes.root_of(root, proven) == root:  # a file of a captured tree, which leads anywhere
        return None
    top = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    opened.callback(os.close, top)
    return Path(f"/proc/{os.getpid()}/fd/{top}")


def _is_roots_program(top: Path, path: str, owner: int) -> bool:
    """Whether this program exists, only root can have written it, and it changes no user ID."""
    base = str(top).rstrip("/")
    parts = path.strip("/").split("/")
    folders = ("/".join(("", *parts[:depth], "")) for depth in range(len(parts)))
    try:
        program, above = os.lstat(f"{base}{path}"), [os.stat(f"{base}{folder}") for folder in folders]  # noqa: PTH116
    except OSError:
        return False
    mode = program.st_mode
    return (
        stat.S_ISREG(mode)
        and bool(mode & _EXECUTABLE)
        and not mode & _SETS_IDS
        and all(part.st_uid == owner and not part.st_mode & _WRITABLE_BY_OTHERS for part in (program, *above))
    )
