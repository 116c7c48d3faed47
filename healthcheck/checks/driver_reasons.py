"""Reasons of faults that both the kernel log and NVML can report, under one name."""

from __future__ import annotations

from gpu_healthcheck.healthcheck.model import Reason, Severity

MISMATCH_SECONDS = 180.0
"""During an upgrade, the driver's library and its module are replaced one after the other."""
PROBE_FAILED = "GpuInitFailed: probe"
"""Rule of a line that the driver wrote while it was loaded: a later load can show that the fault is gone."""

INIT_FAILED = Reason(
    "GpuInitFailed",
    Severity.RESET,
    "A GPU could not be started by the driver: NVML gives no handle for it (unknown error), or the driver logged the "
    "failure. MONITOR if the log names the reason: the driver does not support the GPU, or lacks its firmware file.",
    "Drain the node, then reload the driver or reboot; replace the node if the GPU still does not start. MONITOR: the"
    " driver names what it requires, and the GPU is sound; do only what the detail says, then reboot.",
    threshold="MONITOR: a line that names what the driver requires; RESET: another line of the driver, at once; error"
    " 999 for a handle once 3 more check cycles, 10 s apart, show it too",
    source="open-gpu-kernel-modules, kernel-open/nvidia/nv.c and nv-pci.c, src/nvidia/arch/nvalloc/unix/src/osapi.c;"
    " nvml.h, error 999",
)
LIBRARY_MISMATCH = Reason(
    "DriverLibraryMismatch",
    Severity.RESET,
    "The kernel module and the node's driver library have different versions: every new GPU program fails. Pods that"
    " loaded the library before, such as the device plugin, continue to run. MONITOR if only a line of the kernel log"
    " shows it: a container may use its own library.",
    "Drain the node, then reload the driver or reboot. For MONITOR, find the container that uses its own library.",
    threshold=f"NVML's error 18 for {MISMATCH_SECONDS:.0f} s without a change of the driver; MONITOR: a line, at once",
    source="nvml.h, error 18",
)
