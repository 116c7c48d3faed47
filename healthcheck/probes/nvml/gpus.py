"""GPU data from NVML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import fields, replace

from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.nvml.error_causes import CAUSES, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND

SUCCESS = 0
INSUFFICIENT_POWER, IRQ_ISSUE, CORRUPTED_INFOROM, GPU_IS_LOST, RESET_REQUIRED = 8, 11, 14, 15, 16
"""Codes of nvmlReturn_t (nvml.h) that concern the hardware."""
UNKNOWN = 999
"""Code of nvmlReturn_t without a reason. Instead of a handle, it means that the GPU could not be initialised."""
NONSENSE = -1
"""Value instead of an nvmlReturn_t if NVML returned invalid data. No nvmlReturn_t has this value."""


NO_FABRIC, _COMPLETED = 0, 3
"""Values of nvmlGpuFabricState_t: the GPU has no fabric, or is registered with it."""
_PARTITION_SHIFT, _MANAGER_SHIFT = 12, 14
"""Positions of PARTITION_ASSIGNED and GFM_STATE in the fabric's health mask (NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_…).

They have two bits: 0 means not supported, 1 yes or connected, 2 no or disconnected.
"""

_MOST_NVLINKS = 36
"""Value of NVML_NVLINK_MAX_LINKS in the newest nvml.h."""
MOST_SAMPLES = 1024
"""Most samples that are read of one buffer."""
Unsigned = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Signed = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
"""Numbers of 32 bits. A plain `int` in a reading is an unsigned number of 64 bits."""
Celsius = Annotated[int, Meta(ge=-300, le=1000)]
_UUID_OR_NOTHING = r"\A([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?\Z"


class Reading(Struct, frozen=True):
    """A reading of a GPU. It is part of its field in `Gpu`, whose name it has and whose type validates its value."""

    call: str
    """Function of `queries`, or of pynvml if one call with the GPU's handle is the whole query."""
    healthy: Mapping[str, object] = {}
    """Values of a healthy GPU, by their files in the simulated library. Those of a structure are in its order."""
    on_failure: Literal["gpu", "reading", "none"] = "reading"
    """Subject of the error if the call fails: the GPU, or the reading. "none": a failure is an absent value.

    The latter calls are new or deprecated, or not documented for each GPU, so a failure is no evidence about the GPU.
    """


class Mode(Struct, frozen=True):
    """A mode of the GPU now, and after the next reset or reboot."""

    current: bool
    pending: bool


class EccCounts(Struct, frozen=True):
    """ECC errors in all memories. `volatile` counts since the driver was loaded, `aggregate` in the GPU's lifetime."""

    corrected_volatile: int
    uncorrected_volatile: int
    corrected_aggregate: int
    uncorrected_aggregate: int


class RowRemap(Struct, frozen=True):
    """Rows of memory replaced by spare ones (Ampere and later)."""

    corrected: Unsigned
    uncorrected: Unsigned
    pending: bool
    """Whether replacements take effect only after a reset of the GPU."""
    failed: bool
    inactive: int | None = None
    """Replaced rows that are not in use (R580 and later)."""


class MemoryErrors(Struct, frozen=True):
    """Corrected ECC errors since the driver was loaded, by kind of memory. None means not reported."""

    dram_corrected: int | None = None
    sram_corrected: int | None = None


class SramUnique(Struct, frozen=True):
    """Most different addresses with uncorrectable errors in one bank of the SRAM, by its protection."""

    parity: Unsigned
    secded: Unsigned


class ThrottledTime(Struct, frozen=True):
    """Nanoseconds for which the clocks were held down since the driver was loaded. None means not reported.

    Where the driver's counters by reason are unknown, `software_thermal` is the time of all slowdowns due to heat.
    """

    software_power: int | None = None
    software_thermal: int | None = None
    hardware_thermal: int | None = None
    power_brake: int | None = None


class Samples(Struct, frozen=True):
    """A buffer of the driver with recent samples, seconds apart at most."""

    count: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)]
    span_microseconds: int
    """Time between the oldest and the newest sample."""
    total: int
    """Sum of the samples: percent or MHz."""
    least: int | None = None
    greatest: int | None = None
    """Extreme samples; None in older captures."""

    @property
    def mean(self) -> float:
        return self.total / self.count


class Load(Struct, frozen=True):
    """Work of the GPU and its speed. None means not reported; all but the utilisation also while that is 0.

    Energy and KiB count from the load of the driver. The current clocks are None if the driver has a buffer of them.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_milliwatts: int | None = None
    energy_millijoules: int | None = None
    nvlink_sent_kib: int | None = None
    nvlink_received_kib: int | None = None
    utilisation: Samples | None = None
    sm_clock: Samples | None = None
    memory_clock: Samples | None = None
    memory_utilisation: Samples | None = None
    """Percent of the time in which memory was read or written."""
    default_power_limit_milliwatts: int | None = None
    """Limit of the board as delivered. The limit in force may be lower."""

    @property
    def mean_sm_mhz(self) -> float | None:
        """Return the mean of the driver's samples; without samples, the clock at the read."""
        return self.sm_mhz if self.sm_clock is None else self.sm_clock.mean

    @property
    def mean_memory_mhz(self) -> float | None:
        return self.memory_mhz if self.memory_clock is None else self.memory_clock.mean


