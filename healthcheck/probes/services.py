"""Host services that connect the GPUs: their processes, and their files on the host."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.host.clock import now
from gpu_healthcheck.healthcheck.host.opening import names_there, open_file
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError, UnobservedCause
from gpu_healthcheck.healthcheck.probes.container_runtime import processes
from gpu_healthcheck.healthcheck.probes.container_runtime.origins import Origin
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import KnownProcesses

FABRIC_MANAGER, IMEX = processes.FABRIC_MANAGER, processes.IMEX
_LOGS = ("var/log/fabricmanager.log", "run/nvidia/driver/var/log/fabricmanager.log")
"""Logs of the fabric manager, on the host and in the GPU operator's driver container."""
_TAIL = 1 << 16
_VERSION = rb"(\d{1,6}(?:\.\d{1,6}){1,4})"
_STARTED = re.compile(
    rb"Fabric Manager version " + _VERSION + rb" is running"
    rb"|driver interface version " + _VERSION + rb" do(?:n't|esn't) match with (?:the )?driver version " + _VERSION
)
_IMEX_UNIT = "nvidia-imex.service"
_OWN = (Origin.HOST, Origin.DRIVER)
"""Origins of the node's services. Processes in users' pods may have the same names."""
_TARGETS = "etc/systemd/system"


class Service(Struct, frozen=True):
    """Process of a service. `age_seconds` is None if its start can't be read."""

    name: str
    pid: int
    age_seconds: float | None


class Uncounted(Struct, frozen=True):
    """Processes with a service's name that are not proven to be the service. `unsure`: one of them may still be it."""

    name: str
    number: int
    where: str
    unsure: bool = False


class FabricManagerStart(Struct, frozen=True):
    """Log message of the fabric manager's last start in this boot."""

    version: str
    refused_driver: str = ""
    """Driver version with which the fabric manager refused to run; '' if it did not refuse."""


class Services(Struct, frozen=True):
    """Services of the host. `of_host` is False in a container that can't see the host's processes.

    The running processes are unknown then.
    """

    of_host: bool
    running: tuple[Service, ...] = ()
    fabric_manager_start: FabricManagerStart | None = None
    """Last start of the fabric manager; None if its log does not contain it, or if no log is known."""
    imex_enabled: bool = False
    """Whether systemd starts nvidia-imex on the host. If the DRA driver runs it for a job, it is disabled there."""
    uncounted: tuple[Uncounted, ...] = ()

    def find(self, name: str) -> Service | None:
        return next((service for service in self.running if service.name == name), None)

    def namesakes(self, name: str) -> str:
        """Return a text about other processes of this name; '' if there are none."""
        return "; ".join(
            f"{uncounted.number} called {name} {uncounted.where}"
            for uncounted in self.uncounted
            if uncounted.name == name
        )

    def is_unsure(self, name: str) -> bool:
        """Whether the service may run although it was not found."""
        return self.find(name) is None and any(
            uncounted.unsure for uncounted in self.uncounted if uncounted.name == name
        )


def read_services(host: Host) -> Services:
    """Return the services. Raises ProbeError if /proc can't be read."""
    root = host.root
    try:
        uptime = processes.uptime(root)
        found = host.once(processes.find)
    except OSError as error:
        raise ProbeError(f"{error.filename or root / 'proc'}: {error.strerror}") from error
    booted = now().wall.timestamp() - uptime
    names = (FABRIC_MANAGER, IMEX)
    return Services(
        processes.are_the_hosts(root),
        tuple(
            Service(
                process.name,
                process.pid,
                None if process.since_boot is None else max(0.0, uptime - process.since_boot),
            )
            for process in found.processes
            if process.name in names and process.origin in _OWN
        ),
        _last_start(root, booted),
        bool(enabled_of(root, (_IMEX_UNIT,))),
        tuple(uncounted for name in names for uncounted in _uncounted(found, name)),
    )


def _uncounted(found: KnownProcesses, name: str) -> Iterator[Uncounted]:
    if count := found.others.get(name, 0):
        yield Uncounted(name, count, "in containers")
    if privileged := sum(process.name == name and process.origin not in _OWN for process in found.processes):
        yield Uncounted(name, privileged, "in privileged containers, none of them the driver's", unsure=True)
    if name in found.crowded:
        yield Uncounted(name, processes.MOST, "and more than the limit that is read", unsure=True)


def _last_start(root: Path, booted: float) -> FabricManagerStart | None:
    """Return the start in the last written log, if it belongs to this boot: `booted` is in seconds of UTC."""
    written = sorted(_tails(root), reverse=True)
    if not written or written[0][0] < booted:
        return None
    starts = list(_STARTED.finditer(written[0][1]))
    if not starts:
        return None
    ran, refused, driver = (word.decode() if word else "" for word in starts[-1].groups())
    return FabricManagerStart(ran or refused, driver)


def _tails(root: Path) -> Iterator[tuple[float, bytes]]:
    """Yield the last write time of each log, and its end."""
    for path in _LOGS:
        try:
            file = open_file(root / path, os.O_RDONLY | os.O_NOFOLLOW)
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


def enabled_of(root: Path, units: Sequence[str]) -> str:
    """Return the first of these units that is enabled for a systemd target; '' if there is none.

    Its link is relative to the host's root, so it is not followed here. Raises ProbeError if that is unknown.
    """
    targets = [name for name in names_there(root / _TARGETS) if name.endswith(".wants")]
    return next((unit for unit in units for name in targets if (root / _TARGETS / name / unit).is_symlink()), "")


UNCERTAIN = UnobservedCause(
    "ServiceUncertain",
    "Only processes in privileged containers have the name of the node's service, or there are too many to read.",
    "Check on the node whether its own service runs (`systemctl status`).",
)
PROCESSES_HIDDEN = UnobservedCause(
    "HostProcessesHidden",
    "The processes of the node are not visible.",
    "Set `hostPID` for the pod, and make sure that `HOST_ROOT/proc` is the host's.",
)
SERVICES = Probe("services", read_services, Services, (UNCERTAIN, PROCESSES_HIDDEN))
