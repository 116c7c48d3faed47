"""Queries of one GPU, by calls of pynvml's functions. Each answers the reading with its name in `gpus.Gpu`.

A query returns plain values: the fields of a structure as a list. It returns None for an unsupported value, raises
NVMLError for other errors, and ValueError for invalid values.

The caller that loaded the library passes the module. The process that reads NVML also loads this module, so it imports
as few modules as possible.
"""

from __future__ import annotations

import ctypes
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing uses 0.6 MiB
    from collections.abc import Callable, Iterable
    from typing import Any

_MOST_INSTANCES = 64  # limits the cost of an invalid count
_MOST_PROCESSES = 1024
_MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest nvml.h
_NOT_FOUND = 6  # nvml.h
_FUNCTION_NOT_FOUND = 13
ABSENT = frozenset({2, 3, 13, 25})
"""Codes of nvml.h: not supported, invalid argument, no such function, no such structure.

Older libraries return "invalid argument" for unknown features.
"""
_FIELD = struct.Struct("=IIqqii8s")
"""Layout of nvmlFieldValue_t: id, scope, time, latency, type, return code, value."""
_VALUES = [struct.Struct(f"={kind}") for kind in "dIQQqiH"]
"""Layout of a value, by nvmlValueType_t."""
_RECOVERY_ACTION, _SLOWDOWN_MARGIN = 230, 194
_RETIRED_PAGES = (29, 30, 31)
"""Fields: pages retired for single-bit errors, for double-bit errors, and whether a reset is pending."""
_SINGLE_FIELDS = (_RECOVERY_ACTION, _SLOWDOWN_MARGIN, *_RETIRED_PAGES)
_CORRECTED = _VOLATILE = 0
"""Corrected errors in nvmlMemoryErrorType_t, counted since the driver was loaded in nvmlEccCounterType_t."""
_DRAM, _SRAM = 2, 7
"""Kinds of memory in nvmlMemoryLocation_t."""
_POWER_CAP, _THERMAL_POLICY = 74, 75
"""Fields: nanoseconds below the requested clocks due to the power limit, and due to heat (violation policies)."""
_ENERGY, _POWER, _DEFAULT_POWER_LIMIT = 83, 186, 189
_INACTIVE_ROWS = (301, 302)
_NVLINK_KIB = (138, 139)
"""Fields: KiB of data sent and received by all links together, with the scope `_ALL_LINKS`."""
_ALL_LINKS = 2**32 - 1
_THROTTLE_FIELDS: tuple[tuple[tuple[int, int], tuple[int, ...]], ...] = (
    # nvidia-ml-py 13.580.82 to 13.615.71; NVML API reference, changes between v575 and v580: the numbers moved because
    # they overlapped with those of power smoothing.
    ((580, 82), (269, 270, 271)),
    # nvidia-smi 580.65.06 queries 251 to 253 (NVIDIA/k8s-test-infra, throttle_counters_test.go), unlike its branch.
    ((580, 0), ()),
    # nvidia-ml-py 12.575.51; NVML API reference, changes between v570 and v575.
    ((575, 0), (251, 252, 253)),
)
"""Fields with the nanoseconds of software thermal, hardware thermal and power brake slowdown, from a driver version on.

`()`: the numbers are ambiguous. Drivers before the table use these numbers for power smoothing.
"""
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
"""SM and memory in nvmlClockType_t."""
_UTILISATION_SAMPLES, _MEMORY_UTILISATION_SAMPLES, _SM_CLOCK_SAMPLES, _MEMORY_CLOCK_SAMPLES = 1, 2, 5, 6
"""Utilisation of GPU and memory, processor clock and memory clock in nvmlSamplingType_t."""
_MOST_SAMPLES = 1024
_SAMPLE_BYTES = 16
"""Size of nvmlSample_t: the time in microseconds, and a value of 8 bytes."""
_SAMPLE_VALUES = {1: (2, 4), 2: (1, 2), 3: (1, 2), 4: (1, 2), 5: (2, 4)}
"""First element and step of the values in an array of nvmlSample_t, by nvmlValueType_t of whole numbers.

Those of 4 bytes are elements of 4 bytes. No sample is negative.
"""
_SUM = 2
"""Position of the sum in the summary of a buffer."""
_UNREPAIRABLE_VERSION = 0x1000008
"""Version 1 of a structure of 8 bytes, in nvidia-ml-py."""
_MOST_SRAM_ERRORS = 1024
_INSUFFICIENT_SIZE = 7
_LINK_FIELDS = {161: "replays", 162: "recoveries", 163: "crc_errors"}
_LINK_FIELDS_OF_NVLINK_5 = {214: "recovery_failures", 215: "recoveries", 221: "symbol_errors"}
_LINK_COUNTERS = ("replays", "recoveries", "crc_errors", "crc_data_errors")
"""Counters of nvmlNvLinkErrorCounter_t, for drivers without the fields."""
_NVLINK_5 = 7
"""NVLink 5 in nvmlNvlinkVersion_t."""
_LINK_STATE, _TRAFFIC_DISABLED = 165, 3
"""Field with the state of an NVLink, and its value for a link that is up and carries no traffic (R615)."""
_R615 = (615, 0)
_UNICAST_POINTER = 0
"""Kind of a fabric clique in nvmlGpuFabricInfo_v4_t whose ID is that of the older structures."""
_SLOWDOWN = 1
"""Slowdown threshold in nvmlTemperatureThresholds_t."""
_INFOROM_INTERVAL_SECONDS = 3600.0