class RetiredPages(Struct, frozen=True):
    """Pages of memory no longer used (before Ampere)."""

    single_bit: int
    double_bit: int
    pending: bool


class PendingRepair(Struct, frozen=True):
    """Repairs that take effect after a reset of the GPU (newest drivers)."""

    channel_pending: bool
    tpc_pending: bool


class Temperature(Struct, frozen=True):
    """Temperature in °C; None if this GPU does not report it.

    `margin` is the distance from its limit (Hopper and later).
    """

    celsius: Celsius | None = None
    slowdown_celsius: Celsius | None = None
    margin_celsius: Celsius | None = None
    slowdown_margin_celsius: Celsius | None = None
    """Margin at which the GPU slows down, 0 or below."""


class MemoryUse(Struct, frozen=True):
    """Memory in bytes. `reserved` is used by the driver and not part of `used`."""

    total: int
    reserved: int
    used: int


class PcieLink(Struct, frozen=True):
    """Lanes and generation. The maxima are those that GPU and slot support together. None means not reported."""

    width: Unsigned
    max_width: Unsigned
    generation: Unsigned | None = None
    max_generation: Unsigned | None = None

    @property
    def at_highest_generation(self) -> bool:
        """Whether the link runs at its full speed. False if either generation is unknown."""
        return bool(self.generation and self.max_generation) and self.generation == self.max_generation


class NvLink(Struct, frozen=True):
    """One NVLink. `version` is nvmlNvlinkVersion_t; None if it is unknown, as for an inactive link.

    `counters` are cumulative, by the name of their NVML field: replays, recoveries, recovery_failures, crc_errors …
    A link with `traffic_disabled` is active and carries no traffic (R615 and later).
    """

    link: int
    active: bool
    version: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    traffic_disabled: bool = False


class Fabric(Struct, frozen=True):
    """The GPU's registration with its NVLink fabric (nvmlGpuFabricInfo_t and _v2, _v3, _v4).

    A value is None if an older structure lacks it.
    """

    state: Unsigned
    """State by nvmlGpuFabricState_t: 0 not supported, 1 not started, 2 in progress, 3 completed."""
    status: Signed
    """Result of the registration (nvmlReturn_t)."""
    clique: Unsigned = 0
    cluster_uuid: Annotated[str, Meta(pattern=_UUID_OR_NOTHING)] = ""
    health_mask: Unsigned | None = None
    health_summary: Unsigned | None = None

    @property
    def partition_assigned(self) -> bool | None:
        """Whether the GPU is in a partition of the fabric (R595 and later); None if that is not reported."""
        return self._mask_flag(_PARTITION_SHIFT)

    @property
    def manager_connected(self) -> bool | None:
        """Whether the fabric manager is connected to the registered GPU (R615 and later); None if not reported."""
        return self._mask_flag(_MANAGER_SHIFT) if self.state == _COMPLETED else None

    def _mask_flag(self, shift: int) -> bool | None:
        return {1: True, 2: False}.get((self.health_mask or 0) >> shift & 0b11)


class P2p(Struct, frozen=True):
    """P2P capabilities between two GPUs, given by their addresses: nvmlGpuP2PStatus_t, 0 means yes."""

    one: str
    other: str
    read: int
    nvlink: int


