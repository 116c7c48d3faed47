"""Faults that show in the kernel's log and in NVML: one name, whichever source reports them."""

from __future__ import annotations

from healthcheck.model import Reason, Severity

MISMATCH_SECONDS = 180.0
"""An upgrade replaces the driver's library and its module one after the other."""
PROBE_FAILED = "GpuInitFailed: probe"
"""The rule of a line that the driver wrote while it was loaded: a later load can prove it past."""
SAME_LOAD_SECONDS = 2.0
"""The driver ends a load with the lines about what it could not take; a syslog has whole seconds."""

INIT_FAILED = Reason(
    "GpuInitFailed",
    Severity.RESET,
    "The driver could not start a GPU: NVML gives no handle for it (unknown error), or a line of the driver says so.",
    "Drain the node, then reload the driver, or reboot; replace the node when the GPU still does not start.",
    threshold="a line of the driver at once; a handle with error 999 once 3 further looks, 10 s apart, saw it too",
    source="open-gpu-kernel-modules, kernel-open/nvidia/nv.c and nv-pci.c; nvml.h, error 999",
)
LIBRARY_MISMATCH = Reason(
    "DriverLibraryMismatch",
    Severity.RESET,
    "The kernel module and the node's driver library are of different versions: every new GPU program fails, while pods"
    " that loaded the library before go on, the device plugin among them. MONITOR where only a line of the log says so:"
    " a container may bring a library of its own.",
    "Drain the node, then reload the driver, or reboot. Where it is MONITOR: find the container that brings its own"
    " library.",
    threshold=f"NVML's error 18 for {MISMATCH_SECONDS:.0f} s while nobody changes the driver; MONITOR: a line, at once",
    source="nvml.h, error 18",
)