class Inforoms:
    """Time of each GPU's last valid InfoROM test, by the GPU's UUID.

    NVML reads the whole InfoROM from the board's flash and verifies its checksums. Its duration is not documented.
    DCGM's health watch runs the test at most once an hour (DcgmHealthWatch::SetInforom). The same interval applies here
    while it is valid. A corrupted InfoROM is tested in each check cycle, so that the finding ends as soon as it is
    fixed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._valid: dict[str, float] = {}

    def is_due(self, uuid: str) -> bool:
        """Whether to test the InfoROM now. That of a GPU without a UUID is tested each time."""
        valid = self._valid.get(uuid)
        return valid is None or self._clock() - valid >= _INFOROM_INTERVAL_SECONDS

    def tested(self, uuid: str, *, valid: bool) -> None:
        if valid and uuid:
            self._valid[uuid] = self._clock()
        else:
            self._valid.pop(uuid, None)


class GpuHandle:
    """Access to one GPU. An error is raised as NVMLError.

    Functions with `known` in their names return None for an unsupported value. Invalid values raise ValueError.
    """

    def __init__(self, nvml: Any, handle: Any, inforoms: Inforoms, driver_version: str = "") -> None:
        self.nvml = nvml
        self.handle = handle
        self.inforoms = inforoms
        release = _release(driver_version)
        self.throttle_fields = next((fields for since, fields in _THROTTLE_FIELDS if release >= since), ())
        self.is_r615 = release >= _R615
        self.uuid = ""
        self.mig_mode: list[int] | None = None
        self.mig_handles: list[tuple[Any, int]] = []
        """Handle of each MIG device, and its GPU instance."""
        self.links: list[list[int | None]] = []
        self.sram: Any = None
        """The last nvmlEccSramErrorStatus_t; None without one."""
        self._single: dict[int, tuple[int, int, bytes]] | None = None

    def ask(self, function: str, *arguments: Any) -> Any:
        return getattr(self.nvml, function)(self.handle, *arguments)

    def ask_known(self, function: str, *arguments: Any) -> Any:
        try:
            return self.ask(function, *arguments)
        except self.nvml.NVMLError as error:
            return self.known(error.value, None)

    def ask_any(self, function: str, *arguments: Any) -> Any:
        """Return the answer; None for any error."""
        try:
            return self.ask(function, *arguments)
        except self.nvml.NVMLError:
            return None

    def known(self, code: int, value: Any) -> Any:
        """Return the value; None if the code means "not supported". Raises NVMLError for other errors."""
        if code == 0:
            return value
        if code in ABSENT:
            return None
        raise self.nvml.NVMLError(code)

    def field_known(self, field: int) -> Any:
        """Return one of the fields of the GPU as a whole. They are all read in one call."""
        if self._single is None:
            self._single = dict(zip(_SINGLE_FIELDS, self.fields((number, 0) for number in _SINGLE_FIELDS), strict=True))
        return self.value_known(*self._single[field])

    def counts(self, fields: Iterable[int], scope: int = 0) -> list[int | None]:
        """Return fields that count something, all read in one call; None for one that could not be read."""
        return self.counts_of((field, scope) for field in fields)

    def counts_of(self, wanted: Iterable[tuple[int, int]]) -> list[int | None]:
        """Return these fields of these scopes, as `counts` does."""
        counts: list[int | None] = []
        for code, kind, value in self.fields(wanted):
            count = _VALUES[kind].unpack_from(value)[0] if code == 0 and 0 <= kind < len(_VALUES) else None
            counts.append(count if isinstance(count, int) and count >= 0 else None)
        return counts

    def fields(self, wanted: Iterable[tuple[int, int]]) -> list[tuple[int, int, bytes]]:
        """Return code, type and value of each field and scope. If the call itself fails, all have its code.

        Hundreds of values are read in each check cycle: pynvml's own structure would need a microsecond for every
        member.
        """
        request = b"".join(_FIELD.pack(field, scope, 0, 0, 0, 0, b"") for field, scope in wanted)
        values = ctypes.create_string_buffer(request, len(request))
        count = len(request) // _FIELD.size
        code = self.call("nvmlDeviceGetFieldValues", ctypes.c_int(count), values)
        if code != 0:
            return [(code, 0, b"")] * count
        return [(returned, kind, value) for _, _, _, _, kind, returned, value in _FIELD.iter_unpack(values.raw)]

    def value_known(self, code: int, kind: int, value: bytes) -> Any:
        """Return the value of a field, by its type."""
        if self.known(code, value) is None:
            return None
        if not 0 <= kind < len(_VALUES):
            raise ValueError(f"a value of type {kind}")
        return _VALUES[kind].unpack_from(value)[0]

    def pids_known(self, function: str) -> set[int] | None:
        """Return the pids, up to a limit.

        pynvml has no limit: it would allocate memory for as many processes as the library reports.
        """
        processes = (self.nvml.c_nvmlProcessInfo_v3_t * _MOST_PROCESSES)()
        for version in ("_v3", "_v2"):
            count = ctypes.c_uint(_MOST_PROCESSES)
            code = self.call(function + version, ctypes.byref(count), processes)
            if code == 0:
                return {processes[index].pid for index in range(min(count.value, _MOST_PROCESSES))}
            if code != _FUNCTION_NOT_FOUND:
                break
        self.known(code, None)
        return None

    def call(self, function: str, *arguments: Any) -> int:
        """Call a library function directly and return its code. pynvml's call would be too costly or unbounded."""
        try:
            return int(getattr(self.nvml.nvmlLib, function)(self.handle, *arguments))
        except AttributeError:
            return _FUNCTION_NOT_FOUND