class Gpu(Struct, frozen=True):
    """One GPU by NVML's index.

    The types of the fields validate the child's answer. `error` is the nvmlReturn_t of its handle, of a required call,
    or of any call that reports a broken GPU. It is NONSENSE if a name was invalid, else 0. A reading is None if this
    GPU or driver lacks it, or if it failed. `errors` lists the failures.
    """

    index: int
    error: int = SUCCESS
    address: Annotated[str, Reading("address", on_failure="gpu")] = ""
    uuid: Annotated[str, Reading("uuid", on_failure="gpu")] = ""
    serial: Annotated[str, Reading("serial", on_failure="gpu")] = ""
    name: Annotated[str, Reading("name", on_failure="gpu")] = ""
    recovery_action: Annotated[Unsigned | None, Reading("recovery_action", {"field/230": 0})] = None
    """nvmlDeviceGpuRecoveryAction_t, field 230; None if this driver has none, or if it could not be read."""
    recovery_error: int = SUCCESS
    """Error of the recovery action: an nvmlReturn_t or NONSENSE; 0 if there is none, or if the driver has no action."""
    mig_mode: Annotated[Mode | None, Reading("mig_mode", {"mig_current": 0, "mig_pending": 0})] = None
    instances: Annotated[Annotated[tuple[Unsigned, ...], Meta(max_length=64)] | None, Reading("instances")] = None
    """Ids of the MIG GPU instances with a compute instance; `()` without MIG mode; None if unknown."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors by name of the reading: an nvmlReturn_t or NONSENSE. An unsupported reading is not an error.

    The names are the fields of this class, "nvlink_counters" (the states in `nvlinks` are then still known), and "p2p"
    for the pairs with this GPU.
    """
    minor: Annotated[Unsigned | None, Reading("nvmlDeviceGetMinorNumber")] = None
    """Minor number of its device file."""
    persistence: Annotated[bool | None, Reading("nvmlDeviceGetPersistenceMode", {"persistence_mode": 1})] = None
    ecc_mode: Annotated[
        Mode | None, Reading("nvmlDeviceGetEccMode", {"ecc_mode_current": 1, "ecc_mode_pending": 1})
    ] = None
    ecc: Annotated[
        EccCounts | None,
        Reading(
            "ecc",
            {
                "ecc_corrected_volatile": 0,
                "ecc_uncorrected_volatile": 0,
                "ecc_corrected_aggregate": 0,
                "ecc_uncorrected_aggregate": 0,
            },
        ),
    ] = None
    sram_threshold_exceeded: Annotated[
        bool | None, Reading("sram_threshold_exceeded", {"sram_threshold_exceeded": 0})
    ] = None
    row_remap: Annotated[
        RowRemap | None,
        Reading("row_remap", {"remap_corrected": 0, "remap_uncorrected": 0, "remap_pending": 0, "remap_failed": 0}),
    ] = None
    exhausted_banks: Annotated[Unsigned | None, Reading("exhausted_banks", {"remap_histogram": "640 0 0 0 0"})] = None
    """Number of memory banks without a spare row."""
    retired_pages: Annotated[
        RetiredPages | None, Reading("retired_pages", {"retired_sbe": 0, "retired_dbe": 0, "retired_pending": 0})
    ] = None
    repair: Annotated[
        PendingRepair | None, Reading("nvmlDeviceGetRepairStatus", {"repair_channel": 0, "repair_tpc": 0})
    ] = None
    clock_reasons: Annotated[int | None, Reading("clock_reasons", {"clocks_event_reasons": 1})] = None
    """Bits of nvmlClocksEventReasons."""
    temperature: Annotated[
        Temperature | None,
        Reading(
            "temperature", {"temperature": 34, "temperature_slowdown": 89, "temperature_margin": 52, "field/194": -2}
        ),
    ] = None
    inforom_valid: Annotated[bool | None, Reading("inforom_valid", {"inforom": 1})] = None
    """Whether the InfoROM is valid. A valid InfoROM is tested again after an hour."""
    memory: Annotated[
        MemoryUse | None, Reading("memory", {"memory_total": 80 << 30, "memory_reserved": 600 << 20, "memory_used": 0})
    ] = None
    processes: Annotated[Unsigned | None, Reading("processes", {"processes": ""})] = None
    """Number of processes with a context of any kind on the GPU."""
    pcie: Annotated[
        PcieLink | None,
        # An idle GPU: the link is slow until a process uses it.
        Reading("pcie", {"pcie_width": 16, "pcie_max_width": 16, "pcie_generation": 1, "pcie_max_generation": 5}),
    ] = None
    pcie_replays: Annotated[Unsigned | None, Reading("nvmlDeviceGetPcieReplayCounter", {"pcie_replays": 0})] = None
    """Cumulative number of PCIe replays."""
    nvlinks: Annotated[Annotated[tuple[NvLink, ...], Meta(max_length=_MOST_NVLINKS)] | None, Reading("nvlinks")] = None
    fabric: Annotated[Fabric | None, Reading("fabric")] = None
    memory_errors: Annotated[
        MemoryErrors | None, Reading("memory_errors", {"dram_corrected": 0, "sram_corrected": 0}, "none")
    ] = None
    throttled: Annotated[ThrottledTime | None, Reading("throttled", {"field/74": 0, "field/75": 0}, "none")] = None
    load: Annotated[
        Load | None,
        Reading(
            "load",
            {
                "sm_clock": 345,
                "memory_clock": 2619,
                "field/186": 70_000,
                "field/189": 700_000,
                "field/83": 0,
                "field/138": 0,
                "field/139": 0,
                # As an H200 with driver 580.159.04: buffers of clocks have a size, but no samples in them.
                "samples/1": "71 200000 0",
                "samples/2": "71 200000 0",
                "samples/5": "100 0",
                "samples/6": "100 0",
            },
            "none",
        ),
    ] = None
    unrepairable_memory: Annotated[bool | None, Reading("unrepairable_memory", {}, "none")] = None
    """Whether memory is faulty that no repair can replace (Hopper and later, R580 and later)."""
    sram_unique: Annotated[SramUnique | None, Reading("sram_unique", {}, "none")] = None
    mig_devices: Annotated[
        Annotated[Mapping[str, Unsigned], Meta(max_length=64)] | None, Reading("mig_devices", {}, "none")
    ] = None
    """GPU instance of each MIG device, by the UUID that a device plugin shows."""

    @property
    def subject(self) -> str:
        return f"gpu/{self.address or f'index-{self.index}'}"

    @property
    def about(self) -> dict[str, str]:
        names = {"index": str(self.index), "uuid": self.uuid, "serial": self.serial}
        return {key: value for key, value in names.items() if value}


