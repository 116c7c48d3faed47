"""PCI functions in the kernel's list, /sys/bus/pci/devices."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.host.opening import is_gone, names_in, read
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError

NVIDIA = 0x10DE
AMAZON = 0x1D0F
MELLANOX = 0x15B3
MLX5_DRIVER = "mlx5_core"
_GPU_CLASSES = (0x0300, 0x0302)
"""PCI classes of NVIDIA GPUs: VGA controller (0x0300) and 3D controller (0x0302)."""
_STUBS = ("pci-stub", "pciback", "xen-pciback")
"""Kernel drivers that reserve a function for a virtual machine, in addition to vfio-pci and its variants."""
_NVSWITCH_CLASS = 0x0680
"""PCI class "other bridge" of NVSwitches of NVLink 2 to 4 (aws-parallelcluster-cookbook counts them so)."""
_NETWORK_CLASS = 0x02
_EFA_DEVICES = (0xEFA0, 0xEFA1, 0xEFA2, 0xEFA3)
"""PCI device IDs of EFA (amzn-drivers, kernel/linux/efa/src/efa_main.c)."""
_ADDRESS = re.compile(r"(?:PCI:)?([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-9a-f])?\Z", re.IGNORECASE)
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
"""Name of a function's directory in the kernel's list."""
_MOST = 4096
NO_NODE = -1
"""The kernel's value for a function without a NUMA node (Documentation/ABI/testing/sysfs-bus-pci)."""


class PciFunction(Struct, frozen=True):
    """A PCI function. `address` has the form `0000:18:00.0`, `driver` is '' if none is bound.

    `virtual` marks an SR-IOV function. The position is read only for GPUs: `switch` is the address of the PCI bridge
    above the GPU; '' if the GPU is directly below the root. `bridges` are all bridges above it, from the root.
    """

    address: str
    vendor: int
    device: int
    pci_class: int
    driver: str
    virtual: bool = False
    numa_node: int = NO_NODE
    switch: str = ""
    bridges: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        return self.vendor == NVIDIA and self.pci_class >> 8 in _GPU_CLASSES and not self.virtual

    @property
    def is_gpu_here(self) -> bool:
        """Whether NVIDIA's driver has or could have this GPU. A GPU of another driver is not for containers."""
        return self.is_gpu and self.driver in ("", "nvidia")

    @property
    def is_handed_away(self) -> bool:
        """Whether the GPU was assigned to virtual machines on purpose. The host can't use it."""
        return self.is_gpu and ("vfio" in self.driver or self.driver in _STUBS)

    @property
    def is_nvswitch(self) -> bool:
        return self.vendor == NVIDIA and self.pci_class >> 8 == _NVSWITCH_CLASS

    @property
    def is_efa(self) -> bool:
        return self.vendor == AMAZON and self.device in _EFA_DEVICES

    @property
    def is_efa_here(self) -> bool:
        """Whether EFA's driver has or could have this function.

        A function of another driver serves another purpose.
        """
        return self.is_efa and self.driver in ("", "efa")

    @property
    def is_mlx5_here(self) -> bool:
        """Whether the driver mlx5 has or could have this network function."""
        return (
            self.vendor == MELLANOX
            and self.pci_class >> 16 == _NETWORK_CLASS
            and not self.virtual
            and self.driver in ("", MLX5_DRIVER)
        )


def normalise_address(address: str) -> str | None:
    """Return an address such as `00000000:3B:00.0` or `PCI:0000:3b:00` as `0000:3b:00.0`; None for other texts."""
    found = _ADDRESS.match(address)
    if found is None:
        return None
    domain, bus, device = (int(part, 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def read_functions(host: Host) -> tuple[PciFunction, ...]:
    """Return every NVIDIA, Amazon and Mellanox function, by address, except virtual functions of Mellanox.

    Raises ProbeError if one exists and can't be read.
    """
    return host.once(_functions)


def _functions(root: Path) -> tuple[PciFunction, ...]:
    devices = f"{root}/sys/bus/pci/devices"
    try:
        names = [name for name in names_in(devices) if _FUNCTION.match(name)][:_MOST]
    except OSError as error:
        raise ProbeError(f"{devices}: {error.strerror}") from error
    found = (_read_function(devices, name) for name in names)
    return tuple(
        _with_place(devices, function) if function.is_gpu else function for function in found if function is not None
    )


def _read_function(devices: str, name: str) -> PciFunction | None:
    """Return one function; None if it is another vendor's or vanished during the read."""
    directory = f"{devices}/{name}"
    try:
        identity = _identity(directory, os.stat(directory).st_ino)  # noqa: PTH116 - pathlib would double the time
    except ValueError:
        return None
    except OSError as error:
        if is_gone(error):
            return None
        raise ProbeError(f"{error.filename or directory}: {error.strerror}") from error
    if identity is None:
        return None
    vendor, device, pci_class = identity
    is_virtual = _link(f"{directory}/physfn") != ""
    if vendor == MELLANOX and is_virtual:
        return None  # a node may have hundreds
    bound = _link(f"{directory}/driver").rpartition("/")[2]
    return PciFunction(name, vendor, device, pci_class, bound, is_virtual)


@lru_cache(maxsize=_MOST)
def _identity(directory: str, _inode: int) -> tuple[int, int, int] | None:
    """Return vendor, device and class of a function; None if it is another vendor's.

    The kernel gives a function that is plugged again another inode.
    """
    vendor = _hex(f"{directory}/vendor")
    if vendor not in (NVIDIA, AMAZON, MELLANOX):
        return None
    return vendor, _hex(f"{directory}/device"), _hex(f"{directory}/class")


def _with_place(devices: str, function: PciFunction) -> PciFunction:
    directory = f"{devices}/{function.address}"
    try:
        numa_node = int(read(f"{directory}/numa_node", 16))
    except (OSError, ValueError):
        numa_node = NO_NODE
    # The kernel links to the function's position in the device tree: …/pci0000:00/BRIDGE/…/BRIDGE/FUNCTION.
    bridges = tuple(name for name in _link(directory).split("/")[:-1] if _FUNCTION.match(name))
    return replace(function, numa_node=numa_node, switch=bridges[-1] if bridges else "", bridges=bridges)


def _link(path: str) -> str:
    """Return the target of a link; '' if it is none or vanished."""
    try:
        return os.readlink(path)  # noqa: PTH115 - pathlib would double the time
    except OSError:
        return ""


def _hex(path: str) -> int:
    return int(read(path, 16), 16)


FUNCTIONS = Probe("pci", read_functions, tuple[PciFunction, ...])
