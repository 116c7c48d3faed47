"""GDRCopy on the host: who set it up there, and whether its kernel module and its device are there."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from healthcheck.host.kernel_files import read
from healthcheck.host.opening import is_absent, is_folder, is_there, names_there, want_folder
from healthcheck.model import Host, Probe, ProbeError
from healthcheck.probes.services import enabled_of

MODULE = "gdrdrv"
_UNITS = ("gdrcopy.service", "gdrdrv.service")
"""Of NVIDIA's packages, for Red Hat and for Debian, which load the module when the host boots."""
_LIST = "etc/modules"
_FOLDERS = ("etc/modules-load.d", "usr/lib/modules-load.d", "run/modules-load.d")
_INSTALLED = "opt/gdrcopy"
"""Where AWS' images have it."""
_DEVICES = (f"dev/{MODULE}", f"run/nvidia/driver/dev/{MODULE}")
"""On the host, and in the GPU operator's driver container."""
_MOST_LISTS, _LONGEST_LIST = 64, 1 << 16
_UNREADABLE_TO_ALL = (errno.EISDIR, errno.ELOOP)
"""systemd passes such a list over too."""


class GdrCopy(Struct, frozen=True):
    """`set_up_by`: what on the host asks for it; '' where nothing does."""

    set_up_by: str
    loaded: bool
    device: bool
    """A program can open it."""


def read_gdrcopy(host: Host) -> GdrCopy:
    """Raises ProbeError where there is no /sys/module to look at, or something is not to be seen."""
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
    """What modules-load.d(5) reads, and the older file of Debian."""
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
