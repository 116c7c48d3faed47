"""Readings of one GPU, by calls of pynvml's functions.

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
_LINK_FIELDS = {161: "replays", 162: "recoveries", 163: "crc_errors"}
_LINK_FIELDS_OF_NVLINK_5 = {214: "recovery_failures", 215: "recoveries", 221: "symbol_errors"}
_LINK_COUNTERS = ("replays", "recoveries", "crc_errors", "crc_data_errors")
"""Counters of nvmlNvLinkErrorCounter_t, for drivers without the fields."""
_NVLINK_5 = 7
"""NVLink 5 in nvmlNvlinkVersion_t."""
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

    def __init__(self, nvml: Any, handle: Any, inforoms: Inforoms) -> None:
        self.nvml = nvml
        self.handle = handle
        self.inforoms = inforoms
        self.uuid = ""
        self.mig_mode: list[int] | None = None
        self.links: list[list[int | None]] = []
        self._single: dict[int, tuple[int, int, bytes]] | None = None

    def ask(self, function: str, *arguments: Any) -> Any:
        return getattr(self.nvml, function)(self.handle, *arguments)

    def ask_known(self, function: str, *arguments: Any) -> Any:
        try:
            return self.ask(function, *arguments)
        except self.nvml.NVMLError as error:
            return self.known(error.value, None)

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


def _value_of(function: str) -> Callable[[GpuHandle], Any]:
    return lambda gpu: gpu.ask(function)


def _uuid(gpu: GpuHandle) -> str:
    gpu.uuid = text(gpu.ask("nvmlDeviceGetUUID"))
    return gpu.uuid


def _mig_mode(gpu: GpuHandle) -> list[int]:
    gpu.mig_mode = gpu.ask("nvmlDeviceGetMigMode")
    return gpu.mig_mode


def _instances(gpu: GpuHandle) -> list[int] | None:
    """Return the GPU instances of the existing MIG devices; None if there are more than a GPU can have.

    The alternative is more expensive: listing GPU instances takes a call for each profile of the GPU.
    """
    mode = gpu.mig_mode or _mig_mode(gpu)
    if mode[0] != gpu.nvml.NVML_DEVICE_MIG_ENABLE:
        return []
    most = gpu.ask("nvmlDeviceGetMaxMigDeviceCount")
    if most > _MOST_INSTANCES:
        return None
    devices = [_mig_device(gpu, index) for index in range(most)]
    return sorted({gpu.nvml.nvmlDeviceGetGpuInstanceId(device) for device in devices if device is not None})


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


def _sram_threshold(gpu: GpuHandle) -> int:
    status = gpu.nvml.c_nvmlEccSramErrorStatus_v1_t()
    gpu.ask("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
    return int(status.bThresholdExceeded)


def _retired_pages(gpu: GpuHandle) -> list[int] | None:
    pages = [gpu.field_known(field) for field in _RETIRED_PAGES]
    return None if None in pages else pages


def _clock_reasons(gpu: GpuHandle) -> Any:
    """Return the clock reasons. Libraries before R535 have only the function's old name."""
    reasons = gpu.ask_known("nvmlDeviceGetCurrentClocksEventReasons")
    return gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons


