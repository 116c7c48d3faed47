"""GDRCopy on the host: who set it up there, and whether its kernel module and its device are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from healthcheck.model import Host, Probe, ProbeError
from healthcheck.probes.kernel_files import read
from healthcheck.probes.services import is_enabled

MODULE = "gdrdrv"
_UNITS = ("gdrcopy.service", "gdrdrv.service")
"""Of NVIDIA's packages, for Red Hat and for Debian, which load the module when the host boots."""
_LISTS = ("etc/modules", "etc/modules-load.d", "usr/lib/modules-load.d", "run/modules-load.d")
_INSTALLED = "opt/gdrcopy"
"""Where AWS' images have it."""
_DEVICES = (f"dev/{MODULE}", f"run/nvidia/driver/dev/{MODULE}")
"""On the host, and in the GPU operator's driver container."""
_MOST_LISTS, _LONGEST_LIST = 64, 1 << 16


@dataclass(frozen=True, slots=True)
class GdrCopy:
    """`set_up_by`: what on the host asks for it; '' where nothing does."""

    set_up_by: str
    loaded: bool
    device: bool
    """A program can open it."""


def read_gdrcopy(host: Host) -> GdrCopy:
    """Raises ProbeError where there is no /sys/module to look at."""
    modules = host.root / "sys/module"
    if not modules.is_dir():
        raise ProbeError(f"{modules}: no such directory")
    device = any((host.root / path).exists() for path in _DEVICES)
    return GdrCopy(next(_set_up_by(host.root), ""), (modules / MODULE).is_dir(), device)


def _set_up_by(root: Path) -> Iterator[str]:
    yield from (unit for unit in _UNITS if is_enabled(root, unit))
    yield from (f"/{path.relative_to(root)}" for path in _lists(root) if _names_it(path))
    if (root / _INSTALLED).is_dir():
        yield f"/{_INSTALLED}"


def _lists(root: Path) -> Iterator[Path]:
    """What modules-load.d(5) reads, and the older file of Debian."""
    for name in _LISTS:
        try:
            found = sorted((root / name).glob("*.conf"))[:_MOST_LISTS] if (root / name).is_dir() else [root / name]
        except OSError:
            continue
        yield from found


def _names_it(path: Path) -> bool:
    try:
        return MODULE.encode() in (line.strip() for line in read(path, _LONGEST_LIST).split(b"\n"))
    except OSError:
        return False


GDRCOPY = Probe("gdrcopy", read_gdrcopy, GdrCopy)