def address(gpu: GpuHandle) -> str:
    return text(gpu.ask("nvmlDeviceGetPciInfo").busId)


def uuid(gpu: GpuHandle) -> str:
    gpu.uuid = text(gpu.ask("nvmlDeviceGetUUID"))
    return gpu.uuid


def serial(gpu: GpuHandle) -> str:
    return text(gpu.ask("nvmlDeviceGetSerial"))


def name(gpu: GpuHandle) -> str:
    return text(gpu.ask("nvmlDeviceGetName"))


def mig_mode(gpu: GpuHandle) -> list[int]:
    gpu.mig_mode = gpu.ask("nvmlDeviceGetMigMode")
    return gpu.mig_mode


def instances(gpu: GpuHandle) -> list[int] | None:
    """Return the GPU instances of the existing MIG devices; None if there are more than a GPU can have.

    The alternative is more expensive: listing GPU instances takes a call for each profile of the GPU.
    """
    mode = gpu.mig_mode or mig_mode(gpu)
    if mode[0] != gpu.nvml.NVML_DEVICE_MIG_ENABLE:
        return []
    most = gpu.ask("nvmlDeviceGetMaxMigDeviceCount")
    if most > _MOST_INSTANCES:
        return None
    devices = [device for index in range(most) if (device := _mig_device(gpu, index)) is not None]
    gpu.mig_handles = [(device, gpu.nvml.nvmlDeviceGetGpuInstanceId(device)) for device in devices]
    return sorted({instance for _, instance in gpu.mig_handles})


