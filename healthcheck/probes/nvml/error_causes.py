"""Causes if NVML could not be read, or its answer could not be judged."""

from __future__ import annotations

from gpu_healthcheck.healthcheck.model import UnobservedCause

LIBRARY_NOT_FOUND = UnobservedCause(
    "NvmlLibraryNotFound",
    "No library of the driver (libnvidia-ml.so.1) was found.",
    "Install the driver, or find out why its library is elsewhere: the message lists the paths that were tried.",
)
LIBRARY_MISMATCH = UnobservedCause(
    "NvmlLibraryMismatch",
    "The loaded library has another version than the kernel module: NVML's error 18.",
    "Reboot after the upgrade of the driver, or reload its kernel module.",
)
DRIVER_NOT_LOADED = UnobservedCause(
    "DriverNotLoaded",
    "The NVIDIA kernel module is not loaded.",
    "Load it (`modprobe nvidia`); read the cause of a failure in `dmesg`.",
)
DRIVER_NOT_ANSWERING = UnobservedCause(
    "DriverNotAnswering",
    "NVML missed its deadline once.",
    "Wait for the next check cycle: after two missed deadlines the finding is DriverUnresponsive.",
)
DRIVER_BEING_CHANGED = UnobservedCause(
    "DriverBeingChanged",
    "The driver is being replaced, or MIG is being reconfigured: NVML is not read during the change.",
    "Wait until the upgrade or the change of MIG has ended.",
)
DRIVER_JUST_LOADED = UnobservedCause(
    "DriverJustLoaded",
    "The driver was loaded recently, and missing parts may still be initialising.",
    "Wait: they are judged after the grace period.",
)
CRASHED = UnobservedCause(
    "NvmlCrashed", "The child process that reads NVML ended without an answer.", "Run `nvidia-smi` on the node."
)
NONSENSE = UnobservedCause("NvmlNonsense", "NVML's answer is implausible.", "Run `nvidia-smi` on the node.")
ERROR = UnobservedCause(
    "NvmlError",
    "NVML could not be initialised, with an unknown error.",
    "Run `nvidia-smi` on the node.",
)
GPU_NOT_ANSWERING = UnobservedCause(
    "GpuNotAnswering",
    "NVML returned an error for a reading of one GPU.",
    "Run `nvidia-smi -q -i GPU` on the node, and search `dmesg` for this GPU.",
)
CAUSES = (
    LIBRARY_NOT_FOUND,
    DRIVER_NOT_LOADED,
    LIBRARY_MISMATCH,
    DRIVER_NOT_ANSWERING,
    DRIVER_BEING_CHANGED,
    DRIVER_JUST_LOADED,
    CRASHED,
    NONSENSE,
    ERROR,
    GPU_NOT_ANSWERING,
)
