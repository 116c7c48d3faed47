"""Names of the checks and reasons that the memory treats specially. A test compares them with the checks."""

from __future__ import annotations

LEVEL_2 = "dcgm-diag-l2"
DEEP_CHECKS = frozenset({LEVEL_2, "dcgm-diag-l4", "efa-loopback", "gpu-load", "nccl-allreduce", "rdma-loopback"})
SLOW = frozenset({"GpuComputeSlow", "GpuCopySlow"})
"""Reasons that only a later measurement disproves: a slow GPU stays slow after a reset, a reboot and a day."""
DRIVER_MESSAGES = "driver-messages"
LIBRARY_MISMATCH = "DriverLibraryMismatch"
FELL_OFF_BUS, NOT_RESPONDING, PCIE_ERROR = "GpuFellOffBus", "GpuNotResponding", "GpuPcieError"
LOCKED = "the watchdog: GPU is probably locked; drain and reboot the node if programs or nvidia-smi hang"
"""Text that the watchdog's line adds to an Xid 8, whose own advice is to restart the application."""
NVLINK_TRAINING, INIT_FAILED = "NvLinkTrainingFailed", "GpuInitFailed"
PCIE_FATAL, PCIE_RECOVERED = "PcieFatalError", "PcieRecovered"
"""Messages about a PCIe port, which are no fault by themselves."""
GPU_UNBOUND = "GpuUnbound"
MLX5_MESSAGES = "mlx5-messages"
MLX5_UNRECOVERABLE, MLX5_NOT_RESPONDING, MLX5_RECOVERED = "Mlx5Unrecoverable", "Mlx5NotResponding", "Mlx5Recovered"
MLX5_LINKS = {"Mlx5LinkUp": True, "Mlx5LinkDown": False}
NOT_COUNTED_YET = "mlx5_core: device not counted yet"
"""Rule of a message about an RDMA device before a check cycle has shown whether it belongs to the GPU fabric."""
RDMA = "rdma/"
"""Beginning of the subjects of RDMA devices."""
RDMA_RATE_LOW = "RdmaRateLow"
OF_THE_NETWORK = frozenset({"RdmaFabricDown"})
"""Reasons of faults that neither a reset nor a reboot of the node is known to end: most often of a switch or cables."""
REMAP_FAILED = "RowRemapFailed"
REMAP_PENDING = "RowRemapPending"
DRIVER_LOAD = "GpuInitFailed: probe"
"""Rule of a line that the driver wrote during its load."""
SLOWER_THAN_SIBLINGS = "GpuSlowerThanSiblings"
"""A level that only work in a pod shows or ends: an idle node keeps it, so time and people end it, too."""
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
