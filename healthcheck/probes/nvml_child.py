"""The child that asks NVML: one line in, one line of JSON out. It imports as little as it can.

NVML is shut down after every look: an open handle on /dev/nvidia* would stand in the way of a GPU reset, a MIG
change and a driver upgrade. A hang or a crash in the driver is this process's alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from itertools import combinations
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would be 0.6 MiB
    from collections.abc import Callable, Iterable
    from typing import Any, BinaryIO

SONAME = "libnvidia-ml.so.1"
_MOST_GPUS = 256
_MOST_INSTANCES = 64  # bounds what nonsense would cost
_MOST_PROCESSES = 1024
_MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest nvml.h
_NOT_FOUND = 6  # nvml.h
_FUNCTION_NOT_FOUND = 13
_ABSENT = frozenset({2, 3, 13, 25})
"""nvml.h: not supported, no such function, no such structure; an older library calls what it has never heard of an
invalid argument."""
_NOT_OF_THE_GPU = frozenset({3, 4, 13, 25})
"""Absent features and permissions: no fault of a GPU that does not tell its name."""
_BROKEN = frozenset({8, 11, 15, 16})
"""nvml.h: power, interrupts, lost, reset required. Whatever was asked, the answer is about the GPU."""
_GONE = frozenset({15, 16})
"""Asked on, it would say the same again, and slowly."""
_FIELD = struct.Struct("=IIqqii8s")
"""nvmlFieldValue_t: id, scope, time, latency, type, return code, value."""
_VALUES = [struct.Struct(f"={kind}") for kind in "dIQQqiH"]
"""By nvmlValueType_t."""
_RECOVERY_ACTION, _SLOWDOWN_MARGIN = 230, 194
_RETIRED_PAGES = (29, 30, 31)
"""Retired for single-bit errors, for double-bit ones, and whether some wait for a reset."""
_SINGLE_FIELDS = (_RECOVERY_ACTION, _SLOWDOWN_MARGIN, *_RETIRED_PAGES)
_LINK_FIELDS = {161: "replays", 162: "recoveries", 163: "crc_errors"}
_LINK_FIELDS_OF_NVLINK_5 = {214: "recovery_failures", 215: "recoveries", 221: "symbol_errors"}
_LINK_COUNTERS = ("replays", "recoveries", "crc_errors", "crc_data_errors")
"""nvmlNvLinkErrorCounter_t, for drivers that do not know the fields."""
_P2P_CAPS = (0, 2)
"""nvmlGpuP2PCapsIndex_t: READ (which is no number in pynvml, by a stray comma) and NVLINK."""
_NVLINK_5 = 7
"""nvmlNvlinkVersion_t."""
_SLOWDOWN = 1
"""nvmlTemperatureThresholds_t."""
_LINUX_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
PLACES = (
    *_LINUX_DIRECTORIES,
    *(f"run/nvidia/driver/{directory}" for directory in _LINUX_DIRECTORIES),
    "home/kubernetes/bin/nvidia/lib64",
    "opt/nvidia/lib64",
    "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "usr/local/glibc/usr/lib",
)
"""Where the driver's library lies under a host's root (hardware.md 3.5)."""


class Library:
    """The driver's library as this process has loaded it: once, for ever."""

    def __init__(self, root: str, use_loader: bool) -> None:
        self.path = _load(root, use_loader)
        self._file = _identity(self.path)

    def replaced(self) -> bool:
        """Another file lies there now: a new driver was installed, and we would see a mismatch for ever."""
        return _identity(self.path) != self._file


def resolve_inside(root: str, path: str) -> str:
    """Follow symbolic links as the host would, so that `/usr/lib/x` of a link means the host's, not ours."""
    seen = 0
    parts = path.strip("/").split("/")
    real = ""
    while parts:
        part = parts.pop(0)
        if part == "..":
            real = real.rpartition("/")[0]
            continue
        here = f"{real}/{part}"
        if part in ("", ".") or not os.path.islink(root + here):
            real = real if part in ("", ".") else here
            continue
        seen += 1
        if seen > 40:
            raise OSError(f"{root}/{path.strip('/')}: too many symbolic links")
        target = os.readlink(root + here)
        parts = target.strip("/").split("/") + parts
        if target.startswith("/"):
            real = ""
    return root + real


