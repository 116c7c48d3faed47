"""The services on the host that join its GPUs: their processes, and what else the host's files say of them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from healthcheck.clock import now
from healthcheck.model import Host, Probe, ProbeError
from healthcheck.probes.kernel_files import is_gone, read

FABRIC_MANAGER = "nv-fabricmanager"
IMEX = "nvidia-imex"
_LONGEST_COMM = 15
"""The kernel keeps no more of a process's name (TASK_COMM_LEN)."""
_BY_COMM = {name[:_LONGEST_COMM].encode(): name for name in (FABRIC_MANAGER, IMEX)}
_UPTIME = re.compile(rb"(\d{1,12}\.\d\d) ")
_TICKS_PER_SECOND = 100
"""USER_HZ, the unit of times in /proc/PID/stat: 100 on every architecture that has NVIDIA GPUs."""
_DEAD = (b"Z", b"X", b"x")
_LOGS = ("var/log/fabricmanager.log", "run/nvidia/driver/var/log/fabricmanager.log")
"""Where the fabric manager writes, on the host and in the GPU operator's driver container."""
_TAIL = 1 << 16
_VERSION = rb"(\d{1,6}(?:\.\d{1,6}){1,4})"
_STARTED = re.compile(
    rb"Fabric Manager version " + _VERSION + rb" is running"
    rb"|driver interface version " + _VERSION + rb" do(?:n't|esn't) match with (?:the )?driver version " + _VERSION
)
_IMEX_UNIT = "nvidia-imex.service"


@dataclass(frozen=True, slots=True)
class Service:
    """A process. `age_seconds` is None where its start can't be read."""

    name: str
    pid: int
    age_seconds: float | None


@dataclass(frozen=True, slots=True)
class FabricManagerStart:
    """What the fabric manager wrote when it last started in this boot."""

    version: str
    refused_driver: str = ""
    """The driver's version with which it did not want to run; '' where it did."""


@dataclass(frozen=True, slots=True)
class Services:
    """`of_host` is False in a container without the host's processes: then nothing is known of what runs."""

    of_host: bool
    running: tuple[Service, ...] = ()
    fabric_manager_start: FabricManagerStart | None = None
    """None: its log says nothing of it, or there is none that we know of."""
    imex_enabled: bool = False
    """systemd starts nvidia-imex on the host. Where the DRA driver runs it for a job, it is disabled there."""

    def find(self, name: str) -> Service | None:
        return next((one for one in self.running if one.name == name), None)


def read_services(host: Host) -> Services:
    """Raises ProbeError where there is no /proc to look at."""
    processes = host.root / "proc"
    try:
        uptime = _seconds(read(processes / "uptime", 64))
        running = tuple(_running(processes, uptime))
    except OSError as error:
        raise ProbeError(f"{error.filename or processes}: {error.strerror}") from error
    booted = now().wall.timestamp() - uptime
    return Services(_is_hosts(processes), running, _last_start(host.root, booted), _enabled(host.root, _IMEX_UNIT))


def _seconds(uptime: bytes) -> float:
    found = _UPTIME.match(uptime)
    if found is None:
        raise ProbeError(f"/proc/uptime: {uptime[:32]!r} is no number of seconds")
    return float(found[1])


def _is_hosts(processes: Path) -> bool:
    """Process 2 is the kernel's own, and no container's: who sees it sees them all."""
    try:
        return read(processes / "2/comm", 64).strip() == b"kthreadd"
    except OSError:
        return False


def _running(processes: Path, uptime: float) -> Iterator[Service]:
    # A host has thousands: one short path and one read for each, and more only for those that we look for.
    folder = os.open(processes, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for pid in os.scandir(folder):
            if not (pid.name.isascii() and pid.name.isdigit()):
                continue
            name = _BY_COMM.get(_read(folder, f"{pid.name}/comm").rstrip())
            if name is None:
                continue
            state, started = _state(_read(folder, f"{pid.name}/stat"))
            if state not in _DEAD:
                age = None if started is None else max(0.0, uptime - started)
                yield Service(name, int(pid.name), age)
    finally:
        os.close(folder)


def _read(folder: int, path: str) -> bytes:
    """The beginning of a small file; nothing where the process has gone, or is hidden from us."""
    try:
        return read(path, 1024, folder)
    except OSError as error:
        if is_gone(error) or isinstance(error, PermissionError):
            return b""
        raise


def _state(text: bytes) -> tuple[bytes, float | None]:
    """State, and seconds after the boot at which it was started (proc(5): fields 3 and 22).

    They are counted like /proc/uptime, suspended time included, so that their difference needs no clock of ours.
    """
    # The name, field 2, stands in parentheses and may hold anything.
    fields = text.rpartition(b")")[2].split()
    try:
        return fields[0], int(fields[19]) / _TICKS_PER_SECOND
    except (IndexError, ValueError, OverflowError):
        return b"", None


def _last_start(root: Path, booted: float) -> FabricManagerStart | None:
    """From the log that was written last, as far as it is of this boot: `booted` is in seconds of UTC."""
    written = sorted(_tails(root), reverse=True)
    if not written or written[0][0] < booted:
        return None
    starts = list(_STARTED.finditer(written[0][1]))
    if not starts:
        return None
    ran, refused, driver = (word.decode() if word else "" for word in starts[-1].groups())
    return FabricManagerStart(ran or refused, driver)


def _tails(root: Path) -> Iterator[tuple[float, bytes]]:
    """When each log was last written, and its end."""
    for path in _LOGS:
        try:
            file = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            about = os.fstat(file)
            if stat.S_ISREG(about.st_mode):
                yield about.st_mtime, os.pread(file, _TAIL, max(0, about.st_size - _TAIL))
        except OSError:
            continue
        finally:
            os.close(file)


def _enabled(root: Path, unit: str) -> bool:
    """Whether a target of systemd wants the unit. Its link leads to the host's root, not ours: it is not followed."""
    try:
        targets = [folder for folder in (root / "etc/systemd/system").iterdir() if folder.name.endswith(".wants")]
    except OSError:
        return False
    return any((folder / unit).is_symlink() for folder in targets)


SERVICES = Probe("services", read_services, Services)
