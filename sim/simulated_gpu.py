"""Invented identity of a simulated GPU, and NVML's answers for it while it is healthy."""

import binascii
from collections.abc import Iterator
from dataclasses import dataclass

from gpu_healthcheck.healthcheck.probes.nvml.gpus import READINGS
from gpu_healthcheck.sim.instance_types import GpuModel, InstanceShape

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
    values: dict[str, object] = {
        "uuid": gpu.uuid,
        "serial": gpu.serial,
        "name": model.name,
        "bus_id": gpu.nvml_bus_id,
        "minor": gpu.index,
        "pci_device_id": f"{model.pci_device}10de",
        "pci_subsystem_id": "0x000010de",
        "mig_most": MOST_MIG_DEVICES,
    }
    for row in READINGS.values():
        values |= row.healthy
    return {
        **{name: value for name, value in values.items() if name not in _lacking(model)},
        "memory_total": model.memory_bytes,
        **_nvlinks(model),
        **_fabric(model),
    }


def _lacking(model: GpuModel) -> set[str]:
    """Return the values that this model does not report."""
    return {
        *(READINGS["retired_pages"].healthy if model.remaps_rows else _OF_ROW_REMAPPING),
        *(("temperature_slowdown",) if model.reports_margins else ("temperature_margin", "field/194")),
        *(() if model.has_mig else ("mig_most", *READINGS["mig_mode"].healthy)),
    }


def values_after_reboot(gpu: SimulatedGpu, model: GpuModel) -> dict[str, object]:
    """Return the values that a reboot makes healthy: counts, pending resets, links and fabric."""
    healthy = healthy_values(gpu, model)
    return {name: value for name, value in healthy.items() if name in _RESET or name.startswith(_RESET_BELOW)}


VOLATILE_ECC = ("ecc_corrected_volatile", "ecc_uncorrected_volatile")
AGGREGATE_ECC = ("ecc_corrected_aggregate", "ecc_uncorrected_aggregate")
_COUNTED_SINCE_LOADED = tuple(f"field/{field}" for field in (74, 75, 83, 138, 139))
"""Fields of counters: throttled time, energy, and KiB on NVLink."""
_OF_ROW_REMAPPING = {
    value
    for name in ("row_remap", "exhausted_banks", "sram_threshold_exceeded", "repair")
    for value in READINGS[name].healthy
}
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