def _load(root: str, use_loader: bool) -> str:
    tried = []
    if use_loader:
        try:
            ctypes.CDLL(SONAME, mode=ctypes.RTLD_GLOBAL)
            return _mapped(SONAME)
        except OSError as error:
            tried.append(f"in the loader's own path: {error}")
    base = root.rstrip("/")
    refused: dict[str, str] = {}
    for place in PLACES:
        link = path = f"{base}/{place}/{SONAME}"
        try:
            # Every link on the way is the host's: an absolute one would lead us into our own tree.
            if not os.path.lexists(f"{resolve_inside(base, place)}/{SONAME}"):
                continue
            path = resolve_inside(base, f"{place}/{SONAME}")
            if path in refused:  # the same file again: on most hosts /lib64 is a link to /usr/lib64
                continue
            _refuse_foreign(path)
            # Its SONAME is then in the process, and pynvml's own load by name finds it.
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            refused[path] = _why(link, path, str(error))
        else:
            return path
    raise OSError("; ".join([*tried, *(refused.values() or [f"{SONAME} lies nowhere under {root}"])]))


def _refuse_foreign(path: str) -> None:
    """What the loader reports as a missing file, or would die of by SIGBUS. What is no ELF at all it says well."""
    if not os.path.isfile(path):
        return
    ours, theirs = _elf_header("/proc/self/exe"), _elf_header(path)
    if len(theirs) < 64 or theirs[:5] != ours[:5]:
        return
    if theirs[18:20] != ours[18:20]:
        raise OSError(f"{path}: built for {_machine(theirs)}, and this is {_machine(ours)}")
    # Elf64_Ehdr: e_shoff at 40, e_shentsize at 58, e_shnum at 60; the section headers end the file.
    end = _number(theirs[40:48]) + _number(theirs[58:60]) * _number(theirs[60:62])
    if os.path.getsize(path) < end:
        raise OSError(f"{path}: cut off after {os.path.getsize(path)} of {end} bytes")


def _elf_header(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(64)


def _machine(header: bytes) -> str:
    code = _number(header[18:20])
    return {62: "x86_64", 183: "aarch64"}.get(code, f"ELF machine {code}")


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, sys.byteorder)


def _why(link: str, path: str, said: str) -> str:
    """The loader names a library that is missing, but not who wants it, nor the link that led there."""
    if path not in said:
        said = f"{path}: {said}"
    if "libc.musl" in said:
        said += " (built for musl; this is glibc)"
    return said if path == link else f"{link} leads to {said}"


def _mapped(soname: str) -> str:
    stem = soname.partition(".so")[0]
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").rpartition(" ")[2]
            if os.path.basename(path).startswith(stem):
                return path
    return soname


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


def look(library: Library) -> dict[str, Any]:
    """One look at the driver: initialise, ask, shut down."""
    import pynvml  # noqa: PLC0415 - only after the right library is in the process

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"library": library.path, "error": error.value, "cause": str(error)}
    try:
        count = pynvml.nvmlDeviceGetCount()
        if count > _MOST_GPUS:
            return {"library": library.path, "error": None, "cause": f"NVML says that there are {count} GPUs"}
        version = _text(pynvml.nvmlSystemGetDriverVersion())
        gpus = [_gpu(pynvml, index) for index in range(count)]
        p2p = _p2p(pynvml, gpus)
        return {"library": library.path, "driver_version": version, "gpus": [told for told, _ in gpus], "p2p": p2p}
    except pynvml.NVMLError as error:
        return {"library": library.path, "error": error.value, "cause": str(error)}
    finally:
        _shut_down(pynvml)


def _gpu(nvml: Any, index: int) -> tuple[dict[str, Any], Any]:
    """What one GPU tells, and its handle: None where there is none."""
    told: dict[str, Any] = {"index": index, "error": 0, "errors": {}}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return told | {"error": error.value}, None
    gpu = Gpu(nvml, handle)
    for name, read in READINGS.items():
        try:
            told[name] = read(gpu)
        except nvml.NVMLError as error:
            _note(told, name, error.value)
            if error.value in _GONE:
                break
    return told, handle


