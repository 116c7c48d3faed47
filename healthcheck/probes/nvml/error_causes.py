"""Causes why NVML could not be read, or its answer not judged."""

from __future__ import annotations

from healthcheck.model import UnobservedCause

LIBRARY_NOT_FOUND = UnobservedCause(
    "NvmlLibraryNotFound",
    "No library of the driver (libnvidia-ml.so.1) was found.",
    "Install the driver, or see why its library lies elsewhere: the message names the places that were tried.",
)
LIBRARY_MISMATCH = UnobservedCause(
    "NvmlLibraryMismatch",
    "The library that we loaded is of another version than the kernel module: NVML's error 18.",
    "Reboot after the upgrade of the driver, or reload its kernel module.",
)
DRIVER_NOT_LOADED = UnobservedCause(
    "DriverNotLoaded",
    "The NVIDIA kernel module is not loaded.",
    "Load it (`modprobe nvidia`); `dmesg` says why it refuses.",
)
DRIVER_NOT_ANSWERING = UnobservedCause(
    "DriverNotAnswering",
    "A look at NVML missed its deadline once.",
    "Wait for the next look: two deadlines missed are DriverUnresponsive.",
)
DRIVER_BEING_CHANGED = UnobservedCause(
    "DriverBeingChanged",
    "The driver is being replaced, or MIG is being reconfigured: nobody asks NVML meanwhile.",
    "Wait until the upgrade or the change of MIG has ended.",
)
DRIVER_JUST_LOADED = UnobservedCause(
    "DriverJustLoaded",
    "The driver was loaded a moment ago, and what is missing may still come up.",
    "Wait: it is judged when its grace has passed.",
)
CRASHED = UnobservedCause(
    "NvmlCrashed", "The child process that asks NVML ended without an answer.", "Run `nvidia-smi` on the node."
)
NONSENSE = UnobservedCause("NvmlNonsense", "NVML's answer makes no sense.", "Run `nvidia-smi` on the node.")
ERROR = UnobservedCause(
    "NvmlError",
    "NVML could not be initialised, and its error is none of the known ones.",
    "Run `nvidia-smi` on the node.",
)
GPU_NOT_ANSWERING = UnobservedCause(
    "GpuNotAnswering",
    "NVML has an error in place of a reading of one GPU.",
    "Run `nvidia-smi -q -i GPU` on the node, and look for that GPU in `dmesg`.",
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
