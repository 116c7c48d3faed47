"""Invented identity of a simulated GPU, and NVML's answers for it while it is healthy."""

import binascii
from collections.abc import Iterator
from dataclasses import dataclass

from sim.instance_types import GpuModel, InstanceShape

MOST_MIG_DEVICES = 7


@dataclass(frozen=True)
class SimulatedGpu:
    """Identity of a simulated GPU."""

    index: int
    address: str
    uuid: str
    serial: str

    @property
    def nvml_bus_id(self) -> str:
        return f"0000{self.address.upper()}"

    @property
    def kernel_address(self) -> str:
        """Return the address as NVRM prints it, without the function."""
        return self.address.rpartition(".")[0]


def invent_gpus(node_name: str, shape: InstanceShape) -> Iterator[SimulatedGpu]:
    # Unique per node and GPU, equal in every run, and recognisable as invented.
    node_number = binascii.crc32(node_name.encode())
    for index, address in enumerate(shape.gpu_addresses):
        yield SimulatedGpu(
            index=index,
            address=address,
            uuid=f"GPU-00000000-51e0-4000-8000-{node_number:08x}{index:04x}",
            serial=f"{node_number % 10**10:010d}{index:03d}",
        )


def healthy_values(gpu: SimulatedGpu, model: GpuModel) -> dict[str, object]:
    return {
        "uuid": gpu.uuid,
        "serial": gpu.serial,
        "name": model.name,
        "bus_id": gpu.nvml_bus_id,
        "minor": gpu.index,
        "pci_device_id": f"{model.pci_device}10de",
        "pci_subsystem_id": "0x000010de",
        "persistence_mode": 1,
        "ecc_mode_current": 1,
        "ecc_mode_pending": 1,
        "clocks_event_reasons": 1,
        "inforom": 1,
        "temperature": 34,
        "memory_total": model.memory_bytes,
        "memory_reserved": 600 << 20,
        "memory_used": 0,
        "processes": "",
        "pcie_width": 16,
        "pcie_max_width": 16,
        # Values of an idle GPU: the link is slow until a process uses it.
        "pcie_generation": 1,
        "pcie_max_generation": 5,
        "pcie_replays": 0,
        "field/230": 0,
        "dram_corrected": 0,
        "sram_corrected": 0,
        "sm_clock": 345,
        "memory_clock": 2619,
        **dict.fromkeys(_COUNTED_SINCE_LOADED, 0),
        "field/186": 70_000,
        **_IDLE_SAMPLES,
        **dict.fromkeys(VOLATILE_ECC + AGGREGATE_ECC, 0),
        **(_ROW_REMAP if model.remaps_rows else _RETIRED_PAGES),
        **(_MARGINS if model.reports_margins else _LIMITS),
        **(_MIG if model.has_mig else {}),
        **_nvlinks(model),
        **_fabric(model),
    }


def values_after_reboot(gpu: SimulatedGpu, model: GpuModel) -> dict[str, object]:
    """Return the values that a reboot makes healthy: counts, pending resets, links and fabric."""
    healthy = healthy_values(gpu, model)
    return {name: value for name, value in healthy.items() if name in _RESET or name.startswith(_RESET_BELOW)}


VOLATILE_ECC = ("ecc_corrected_volatile", "ecc_uncorrected_volatile")
AGGREGATE_ECC = ("ecc_corrected_aggregate", "ecc_uncorrected_aggregate")
_COUNTED_SINCE_LOADED = tuple(f"field/{field}" for field in (74, 75, 83, 138, 139))
"""Fields of counters: throttled time, energy, and KiB on NVLink."""
_IDLE_SAMPLES: dict[str, object] = {
    "samples/1": "71 200000 0",
    "samples/5": "100 0",
    "samples/6": "100 0",
}
"""Buffers of utilisation, processor clock and memory clock (nvmlSamplingType_t), as on an H200 with driver 580.159.04.

It reports the size of buffers of clocks, but has no samples in them.
"""
_ROW_REMAP: dict[str, object] = {
    "remap_corrected": 0,
    "remap_uncorrected": 0,
    "remap_pending": 0,
    "remap_failed": 0,
    "remap_histogram": "640 0 0 0 0",
    "sram_threshold_exceeded": 0,
    "repair_channel": 0,
    "repair_tpc": 0,
}
_RETIRED_PAGES: dict[str, object] = {"retired_sbe": 0, "retired_dbe": 0, "retired_pending": 0}
_MARGINS: dict[str, object] = {"temperature_margin": 52, "field/194": -2}
_LIMITS: dict[str, object] = {"temperature_slowdown": 89}
_MIG: dict[str, object] = {"mig_current": 0, "mig_pending": 0, "mig_most": MOST_MIG_DEVICES}
_RESET = frozenset(
    {
        *VOLATILE_ECC,
        "dram_corrected",
        "sram_corrected",
        *_COUNTED_SINCE_LOADED,
        "remap_pending",
        "retired_pending",
        "repair_channel",
        "repair_tpc",
        "clocks_event_reasons",
        "temperature",
        "temperature_margin",
        "memory_used",
        "processes",
        "pcie_replays",
        "field/230",
    }
)
_RESET_BELOW = ("nvlink/", "fabric_")
_COUNTERS, _COUNTERS_OF_NVLINK_5 = (161, 162, 163), (214, 215, 221)
_NVLINK_5 = 7


def link_counters(model: GpuModel) -> tuple[int, ...]:
    """Return the fields that count events on its links."""
    return _COUNTERS_OF_NVLINK_5 if model.nvlink_version >= _NVLINK_5 else _COUNTERS


def _nvlinks(model: GpuModel) -> dict[str, object]:
    values: dict[str, object] = {}
    for link in range(model.nvlinks):
        values[f"nvlink/{link}/version"] = model.nvlink_version
        values |= {f"nvlink/{link}/field/{field}": 0 for field in link_counters(model)}
    return values


def _fabric(model: GpuModel) -> dict[str, object]:
    if model.fabric_health_mask is None:
        return {}
    return {
        "fabric_state": 3,
        "fabric_status": 0,
        "fabric_clique": 0,
        "fabric_cluster": "",
        "fabric_health_mask": model.fabric_health_mask,
        "fabric_health_summary": model.fabric_health_summary,
    }