def _note(told: dict[str, Any], name: str, code: int) -> None:
    """A reading failed."""
    if name in _NAMES:
        told["error"] = told["error"] or (0 if code in _NOT_OF_THE_GPU else code)
    elif code not in _ABSENT:
        told["errors"][name] = code
        told["error"] = told["error"] or (code if code in _BROKEN else 0)


def _p2p(nvml: Any, gpus: list[tuple[dict[str, Any], Any]]) -> list[list[int]]:
    """Of each pair of sound GPUs: both indices, what READ and what NVLINK can do. MIG and P2P exclude each other."""
    pairs = []
    sound = [(told, handle) for told, handle in gpus if not told["error"] and not (told.get("mig_mode") or [0])[0]]
    for (one, handle), (other, other_handle) in combinations(sound, 2):
        try:
            status = [nvml.nvmlDeviceGetP2PStatus(handle, other_handle, caps) for caps in _P2P_CAPS]
            pairs.append([one["index"], other["index"], *status])
        except nvml.NVMLError as error:
            if error.value not in _ABSENT:
                one["errors"]["p2p"] = other["errors"]["p2p"] = error.value
    return pairs


class Gpu:
    """One GPU, asked. An error is raised as NVMLError; the functions that say `known` answer None to an absence."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.links: list[list[int | None]] = []
        self._single: dict[int, tuple[int, Any]] | None = None

    def ask(self, function: str, *arguments: Any) -> Any:
        return getattr(self.nvml, function)(self.handle, *arguments)

    def ask_known(self, function: str, *arguments: Any) -> Any:
        try:
            return self.ask(function, *arguments)
        except self.nvml.NVMLError as error:
            return self.known(error.value, None)

    def known(self, code: int, value: Any) -> Any:
        """The value that came with that code."""
        if code == 0:
            return value
        if code in _ABSENT:
            return None
        raise self.nvml.NVMLError(code)

    def field_known(self, field: int) -> Any:
        """One of the fields that we want of the GPU as a whole: they are all asked in one call."""
        if self._single is None:
            self._single = dict(zip(_SINGLE_FIELDS, self.fields((one, 0) for one in _SINGLE_FIELDS), strict=True))
        return self.known(*self._single[field])

    def fields(self, wanted: Iterable[tuple[int, int]]) -> list[tuple[int, Any]]:
        """The code and the value of each field and scope; when the call itself fails, they all have its code.

        Hundreds of values at each look: pynvml's own structure would take a microsecond for every member.
        """
        request = b"".join(_FIELD.pack(field, scope, 0, 0, 0, 0, b"") for field, scope in wanted)
        values = ctypes.create_string_buffer(request, len(request))
        count = len(request) // _FIELD.size
        code = self.call("nvmlDeviceGetFieldValues", ctypes.c_int(count), values)
        if code != 0:
            return [(code, None)] * count
        return [
            (returned, _VALUES[kind].unpack_from(value)[0] if returned == 0 else None)
            for _, _, _, _, kind, returned, value in _FIELD.iter_unpack(values.raw)
        ]

    def pids_known(self, function: str) -> set[int] | None:
        """Bounded, as pynvml is not: it would make room for as many as the library says that there are."""
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
        """A call that pynvml would make too costly, or unbounded."""
        try:
            return int(getattr(self.nvml.nvmlLib, function)(self.handle, *arguments))
        except AttributeError:
            return _FUNCTION_NOT_FOUND


def _told_by(function: str) -> Callable[[Gpu], Any]:
    return lambda gpu: gpu.ask(function)


def _instances(gpu: Gpu) -> list[int] | None:
    """The MIG GPU instances of the MIG devices that exist; None where there are more than a GPU can have.

    There is no cheaper way: listing GPU instances themselves takes a call for each profile that a GPU knows.
    """
    if gpu.ask("nvmlDeviceGetMigMode")[0] != gpu.nvml.NVML_DEVICE_MIG_ENABLE:
        return []
    most = gpu.ask("nvmlDeviceGetMaxMigDeviceCount")
    if most > _MOST_INSTANCES:
        return None
    devices = [_mig_device(gpu, index) for index in range(most)]
    return sorted({gpu.nvml.nvmlDeviceGetGpuInstanceId(device) for device in devices if device is not None})


def _mig_device(gpu: Gpu, index: int) -> Any:
    """None: no MIG device has this index; the indices of those that exist have holes."""
    try:
        return gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
    except gpu.nvml.NVMLError as error:
        if error.value == _NOT_FOUND:
            return None
        raise


def _ecc(gpu: Gpu) -> list[int]:
    return [gpu.ask("nvmlDeviceGetTotalEccErrors", kind, life) for life in (0, 1) for kind in (0, 1)]


def _sram_threshold(gpu: Gpu) -> int:
    status = gpu.nvml.c_nvmlEccSramErrorStatus_v1_t()
    gpu.ask("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
    return int(status.bThresholdExceeded)


def _retired_pages(gpu: Gpu) -> list[int] | None:
    pages = [gpu.field_known(field) for field in _RETIRED_PAGES]
    return None if None in pages else pages


def _clock_reasons(gpu: Gpu) -> Any:
    """Libraries before R535 have it by its old name only."""
    reasons = gpu.ask_known("nvmlDeviceGetCurrentClocksEventReasons")
    return gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons


def _temperature(gpu: Gpu) -> list[int | None] | None:
    told = [
        gpu.ask_known("nvmlDeviceGetTemperature", 0),
        gpu.ask_known("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
        gpu.ask_known("nvmlDeviceGetMarginTemperature"),
        gpu.field_known(_SLOWDOWN_MARGIN),
    ]
    return None if told == [None] * len(told) else told


def _inforom_valid(gpu: Gpu) -> int:
    try:
        gpu.ask("nvmlDeviceValidateInforom")
    except gpu.nvml.NVMLError as error:
        if error.value == gpu.nvml.NVML_ERROR_CORRUPTED_INFOROM:
            return 0
        raise
    return 1


def _memory(gpu: Gpu) -> list[int]:
    memory = gpu.ask_known("nvmlDeviceGetMemoryInfo", gpu.nvml.nvmlMemory_v2)
    if memory is None:
        memory = gpu.ask("nvmlDeviceGetMemoryInfo")
    return [memory.total, getattr(memory, "reserved", 0), memory.used]


def _processes(gpu: Gpu) -> int | None:
    lists = [
        gpu.pids_known("nvmlDeviceGetComputeRunningProcesses"),
        gpu.pids_known("nvmlDeviceGetGraphicsRunningProcesses"),
        gpu.pids_known("nvmlDeviceGetMPSComputeRunningProcesses"),
    ]
    known = [pids for pids in lists if pids is not None]
    return len(set().union(*known)) if known else None


def _pcie(gpu: Gpu) -> list[int]:
    return [gpu.ask("nvmlDeviceGetCurrPcieLinkWidth"), gpu.ask("nvmlDeviceGetMaxPcieLinkWidth")]


def _nvlinks(gpu: Gpu) -> list[list[int | None]] | None:
    """State and version of each link."""
    for link in range(_MOST_LINKS):
        active = gpu.ask_known("nvmlDeviceGetNvLinkState", link)
        if active is None:
            break
        gpu.links.append([active, gpu.ask_known("nvmlDeviceGetNvLinkVersion", link) if active else None])
    return gpu.links or None


def _nvlink_counters(gpu: Gpu) -> dict[int, dict[str, int]]:
    """What the active links have counted. Apart from their states, which stay known when a counter can't be read."""
    active = [link for link, (state, _) in enumerate(gpu.links) if state]
    newest = max((version or 0 for _, version in gpu.links), default=0)
    names = _LINK_FIELDS_OF_NVLINK_5 if newest >= _NVLINK_5 else _LINK_FIELDS
    wanted = [(field, link) for link in active for field in names]
    counters: dict[int, dict[str, int]] = {}
    for (field, link), told in zip(wanted, gpu.fields(wanted) if wanted else (), strict=True):
        if (count := gpu.known(*told)) is not None:
            counters.setdefault(link, {})[names[field]] = count
    return counters or _error_counters(gpu, active)