def _mig_device(gpu: GpuHandle, index: int) -> Any:
    """Return the MIG device with this index; None if there is none.

    The indices of existing devices have gaps.
    """
    try:
        return gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
    except gpu.nvml.NVMLError as error:
        if error.value == _NOT_FOUND:
            return None
        raise


def mig_devices(gpu: GpuHandle) -> dict[str, int] | None:
    """Return the GPU instance of each MIG device, by UUID."""
    return {text(gpu.nvml.nvmlDeviceGetUUID(device)): instance for device, instance in gpu.mig_handles} or None


def ecc(gpu: GpuHandle) -> list[int]:
    return [gpu.ask("nvmlDeviceGetTotalEccErrors", kind, life) for life in (0, 1) for kind in (0, 1)]


def exhausted_banks(gpu: GpuHandle) -> Any:
    return gpu.ask("nvmlDeviceGetRowRemapperHistogram").none


def sram_threshold_exceeded(gpu: GpuHandle) -> int:
    status = gpu.nvml.c_nvmlEccSramErrorStatus_v1_t()
    gpu.ask("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
    gpu.sram = status
    return int(status.bThresholdExceeded)


def row_remap(gpu: GpuHandle) -> list[int | None]:
    """Return the counts of remapped rows; that of inactive ones is None before R580."""
    inactive = [count for count in gpu.counts(_INACTIVE_ROWS) if count is not None]
    return [*gpu.ask("nvmlDeviceGetRemappedRows"), sum(inactive) if len(inactive) == len(_INACTIVE_ROWS) else None]


def recovery_action(gpu: GpuHandle) -> Any:
    return gpu.field_known(_RECOVERY_ACTION)


def retired_pages(gpu: GpuHandle) -> list[int] | None:
    pages = [gpu.field_known(field) for field in _RETIRED_PAGES]
    return None if None in pages else pages


def clock_reasons(gpu: GpuHandle) -> Any:
    """Return the clock reasons. Libraries before R535 have only the function's old name."""
    reasons = gpu.ask_known("nvmlDeviceGetCurrentClocksEventReasons")
    return gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons


def temperature(gpu: GpuHandle) -> list[int | None] | None:
    entries = [
        gpu.ask_known("nvmlDeviceGetTemperature", 0),
        gpu.ask_known("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
        gpu.ask_known("nvmlDeviceGetMarginTemperature"),
        gpu.field_known(_SLOWDOWN_MARGIN),
    ]
    return None if entries == [None] * len(entries) else entries


def inforom_valid(gpu: GpuHandle) -> int:
    if not gpu.inforoms.is_due(gpu.uuid):
        return 1
    valid = True
    try:
        gpu.ask("nvmlDeviceValidateInforom")
    except gpu.nvml.NVMLError as error:
        if error.value != gpu.nvml.NVML_ERROR_CORRUPTED_INFOROM:
            raise
        valid = False
    gpu.inforoms.tested(gpu.uuid, valid=valid)
    return int(valid)


def memory(gpu: GpuHandle) -> list[int]:
    memory = gpu.ask_known("nvmlDeviceGetMemoryInfo", gpu.nvml.nvmlMemory_v2)
    if memory is None:
        memory = gpu.ask("nvmlDeviceGetMemoryInfo")
    return [memory.total, getattr(memory, "reserved", 0), memory.used]


def processes(gpu: GpuHandle) -> int | None:
    """Return the number of processes.

    None without the list of compute processes: the other lists alone would suggest zero.
    """
    computing = gpu.pids_known("nvmlDeviceGetComputeRunningProcesses")
    other_pids = [
        gpu.pids_known("nvmlDeviceGetGraphicsRunningProcesses"),
        gpu.pids_known("nvmlDeviceGetMPSComputeRunningProcesses"),
    ]
    return None if computing is None else len(computing.union(*filter(None, other_pids)))


def pcie(gpu: GpuHandle) -> list[int | None]:
    widths = [gpu.ask("nvmlDeviceGetCurrPcieLinkWidth"), gpu.ask("nvmlDeviceGetMaxPcieLinkWidth")]
    if widths[0] == widths[1]:  # the generation matters only for a narrow link
        return [*widths, None, None]
    return [
        *widths,
        gpu.ask_known("nvmlDeviceGetCurrPcieLinkGeneration"),
        gpu.ask_known("nvmlDeviceGetMaxPcieLinkGeneration"),
    ]


def nvlinks(gpu: GpuHandle) -> list[list[Any]] | None:
    """Return the fields of each NvLink. The counters are another reading."""
    for link in range(_MOST_LINKS):
        state = gpu.ask_known("nvmlDeviceGetNvLinkState", link)
        if state is None:
            break
        gpu.links.append([state, gpu.ask_known("nvmlDeviceGetNvLinkVersion", link) if state else None])
    if gpu.is_r615 and gpu.links:
        states = gpu.counts_of((_LINK_STATE, link) for link in range(len(gpu.links)))
        for link_reading, state in zip(gpu.links, states, strict=True):
            # Older documents call the function's value a flag, so it may not show this state.
            link_reading[0] = state if link_reading[0] and state == _TRAFFIC_DISABLED else link_reading[0]
    return [
        [link, state, version, {}, int(state == _TRAFFIC_DISABLED)] for link, (state, version) in enumerate(gpu.links)
    ] or None


def nvlink_counters(gpu: GpuHandle) -> dict[int, dict[str, int]]:
    """Return the counters of the active links.

    They are separate from the link states, which remain known if a counter can't be read.
    """
    active = [link for link, (state, _) in enumerate(gpu.links) if state]
    newest = max((version or 0 for _, version in gpu.links), default=0)
    names = _LINK_FIELDS_OF_NVLINK_5 if newest >= _NVLINK_5 else _LINK_FIELDS
    wanted = [(field, link) for link in active for field in names]
    counters: dict[int, dict[str, int]] = {}
    for (field, link), field_value in zip(wanted, gpu.fields(wanted) if wanted else (), strict=True):
        if (count := gpu.value_known(*field_value)) is not None:
            counters.setdefault(link, {})[names[field]] = count
    return counters or _error_counters(gpu, active)


def _error_counters(gpu: GpuHandle, links: list[int]) -> dict[int, dict[str, int]]:
    counters: dict[int, dict[str, int]] = {}
    for link in links:
        entries = [
            gpu.ask_known("nvmlDeviceGetNvLinkErrorCounter", link, index) for index in range(len(_LINK_COUNTERS))
        ]
        counters[link] = {name: count for name, count in zip(_LINK_COUNTERS, entries, strict=True) if count is not None}
        if not counters[link]:  # the other links have none either
            return {}
    return counters


def _release(driver_version: str) -> tuple[int, int]:
    """Return the first two numbers of a driver's version; zeros if it has another form."""
    try:
        major, minor = map(int, driver_version.split(".")[:2])
    except ValueError:
        return (0, 0)
    return (major, minor)


def memory_errors(gpu: GpuHandle) -> list[int | None] | None:
    """Return the volatile corrected errors of DRAM and SRAM.

    The fields of these counts are not supported on an H200 (driver 580.159.04).
    """
    return _unless_empty(
        [gpu.ask_any("nvmlDeviceGetMemoryErrorCounter", _CORRECTED, _VOLATILE, memory) for memory in (_DRAM, _SRAM)]
    )


def throttled(gpu: GpuHandle) -> list[int | None] | None:
    """Return the nanoseconds of power capping, and of software thermal, hardware thermal and power brake slowdown.

    The violation policy does not distinguish heat that software reacts to from heat that hardware reacts to.
    """
    counts = gpu.counts((_POWER_CAP, *(gpu.throttle_fields or (_THERMAL_POLICY,))))
    return _unless_empty([*counts, None, None][:4])


def load(gpu: GpuHandle) -> list[Any] | None:
    """Return clocks, power, energy, NVLink traffic, the buffers of samples and the default power limit.

    All but the utilisation are only read under load: some take milliseconds, and an idle GPU lowers its clocks. Clocks
    and memory utilisation are those of the buffers, else the current values. An H200 has no buffers of clocks, and its
    counters of bytes on PCIe wrap after 4 GiB (driver 580.159.04).
    """
    utilisation = _samples(gpu, _UTILISATION_SAMPLES)
    if utilisation is not None and utilisation[_SUM] == 0:
        return [*[None] * 6, utilisation, *[None] * 4]
    buffers = [_samples(gpu, kind) for kind in (_SM_CLOCK_SAMPLES, _MEMORY_CLOCK_SAMPLES)]
    memory = _samples(gpu, _MEMORY_UTILISATION_SAMPLES)
    if memory is None and (rates := gpu.ask_any("nvmlDeviceGetUtilizationRates")) is not None:
        memory = [1, 0, *[rates.memory] * 3]
    kinds = zip((_SM_CLOCK, _MEMORY_CLOCK), buffers, strict=True)
    clocks = [gpu.ask_any("nvmlDeviceGetClockInfo", kind) if buffer is None else None for kind, buffer in kinds]
    *counts, limit = gpu.counts((_POWER, _ENERGY, _DEFAULT_POWER_LIMIT))
    if limit is None:  # a driver without the field
        limit = gpu.ask_any("nvmlDeviceGetPowerManagementDefaultLimit")
    return _unless_empty([*clocks, *counts, *gpu.counts(_NVLINK_KIB, _ALL_LINKS), utilisation, *buffers, memory, limit])


def _samples(gpu: GpuHandle, kind: int) -> list[int] | None:
    """Return number, span in microseconds, sum, least and greatest of the samples in a buffer of the driver.

    None for an empty or implausibly large buffer. A driver fills at most the room that it is given.
    """
    count, value_type = ctypes.c_uint(_MOST_SAMPLES), ctypes.c_uint()
    buffer = ctypes.create_string_buffer(_MOST_SAMPLES * _SAMPLE_BYTES)
    about = (ctypes.c_uint(kind), ctypes.c_ulonglong(), ctypes.byref(value_type), ctypes.byref(count), buffer)
    if gpu.call("nvmlDeviceGetSamples", *about) != 0 or not 0 < count.value <= _MOST_SAMPLES:
        return None
    if value_type.value not in _SAMPLE_VALUES:
        return None
    samples = memoryview(buffer)[: count.value * _SAMPLE_BYTES].cast("B")
    stamps = samples.cast("Q").tolist()[::2]
    first, step = _SAMPLE_VALUES[value_type.value]
    values = samples.cast("I" if step == 4 else "Q").tolist()[first::step]
    return [count.value, max(stamps) - min(stamps), sum(values), min(values), max(values)]


def unrepairable_memory(gpu: GpuHandle) -> int | None:
    """Return the flag.

    Its structure contains only the flag in NVIDIA's reference, and a version before it in nvidia-ml-py. A library of
    either kind leaves the other word as it is.
    """
    words = (ctypes.c_uint * 4)(_UNREPAIRABLE_VERSION)
    if gpu.call("nvmlDeviceGetUnrepairableMemoryFlag_v1", words) != 0:
        return None
    return words[1] if words[0] == _UNREPAIRABLE_VERSION else words[0]


def sram_unique(gpu: GpuHandle) -> list[int] | None:
    """Return the most addresses with parity and with SEC-DED errors in one bank of the SRAM.

    Most GPUs never had such an error, and need no call.
    """
    if gpu.sram is None:
        return None
    if not gpu.sram.aggregateUncParity + gpu.sram.aggregateUncSecDed:
        return [0, 0]
    counts = gpu.nvml.c_nvmlEccSramUniqueUncorrectedErrorCounts_v1_t()
    function = "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts"
    code = gpu.call(function, ctypes.byref(counts))
    capacity = counts.entryCount
    if code not in (0, _INSUFFICIENT_SIZE) or capacity > _MOST_SRAM_ERRORS:
        return None
    entries = (gpu.nvml.c_nvmlEccSramUniqueUncorrectedErrorEntry_v1_t * capacity)()
    if capacity:
        counts.entries = entries
        code = gpu.call(function, ctypes.byref(counts))
    if code != 0 or counts.entryCount > capacity:
        return None
    banks: dict[tuple[int, ...], int] = {}
    for entry in entries[: counts.entryCount]:
        bank = (int(bool(entry.isParity)), entry.unit, entry.location, entry.sublocation, entry.extlocation)
        banks[bank] = banks.get(bank, 0) + 1
    return [max((addresses for bank, addresses in banks.items() if bank[0] == parity), default=0) for parity in (1, 0)]


def _unless_empty(values: list[Any]) -> list[Any] | None:
    return None if values == [None] * len(values) else values


def fabric(gpu: GpuHandle) -> list[Any] | None:
    """Return the fabric information by the newest structure that the library supports."""
    if gpu.is_r615 and (newest := _fabric_4(gpu)) is not None:
        return newest
    for function, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", gpu.nvml.c_nvmlGpuFabricInfo_v3_t),
        ("nvmlDeviceGetGpuFabricInfoV", gpu.nvml.c_nvmlGpuFabricInfo_v2_t),
        ("nvmlDeviceGetGpuFabricInfo", gpu.nvml.c_nvmlGpuFabricInfo_t),
    ):
        info = structure()
        if gpu.ask_known(function, ctypes.byref(info)) is None:
            continue
        health = [getattr(info, name, None) for name in ("healthMask", "healthSummary")]
        return [info.state, info.status, info.cliqueId, _cluster(info), *health]
    return None


def _fabric_4(gpu: GpuHandle) -> list[Any] | None:
    """Return the fabric information by the structure with several cliques; None if the library lacks it."""
    info = gpu.nvml.c_nvmlGpuFabricInfo_v4_t()
    if gpu.ask_known("nvmlDeviceGetGpuFabricInfo_v4", ctypes.byref(info)) is None:
        return None
    cliques = info.cliques[: min(info.numCliques, len(info.cliques))]
    clique = next((entry.id for entry in cliques if entry.type == _UNICAST_POINTER), 0)
    return [info.state, info.status, clique, _cluster(info), info.healthMask, info.healthSummary]


def _cluster(info: Any) -> str:
    """Return the UUID of the cluster; '' for zeros: the GPU is in no cluster of several nodes."""
    digits = bytes(info.clusterUuid).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(parts) if digits.strip("0") else ""


def text(value: str | bytes) -> str:
    decoded = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return decoded[:128]
