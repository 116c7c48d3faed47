"""Names of the checks and reasons that the memory treats specially. A test compares them with the checks."""

from __future__ import annotations

LEVEL_2 = "dcgm-diag-l2"
DEEP_CHECKS = frozenset({LEVEL_2, "dcgm-diag-l4", "efa-loopback", "gpu-load", "nccl-allreduce"})
SLOW = frozenset({"GpuComputeSlow", "GpuCopySlow"})
"""Reasons that only a later measurement disproves: a slow GPU stays slow after a reset, a reboot and a day."""
DRIVER_MESSAGES = "driver-messages"
LIBRARY_MISMATCH = "DriverLibraryMismatch"
GPU_UNBOUND = "GpuUnbound"
REMAP_FAILED = "RowRemapFailed"
REMAP_PENDING = "RowRemapPending"
DRIVER_LOAD = "GpuInitFailed: probe"
"""Rule of a line that the driver wrote during its load."""
STOPS_PODS = frozenset(
    {
        "CdiSpecStale",
        "DefaultRuntimeUndefined",
        "HamiPluginNotServing",
        "NvidiaRuntimeElsewhere",
        "NvidiaRuntimeMissing",
        "RuntimeBinaryMissing",
        "RuntimeBinaryNotExecutable",
        "RuntimeBinaryOfAnotherArchitecture",
        "RuntimeNotReady",
        "RuntimeTypeRemoved",
        "ToolkitConfigMalformed",
        "ToolkitModeUnknown",
    }
)
"""Reasons of faults that keep all GPU pods of the node from starting, although the GPUs may be healthy."""