def _error_counters(gpu: Gpu, links: list[int]) -> dict[int, dict[str, int]]:
    counters: dict[int, dict[str, int]] = {}
    for link in links:
        told = [gpu.ask_known("nvmlDeviceGetNvLinkErrorCounter", link, index) for index in range(len(_LINK_COUNTERS))]
        counters[link] = {name: count for name, count in zip(_LINK_COUNTERS, told, strict=True) if count is not None}
        if not counters[link]:  # nor will the others have any
            return {}
    return counters


def _fabric(gpu: Gpu) -> list[Any] | None:
    """By the newest structure that the library knows."""
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


_NAMES: dict[str, Callable[[Gpu], Any]] = {
    "bus_id": lambda gpu: _text(gpu.ask("nvmlDeviceGetPciInfo").busId),
    "uuid": lambda gpu: _text(gpu.ask("nvmlDeviceGetUUID")),
    "serial": lambda gpu: _text(gpu.ask("nvmlDeviceGetSerial")),
    "name": lambda gpu: _text(gpu.ask("nvmlDeviceGetName")),
}
"""Calls that must work: a GPU that fails one has that error itself."""
READINGS: dict[str, Callable[[Gpu], Any]] = {
    **_NAMES,
    "recovery_action": lambda gpu: gpu.field_known(_RECOVERY_ACTION),
    "instances": _instances,
    "persistence": _told_by("nvmlDeviceGetPersistenceMode"),
    "ecc_mode": _told_by("nvmlDeviceGetEccMode"),
    "mig_mode": _told_by("nvmlDeviceGetMigMode"),
    "ecc": _ecc,
    "sram_threshold_exceeded": _sram_threshold,
    "row_remap": _told_by("nvmlDeviceGetRemappedRows"),
    "exhausted_banks": lambda gpu: gpu.ask("nvmlDeviceGetRowRemapperHistogram").none,
    "retired_pages": _retired_pages,
    "repair": _told_by("nvmlDeviceGetRepairStatus"),
    "clock_reasons": _clock_reasons,
    "temperature": _temperature,
    "inforom_valid": _inforom_valid,
    "memory": _memory,
    "processes": _processes,
    "pcie": _pcie,
    "pcie_replays": _told_by("nvmlDeviceGetPcieReplayCounter"),
    "nvlinks": _nvlinks,
    "nvlink_counters": _nvlink_counters,
    "fabric": _fabric,
}
"""By the fields of `probes.nvml.Gpu`. A reading that failed because the GPU or the driver has none is left out."""