def _declared_readings() -> dict[str, Reading]:
    rows = {
        part.name: row
        for part in fields(Gpu)
        for row in getattr(part.type, "__metadata__", ())
        if isinstance(row, Reading)
    }
    rows["nvlink_counters"] = Reading("nvlink_counters")
    return dict(sorted(rows.items(), key=lambda item: item[1].on_failure == "none"))


READINGS: Mapping[str, Reading] = _declared_readings()
"""Readings by name, in the order of their calls, because some use earlier results.

`nvlink_counters` is no field: its counts are part of `nvlinks`.
"""


class Gpus(Struct, frozen=True, tag=True):
    """GPUs of one NVML reading, with their interconnect."""

    driver_version: str
    library: str
    gpus: tuple[Gpu, ...]
    p2p: tuple[P2p, ...] = ()
    """Each pair once, without failed GPUs, GPUs in MIG mode, and pairs that NVML does not report."""


NO_GPUS = Gpus("", "", ())
"""Value if no driver is loaded and none is needed."""


SNAPSHOT_SECONDS = 240.0
"""Shortest time between two snapshots of a history: a little less than the default check interval."""


class Snapshot(Struct, frozen=True):
    """The GPUs of an earlier read, at a time in seconds of CLOCK_MONOTONIC.

    They have only the readings that are compared over time: those of `snapshot`.
    """

    at: float
    gpus: tuple[Gpu, ...]


def snapshot(at: float, answer: Gpus) -> Snapshot:
    return Snapshot(at, tuple(_compared(gpu) for gpu in answer.gpus if gpu.error == SUCCESS))


def _compared(gpu: Gpu) -> Gpu:
    return Gpu(
        gpu.index,
        address=gpu.address,
        uuid=gpu.uuid,
        row_remap=gpu.row_remap,
        clock_reasons=gpu.clock_reasons,
        temperature=gpu.temperature,
        processes=gpu.processes,
        pcie_replays=gpu.pcie_replays,
        memory_errors=gpu.memory_errors,
        throttled=gpu.throttled,
        load=gpu.load,
    )


class DriverReading(Struct, frozen=True):
    """Result of one read: the GPUs, or the reason for a missing answer.

    `missed` contains the monotonic seconds of deadlines missed in a row. `module_version` is the loaded kernel
    module's; '' if none is loaded. `library_versions` are those of the driver's libraries on the node.
    """

    answer: Gpus | Unobserved
    missed: tuple[float, ...] = ()
    deadline_seconds: float = 0.0
    stuck_pid: int | None = None
    module_version: str = ""
    library_versions: tuple[str, ...] = ()
    mismatch_seconds: float | None = None
    """Seconds for which NVML has returned only error 18; None if the last answer is another."""
    sees_every_process: bool = True
    """Whether NVML shows the processes of the node; False in a container's PID namespace."""
    read_at: float = 0.0
    """Time of this read, in seconds of CLOCK_MONOTONIC."""
    history: tuple[Snapshot, ...] = ()
    """Earlier reads of the same driver, oldest first, at intervals of minutes; `()` for a single read."""


def read_driver(host: Host) -> DriverReading:
    if host.ask_driver is None:
        raise ProbeError("this check cycle does not read the driver")
    reading: DriverReading = host.ask_driver()
    is_absent = isinstance(reading.answer, Unobserved) and reading.answer.cause in (
        DRIVER_NOT_LOADED,
        LIBRARY_NOT_FOUND,
    )
    return replace(reading, answer=NO_GPUS) if is_absent and _are_handed_away(host) else reading


def _are_handed_away(host: Host) -> bool:
    """Whether all GPUs on PCI belong to virtual machines. The host then needs no driver."""
    try:
        gpus = [function for function in pci.read_functions(host) if function.is_gpu]
    except ProbeError:
        return False
    return bool(gpus) and all(gpu.is_handed_away for gpu in gpus)


NVML = Probe("nvml", read_driver, DriverReading, CAUSES)
