"""GDRCopy on the host: the file that sets it up, and whether its kernel module and its device exist."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.host.opening import is_absent, is_folder, is_there, names_there, read, want_folder
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError
from gpu_healthcheck.healthcheck.probes.services import enabled_of

MODULE = "gdrdrv"
_UNITS = ("gdrcopy.service", "gdrdrv.service")
"""Services of NVIDIA's packages for Red Hat and for Debian, which load the module at boot."""
_LIST = "etc/modules"
_FOLDERS = ("etc/modules-load.d", "usr/lib/modules-load.d", "run/modules-load.d")
_INSTALLED = "opt/gdrcopy"
"""Folder of GDRCopy in AWS' images."""
_DEVICES = (f"dev/{MODULE}", f"run/nvidia/driver/dev/{MODULE}")
"""Device file on the host, and in the GPU operator's driver container."""
_MOST_LISTS, _LONGEST_LIST = 64, 1 << 16
_UNREADABLE_TO_ALL = (errno.EISDIR, errno.ELOOP)
"""Errors of files that systemd also ignores."""


class GdrCopy(Struct, frozen=True):
    """GDRCopy's state. `set_up_by` is the file on the host that requests it; '' if none does."""

    set_up_by: str
    loaded: bool
    device: bool
    """Whether programs can open the device."""


def read_gdrcopy(host: Host) -> GdrCopy:
    """Return GDRCopy's state. Raises ProbeError if /sys/module is missing, or if a path can't be read."""
    modules = host.root / "sys/module"
    want_folder(modules)
    device = any(is_there(host.root / path) for path in _DEVICES)
    return GdrCopy(next(_set_up_by(host.root), ""), is_folder(modules / MODULE), device)


def _set_up_by(root: Path) -> Iterator[str]:
    if unit := enabled_of(root, _UNITS):
        yield unit
    yield from (f"/{path.relative_to(root)}" for path in _lists(root) if _names_it(path))
    if is_folder(root / _INSTALLED):
        yield f"/{_INSTALLED}"


def _lists(root: Path) -> Iterator[Path]:
    """Yield the files that modules-load.d(5) reads, and Debian's older file."""
    yield root / _LIST
    for name in _FOLDERS:
        found = [file for file in names_there(root / name) if file.endswith(".conf")]
        yield from (root / name / file for file in found[:_MOST_LISTS])


def _names_it(path: Path) -> bool:
    try:
        text = read(path, _LONGEST_LIST)
    except OSError as error:
        if is_absent(error) or error.errno in _UNREADABLE_TO_ALL:
            return False
        raise ProbeError(f"{path}: {error.strerror}") from error
    return MODULE.encode() in text and MODULE.encode() in (line.strip() for line in text.split(b"\n"))


GDRCOPY = Probe("gdrcopy", read_gdrcopy, GdrCopy)
