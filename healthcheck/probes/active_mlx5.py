"""mlx5 devices with an active port, in the kernel's list /sys/class/infiniband."""

from __future__ import annotations

from pathlib import Path

from healthcheck.host.kernel_files import read
from healthcheck.host.opening import names_there
from healthcheck.text.printable import printable

_MELLANOX = b"0x15b3"
_ACTIVE = b"4:"
"""IB_PORT_ACTIVE in the file `state`: `4: ACTIVE` (linux, drivers/infiniband/core/sysfs.c)."""
_MOST = 256


def is_exclusive(root: Path) -> bool:
    """Whether each RDMA device belongs to one network namespace alone (rdma-system(8))."""
    return _text(f"{root}/sys/module/ib_core/parameters/netns_mode") == b"N"


def active_devices(root: Path) -> tuple[str, ...]:
    """Return the devices that programs can open and whose port is active. Raises ProbeError."""
    directory = f"{root}/sys/class/infiniband"
    return tuple(printable(name) for name in names_there(directory)[:_MOST] if _is_active(f"{directory}/{name}"))


def _is_active(device: str) -> bool:
    """Whether programs can open the device, and its port, the only one of an mlx5 device, is active."""
    if _text(f"{device}/device/vendor") != _MELLANOX or not names_there(f"{device}/device/infiniband_verbs"):
        return False
    return _text(f"{device}/ports/1/state").startswith(_ACTIVE)


def _text(file: str) -> bytes:
    """Return the content of a file of /sys; empty if it can't be read."""
    try:
        return read(file, 64).strip()
    except OSError:
        return b""
