"""The kernel modules that drive NVIDIA GPUs, as /sys/module lists them."""

from __future__ import annotations

from dataclasses import dataclass

from healthcheck.model import Host, Probe, ProbeError
from healthcheck.probes.nvml.driver import driver_version


@dataclass(frozen=True, slots=True)
class KernelModules:
    nvidia: str
    """The version of NVIDIA's own driver; '' where it is not loaded."""
    nouveau: bool


def read_modules(host: Host) -> KernelModules:
    """Raises ProbeError where there is no /sys/module to look at."""
    listing = host.root / "sys/module"
    if not listing.is_dir():
        raise ProbeError(f"{listing}: no such directory")
    return KernelModules(driver_version(host.root), (listing / "nouveau").is_dir())


MODULES = Probe("kernel-modules", read_modules, KernelModules)