def _temperature(gpu: GpuHandle) -> list[int | None] | None:
    entries = [
        gpu.ask_known("nvmlDeviceGetTemperature", 0),
        gpu.ask_known("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
        gpu.ask_known("nvmlDeviceGetMarginTemperature"),
        gpu.field_known(_SLOWDOWN_MARGIN),
    ]
    return None if entries == [None] * len(entries) else entries


def _inforom_valid(gpu: GpuHandle) -> int:
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


def _memory(gpu: GpuHandle) -> list[int]:
    memory = gpu.ask_known("nvmlDeviceGetMemoryInfo", gpu.nvml.nvmlMemory_v2)
    if memory is None:
        memory = gpu.ask("nvmlDeviceGetMemoryInfo")
    return [memory.total, getattr(memory, "reserved", 0), memory.used]


def _processes(gpu: GpuHandle) -> int | None:
    """Return the number of processes.

    None without the list of compute processes: the other lists alone would suggest zero.
    """
    computing = gpu.pids_known("nvmlDeviceGetComputeRunningProcesses")
    others = [
        gpu.pids_known("nvmlDeviceGetGraphicsRunningProcesses"),
        gpu.pids_known("nvmlDeviceGetMPSComputeRunningProcesses"),
    ]
    return None if computing is None else len(computing.union(*filter(None, others)))


def _pcie(gpu: GpuHandle) -> list[int | None]:
    widths = [gpu.ask("nvmlDeviceGetCurrPcieLinkWidth"), gpu.ask("nvmlDeviceGetMaxPcieLinkWidth")]
    if widths[0] == widths[1]:  # the generation matters only for a narrow link
        return [*widths, None, None]
    return [
        *widths,
        gpu.ask_known("nvmlDeviceGetCurrPcieLinkGeneration"),
        gpu.ask_known("nvmlDeviceGetMaxPcieLinkGeneration"),
    ]


def _nvlinks(gpu: GpuHandle) -> list[list[int | None]] | None:
    """Return state and version of each link."""
    for link in range(_MOST_LINKS):
        active = gpu.ask_known("nvmlDeviceGetNvLinkState", link)
        if active is None:
            break
        gpu.links.append([active, gpu.ask_known("nvmlDeviceGetNvLinkVersion", link) if active else None])
    return gpu.links or None


def _nvlink_counters(gpu: GpuHandle) -> dict[int, dict[str, int]]:
    """Return the counters of the active links.

    They are separate from the link states, which remain known if a counter can't be read.
    """
    active = [link for link, (state, _) in enumerate(gpu.links) if state]
    newest = max((version or 0 for _, version in gpu.links), default=0)
    names = _LINK_FIELDS_OF_NVLINK_5 if newest >= _NVLINK_5 else _LINK_FIELDS
    wanted = [(field, link) for link in active for field in names]
    counters: dict[int, dict[str, int]] = {}
    for (field, link), result in zip(wanted, gpu.fields(wanted) if wanted else (), strict=True):
        if (count := gpu.value_known(*result)) is not None:
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


def _fabric(gpu: GpuHandle) -> list[Any] | None:
    """Return the fabric information by the newest structure that the library supports."""
    for function, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", gpu.nvml.c_nvmlGpuFabricInfo_v3_t),
        ("nvmlDeviceGetGpuFabricInfoV", gpu.nvml.c_nvmlGpuFabricInfo_v2_t),
        ("nvmlDeviceGetGpuFabricInfo", gpu.nvml.c_nvmlGpuFabricInfo_t),
    ):
        info = structure()
        if gpu.ask_known(function, ctypes.byref(info)) is None:
            continue
        health = [getattr(info, name, None) for name in ("healthMask", "healthSummary")]
        return [info.state, info.status, info.cliqueId, bytes(info.clusterUuid).hex(), *health]
    return None


NAMES: dict[str, Callable[[GpuHandle], Any]] = {
    "address": lambda gpu: text(gpu.ask("nvmlDeviceGetPciInfo").busId),
    "uuid": _uuid,
    "serial": lambda gpu: text(gpu.ask("nvmlDeviceGetSerial")),
    "name": lambda gpu: text(gpu.ask("nvmlDeviceGetName")),
}
"""Required calls. If one fails, its error becomes the error of the GPU."""
READINGS: dict[str, Callable[[GpuHandle], Any]] = {
    **NAMES,
    "minor": _value_of("nvmlDeviceGetMinorNumber"),
    "recovery_action": lambda gpu: gpu.field_known(_RECOVERY_ACTION),
    "mig_mode": _mig_mode,
    "instances": _instances,
    "persistence": _value_of("nvmlDeviceGetPersistenceMode"),
    "ecc_mode": _value_of("nvmlDeviceGetEccMode"),
    "ecc": lambda gpu: [gpu.ask("nvmlDeviceGetTotalEccErrors", kind, life) for life in (0, 1) for kind in (0, 1)],
    "sram_threshold_exceeded": _sram_threshold,
    "row_remap": _value_of("nvmlDeviceGetRemappedRows"),
    "exhausted_banks": lambda gpu: gpu.ask("nvmlDeviceGetRowRemapperHistogram").none,
    "retired_pages": _retired_pages,
    "repair": _value_of("nvmlDeviceGetRepairStatus"),
    "clock_reasons": _clock_reasons,
    "temperature": _temperature,
    "inforom_valid": _inforom_valid,
    "memory": _memory,
    "processes": _processes,
    "pcie": _pcie,
    "pcie_replays": _value_of("nvmlDeviceGetPcieReplayCounter"),
    "nvlinks": _nvlinks,
    "nvlink_counters": _nvlink_counters,
    "fabric": _fabric,
}
"""Functions by field of `probes.nvml.Gpu`, called in this order, because some use earlier results.

A reading that the GPU or the driver does not support is omitted.
"""


def text(value: str | bytes) -> str:
    message = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return message[:128]