def _text(value: str | bytes) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return text[:128]


def _shut_down(pynvml: Any) -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        print(f"nvmlShutdown: {error}", file=sys.stderr)


def _answers(out: BinaryIO, root: str, use_loader: bool) -> None:
    library: Library | None = None
    for _ in sys.stdin:
        try:
            library = library or Library(root, use_loader)
            answer = {"changed": library.path} if library.replaced() else look(library)
        except OSError as error:
            answer = {"library": None, "error": None, "cause": str(error)[:1000]}
        except Exception as error:  # noqa: BLE001 - the boundary of the probe: nonsense from a driver is an answer too
            answer = {"library": library and library.path, "error": None, "cause": f"{type(error).__name__}: {error}"}
        try:
            out.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
            out.flush()
        except BrokenPipeError:
            os._exit(0)  # who asked is gone; leaving in the usual way would try to write once more


def _leave_out_ctypes_util() -> None:
    """For pynvml, which imports it and never calls it: with subprocess, tempfile and theirs it would be 2 MiB."""
    empty = ModuleType("ctypes.util")
    vars(empty)["find_library"] = lambda _: None  # what the real one says of a library that it does not find
    sys.modules["ctypes.util"] = empty


def main() -> None:
    """`nvml_child ROOT loader|root-only`: answer until standard input ends."""
    root, mode = sys.argv[1:]
    _leave_out_ctypes_util()
    # A library that prints must not write into our answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _answers(out, root, mode == "loader")


if __name__ == "__main__":
    main()
