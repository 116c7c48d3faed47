"""A simulated GPU's invented identity, and what NVML says of it while it is healthy."""

import binascii
from collections.abc import Iterator
from dataclasses import dataclass

from sim.instance_types import GpuModel, InstanceShape

MOST_MIG_DEVICES = 7


@dataclass(frozen=True)
class SimulatedGpu:
    index: int
    address: str
    uuid: str
    serial: str

    @property
    def nvml_bus_id(self) -> str:
        return f"0000{self.address.upper()}"

    @property
    def kernel_address(self) -> str:
        """As NVRM prints it: without the function."""
        return self.address.rpartition(".")[0]


def invent_gpus(node_name: str, shape: InstanceShape) -> Iterator[SimulatedGpu]:
    # Unique per node and GPU, the same at every run, and plainly nobody's.
    node_number = binascii.crc32(node_name.encode())
    for index, address in enumerate(shape.gpu_addresses):
        yield SimulatedGpu(
            index=index,
            address=address,
            uuid=f"GPU-00000000-51e0-4000-8000-{node_number:08x}{index:04x}",
            serial=f"{node_number % 10**10:010d}{index:03d}",
        )


def healthy_values(gpu: SimulatedGpu, model: GpuModel) -> dict[str, object]:
    values: dict[str, object] = {
        "uuid": gpu.uuid,
        "serial": gpu.serial,
        "name": model.name,
        "bus_id": gpu.nvml_bus_id,
        "minor": gpu.index,
        "pci_device_id": f"{model.pci_device}10de",
        "pci_subsystem_id": "0x000010de",
        "persistence_mode": 1,
        "clocks_event_reasons": 1,
        "field/230": 0,
    }
    zeros = [f"ecc_{kind}_{life}" for kind in ("corrected", "uncorrected") for life in ("volatile", "aggregate")]
    zeros += [f"remap_{rows}" for rows in ("corrected", "uncorrected", "pending", "failed")]
    if model.has_mig:
        zeros += ["mig_current", "mig_pending"]
        values["mig_most"] = MOST_MIG_DEVICES
    return values | dict.fromkeys(zeros, 0)
