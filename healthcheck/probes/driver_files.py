"""Device files of NVIDIA's driver, in the host's /dev and below the driver container's root, and its kernel modules.

The kernel creates no device file automatically: udev, nvidia-modprobe or the first user of the driver does
(nvidia-modprobe(1)). The GPU operator's driver container has them in its /dev. Containers get them from there
(NVIDIA/k8s-dra-driver-gpu, isDevRoot: a driver's root with its own /dev).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.host.host_files import below
from gpu_healthcheck.healthcheck.host.opening import entries_of, is_folder, is_gone, read, want_folder
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError
from gpu_healthcheck.healthcheck.probes.nvml.driver import driver_version

NVIDIA_MAJOR = 195
"""Major number of nvidia0 and following, nvidiactl and nvidia-modeset (Linux, admin-guide/devices.txt)."""
UVM, CAPABILITIES = "nvidia-uvm", "nvidia-caps"
"""Drivers with a different major number at each load: their names in /proc/devices and in /dev."""
FOLDERS = ("/dev", "/run/nvidia/driver/dev")
_NULL = os.makedev(1, 3)
"""Device number of /dev/null (the kernel's Documentation/admin-guide/devices.txt)."""
_MOST_ENTRIES, _MOST_FILES = 8192, 1024
_LONGEST_LIST = 1 << 16


class DeviceFile(Struct, frozen=True):
    """A device file.

    `name` is its path below the folder; its numbers are 0 if it is not a character device.
    """

    folder: str
    name: str
    character: bool
    major: int = 0
    minor: int = 0

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"


class DeviceFiles(Struct, frozen=True):
    """NVIDIA's device files. `folders` are the folders that contain devices."""

    folders: tuple[str, ...]
    files: tuple[DeviceFile, ...] = ()
    majors: Mapping[str, int] | None = None
    """Major numbers of NVIDIA's drivers in /proc/devices, by name; None if they can't be read."""


def read_device_files(host: Host) -> DeviceFiles:
    """Return the device files. Raises ProbeError if a folder exists and can't be read."""
    try:
        folders = tuple(folder for folder in FOLDERS if _holds_devices(host.root, folder))
        files = tuple(islice((file for folder in folders for file in _files(host.root, folder)), _MOST_FILES))
    except OSError as error:
        raise ProbeError(f"{error.filename}: {error.strerror}") from error
    return DeviceFiles(folders, files, _majors(host.root))


def _holds_devices(root: Path, folder: str) -> bool:
    """Whether the folder contains device files. A copied tree has none, so its /dev/null is not a device file."""
    null = _stat(below(root, f"{folder}/null"))
    return null is not None and stat.S_ISCHR(null.st_mode) and null.st_rdev == _NULL


def _files(root: Path, folder: str) -> Iterator[DeviceFile]:
    for name in _names(below(root, folder)):
        if name != CAPABILITIES:
            yield from _file(root, folder, name)
            continue
        for capability in _names(below(root, f"{folder}/{name}")):
            yield from _file(root, folder, f"{name}/{capability}")


def _names(folder: Path) -> list[str]:
    entries = islice(entries_of(folder), _MOST_ENTRIES)
    return sorted(entry.name for entry in entries if entry.name.startswith("nvidia") and entry.name.isprintable())


def _file(root: Path, folder: str, name: str) -> Iterator[DeviceFile]:
    found = _stat(below(root, f"{folder}/{name}"))
    if found is None:
        return
    device_number = found.st_rdev
    if stat.S_ISCHR(found.st_mode):
        yield DeviceFile(folder, name, True, os.major(device_number), os.minor(device_number))
    else:
        yield DeviceFile(folder, name, character=False)


def _stat(path: Path) -> os.stat_result | None:
    """Return the file's status; None if it does not exist. Raises OSError if that is unknown."""
    try:
        return path.lstat()
    except OSError as error:
        if is_gone(error):
            return None
        raise


def _majors(root: Path) -> Mapping[str, int] | None:
    """Return NVIDIA's entries of /proc/devices, whose lines have the form `195 nvidia`.

    Block devices come last, and none is NVIDIA's.
    """
    try:
        table = read(root / "proc/devices", _LONGEST_LIST).decode("ascii", "replace")
    except OSError:
        return None
    rows = (line.split() for line in table.splitlines() if "nvidia" in line)
    return {row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdecimal() and len(row[0]) < 6}


DEVICE_FILES = Probe("device-files", read_device_files, DeviceFiles)


class KernelModules(Struct, frozen=True):
    """Loaded kernel modules."""

    nvidia: str
    """Version of NVIDIA's driver; '' if it is not loaded."""
    nouveau: bool


def read_modules(host: Host) -> KernelModules:
    """Return the kernel modules. Raises ProbeError if /sys/module is missing, or if a path can't be read."""
    listing = host.root / "sys/module"
    want_folder(listing)
    return KernelModules(driver_version(host.root), is_folder(listing / "nouveau"))


MODULES = Probe("kernel-modules", read_modules, KernelModules)
