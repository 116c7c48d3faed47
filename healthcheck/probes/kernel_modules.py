"""Kernel modules for NVIDIA GPUs, in the list of /sys/module."""

from __future__ import annotations

from msgspec import Struct

from healthcheck.host.opening import is_folder, want_folder
from healthcheck.model import Host, Probe
from healthcheck.probes.nvml.driver import driver_version


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
