"""What NVML says of the GPUs, asked through a child process under a deadline."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from healthcheck.command import Child, ChildError, MissedDeadline
from healthcheck.model import Host, Probe, ProbeError, Unobserved
from healthcheck.probes.nvml_child import PLACES, SONAME, resolve_inside
from healthcheck.probes.pci import normalise_address

SUCCESS = 0
INSUFFICIENT_POWER, IRQ_ISSUE, CORRUPTED_INFOROM, GPU_IS_LOST, RESET_REQUIRED = 8, 11, 14, 15, 16
"""nvmlReturn_t (nvml.h): the codes that speak of the hardware."""
BROKEN = frozenset({INSUFFICIENT_POWER, IRQ_ISSUE, CORRUPTED_INFOROM, GPU_IS_LOST, RESET_REQUIRED})
_MOST_NVLINKS = 36
"""NVML_NVLINK_MAX_LINKS of the newest nvml.h."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode of the GPU now, and after the next reset or reboot."""

    current: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class EccCounts:
    """ECC errors of all memories together. `volatile`: since the driver was loaded; `aggregate`: in the GPU's life."""

    corrected_volatile: int
    uncorrected_volatile: int
    corrected_aggregate: int
    uncorrected_aggregate: int


@dataclass(frozen=True, slots=True)
class RowRemap:
    """Rows of memory replaced by spare ones (Ampere and later)."""

    corrected: int
    uncorrected: int
    pending: bool
    """A reset of the GPU brings them into use."""
    failed: bool


@dataclass(frozen=True, slots=True)
class RetiredPages:
    """Pages of memory no longer used (before Ampere)."""

    single_bit: int
    double_bit: int
    pending: bool


@dataclass(frozen=True, slots=True)
class Repair:
    """Repairs that a reset of the GPU brings into use (newest drivers)."""

    channel_pending: bool
    tpc_pending: bool


@dataclass(frozen=True, slots=True)
class Temperature:
    """In °C; None: this GPU does not say. `margin`: how far it is from its limit (Hopper and later)."""

    celsius: int | None = None
    slowdown_celsius: int | None = None
    margin_celsius: int | None = None
    slowdown_margin_celsius: int | None = None
    """The margin at which it slows down: 0 or below."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """In bytes. `reserved` is the driver's own, not part of `used`."""

    total: int
    reserved: int
    used: int


@dataclass(frozen=True, slots=True)
class PcieLink:
    """Lanes; `max_width` is the most that GPU and slot can do together."""

    width: int
    max_width: int


@dataclass(frozen=True, slots=True)
class NvLink:
    """`version` is nvmlNvlinkVersion_t, None where it can't be told, as of an inactive link.

    `counters` are cumulative, by the name of their NVML field: replays, recoveries, recovery_failures, crc_errors …
    """

    link: int
    active: bool
    version: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fabric:
    """The GPU's registration with its NVLink fabric (nvmlGpuFabricInfo_t and _v2, _v3). None: an older structure."""

    state: int
    """nvmlGpuFabricState_t: 0 not supported, 1 not started, 2 in progress, 3 completed."""
    status: int
    """nvmlReturn_t of the registration."""
    clique: int = 0
    cluster_uuid: str = ""
    health_mask: int | None = None
    health_summary: int | None = None


@dataclass(frozen=True, slots=True)
class P2p:
    """What two GPUs, by their addresses, can do with each other: nvmlGpuP2PStatus_t, 0 is yes."""

    one: str
    other: str
    read: int
    nvlink: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU by NVML's index.

    `error` is the nvmlReturn_t of its handle or of a call that must work, or of any call that says that the GPU itself
    is broken; else 0. A reading is None where this GPU or driver has none, and where it failed: `errors` tells.
    """

    index: int
    error: int = SUCCESS
    address: str = ""
    uuid: str = ""
    serial: str = ""
    name: str = ""
    recovery_action: int | None = None
    """nvmlDeviceGpuRecoveryAction_t, field 230; None: this driver has none, or it could not be read."""
    recovery_error: int = SUCCESS
    """The nvmlReturn_t that kept the recovery action from us; 0 where the driver has none."""
    instances: tuple[int, ...] | None = None
    """Ids of the MIG GPU instances that have a compute instance, `()` without MIG mode; None: nobody could say."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """By the name of a reading: the nvmlReturn_t that kept it from us. What is not supported is no error.

    Beside the fields of this class: "nvlink_counters", of `nvlinks` (their states are known nevertheless), and "p2p",
    of the pairs that this GPU belongs to.
    """
    persistence: bool | None = None
    ecc_mode: Mode | None = None
    mig_mode: Mode | None = None
    ecc: EccCounts | None = None
    sram_threshold_exceeded: bool | None = None
    row_remap: RowRemap | None = None
    exhausted_banks: int | None = None
    """Banks of memory that have no spare row left."""
    retired_pages: RetiredPages | None = None
    repair: Repair | None = None
    clock_reasons: int | None = None
    """nvmlClocksEventReasons, as bits."""
    temperature: Temperature | None = None
    inforom_valid: bool | None = None
    memory: MemoryUse | None = None
    processes: int | None = None
    """Processes with a context on the GPU, of whatever kind."""
    pcie: PcieLink | None = None
    pcie_replays: int | None = None
    """Cumulative."""
    nvlinks: tuple[NvLink, ...] | None = None
    fabric: Fabric | None = None

    @property
    def subject(self) -> str:
        return f"gpu/{self.address or f'index-{self.index}'}"

    @property
    def about(self) -> dict[str, str]:
        names = {"index": str(self.index), "uuid": self.uuid, "serial": self.serial}
        return {key: value for key, value in names.items() if value}


@dataclass(frozen=True, slots=True)
class Gpus:
    driver_version: str
    library: str
    gpus: tuple[Gpu, ...]
    p2p: tuple[P2p, ...] = ()
    """Each pair once, but those with a GPU that failed or is in MIG mode, and those that NVML would not tell."""


@dataclass(frozen=True, slots=True)
class DriverLook:
    """One look: the GPUs, or why there was no answer. `missed`: monotonic seconds of deadlines missed in a row.

    `module_version` is the loaded kernel module's, '' when none is; `library_versions` those of the driver's libraries
    that lie on the node.
    """

    answer: Gpus | Unobserved
    missed: tuple[float, ...] = ()
    deadline_seconds: float = 0.0
    stuck_pid: int | None = None
    module_version: str = ""
    library_versions: tuple[str, ...] = ()
    sees_every_process: bool = True
    """False in a PID namespace of our own: NVML then shows us no process but ours."""


@dataclass
class Driver:
    """Asks the driver of `root`. `use_loader`: the loader's own path comes before the host's known places."""

    root: Path
    deadline_seconds: float = 60.0
    use_loader: bool = True
    clock: Callable[[], float] = time.monotonic
    _child: Child = field(init=False)
    _missed: list[float] = field(default_factory=list, init=False)
    _version: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        program = (sys.executable, "-I", "-m", "healthcheck.probes.nvml_child")
        self._child = Child((*program, str(self.root), "loader" if self.use_loader else "root-only"))

    def look(self) -> DriverLook:
        """Ask once. Never raises for what the driver does; a changed driver is looked at next time, anew."""
        before, self._version = self._version, driver_version(self.root)
        if before is not None and self._version != before:
            self._child.end()
            self._missed.clear()  # a module that could be changed has nobody stuck in it
            if before:
                change = f"driver {before} became {self._version or 'unloaded'}"
                return self._told(Unobserved("DriverBeingChanged", change))
        try:
            answer = read_answer(self._child.ask("look", self.deadline_seconds))
        except MissedDeadline as error:
            self._missed = [*self._missed[:1], self.clock()]
            return self._told(Unobserved("DriverNotAnswering", f"{error} ({self.deadline_seconds:g} s)"), error.pid)
        except ChildError as error:
            return self._told(Unobserved("NvmlCrashed", f"the look at NVML failed: {error}"))
        if answer.answered_by_driver:
            self._missed.clear()
        if answer.replaced:
            self._child.end()
        return self._told(answer.gpus)

    def end(self) -> int | None:
        """End the child; its pid when it can't be ended."""
        return self._child.end()

    @property
    def child_pid(self) -> int | None:
        return self._child.pid

    def _told(self, answer: Gpus | Unobserved, stuck_pid: int | None = None) -> DriverLook:
        return DriverLook(
            answer,
            tuple(self._missed),
            self.deadline_seconds,
            stuck_pid,
            self._version or "",
            library_versions(self.root),
            sees_every_process(self.root),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    gpus: Gpus | Unobserved
    answered_by_driver: bool = False
    """The call came back: whatever it said, the driver does not hang."""
    replaced: bool = False


def read_answer(line: bytes) -> Answer:
    """The child's line as facts. What is no such line is could-not-look: an NVML that answers nonsense."""
    try:
        answer = json.loads(line)
        if "changed" in answer:
            gone = Unobserved("DriverBeingChanged", f"{answer['changed']} was replaced")
            return Answer(gone, replaced=True)
        if "gpus" not in answer:
            return Answer(_refused(answer), answered_by_driver=answer["library"] is not None)
        gpus = tuple(_gpu(gpu) for gpu in answer["gpus"])
        p2p = tuple(_p2p(answer.get("p2p", []), gpus))
        return Answer(Gpus(str(answer["driver_version"]), str(answer["library"]), gpus, p2p), answered_by_driver=True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Answer(Unobserved("NvmlNonsense", f"NVML's answer makes no sense: {error}"), answered_by_driver=True)


def _gpu(raw: dict[str, Any]) -> Gpu:
    index, code = raw["index"], raw["error"]
    if not isinstance(index, int) or not isinstance(code, int):
        raise TypeError(f"GPU {index!r}: error {code!r}")
    address = ""
    if raw.get("bus_id"):
        address = normalise_address(raw["bus_id"]) or ""
        if not address:
            raise ValueError(f"GPU {index}: bus id {raw['bus_id']!r} is no PCI address")
    errors = {str(name): _signed(error) for name, error in raw.get("errors", {}).items()}
    readings = {name: _reading(index, name, raw[name]) for name in _READINGS if raw.get(name) is not None}
    if raw.get("nvlinks") is not None:
        readings["nvlinks"] = _nvlinks(raw["nvlinks"], raw.get("nvlink_counters", {}))
    return Gpu(
        index,
        code,
        address,
        str(raw.get("uuid", "")),
        str(raw.get("serial", "")),
        str(raw.get("name", "")),
        recovery_error=errors.pop("recovery_action", SUCCESS),
        errors=errors,
        **readings,
    )


def _reading(index: int, name: str, raw: Any) -> Any:
    try:
        return _READINGS[name](raw)
    except (ValueError, TypeError) as error:
        raise ValueError(f"GPU {index}: {name.replace('_', ' ')}: {error}") from error


def _integer(least: int, most: int) -> Callable[[Any], int]:
    def read(raw: Any) -> int:
        if type(raw) is not int or not least <= raw <= most:
            raise ValueError(f"{raw!r} is no number from {least} to {most}")
        return raw

    return read


_unsigned = _integer(0, 2**32 - 1)
_signed = _integer(-(2**31), 2**31 - 1)
_count = _integer(0, 2**64 - 1)
_celsius = _integer(-300, 1000)


def _flag(raw: Any) -> bool:
    return _unsigned(raw) != 0


def _listed(raw: Any, most: int = 64) -> list[Any]:
    if not isinstance(raw, list) or len(raw) > most:
        raise TypeError(f"{str(raw)[:40]} is no list of at most {most}")
    return raw


def _numbers(raw: Any) -> tuple[int, ...]:
    return tuple(_unsigned(one) for one in _listed(raw))


def _made(what: Callable[..., Any], *parts: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Reads a list as the arguments of a class."""

    def read(raw: Any) -> Any:
        return what(*(part(value) for part, value in zip(parts, _listed(raw), strict=True)))

    return read


def _perhaps(part: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda raw: None if raw is None else part(raw)


def _nvlinks(raw: Any, counters: dict[str, Any]) -> tuple[NvLink, ...]:
    return tuple(
        NvLink(
            link,
            _flag(active),
            _perhaps(_unsigned)(version),
            {name: _count(value) for name, value in counters.get(str(link), {}).items()},
        )
        for link, (active, version) in enumerate(_listed(raw, _MOST_NVLINKS))
    )


def _cluster(raw: Any) -> str:
    """A UUID as people write it; '' for the zeros of a GPU that is in no cluster of several nodes."""
    return str(UUID(raw)) if raw.strip("0") else ""


_READINGS: Mapping[str, Callable[[Any], Any]] = {
    "recovery_action": _unsigned,
    "instances": _numbers,
    "persistence": _flag,
    "ecc_mode": _made(Mode, _flag, _flag),
    "mig_mode": _made(Mode, _flag, _flag),
    "ecc": _made(EccCounts, _count, _count, _count, _count),
    "sram_threshold_exceeded": _flag,
    "row_remap": _made(RowRemap, _unsigned, _unsigned, _flag, _flag),
    "exhausted_banks": _unsigned,
    "retired_pages": _made(RetiredPages, _count, _count, _flag),
    "repair": _made(Repair, _flag, _flag),
    "clock_reasons": _count,
    "temperature": _made(Temperature, *[_perhaps(_celsius)] * 4),
    "inforom_valid": _flag,
    "memory": _made(MemoryUse, _count, _count, _count),
    "processes": _unsigned,
    "pcie": _made(PcieLink, _unsigned, _unsigned),
    "pcie_replays": _unsigned,
    "fabric": _made(Fabric, _unsigned, _signed, _unsigned, _cluster, *[_perhaps(_unsigned)] * 2),
}
"""How each reading of the child is taken in, but the links, which are made of two.

NVML's own types bound the numbers; what lies outside makes no sense.
"""


def _p2p(raw: Any, gpus: tuple[Gpu, ...]) -> Iterator[P2p]:
    addresses = {gpu.index: gpu.address for gpu in gpus}
    for first, second, read, nvlink in raw:
        one, other = addresses[first], addresses[second]
        if one and other:
            yield P2p(one, other, _unsigned(read), _unsigned(nvlink))


def _refused(answer: dict[str, Any]) -> Unobserved:
    cause = str(answer["cause"])
    if answer["library"] is None:
        return Unobserved("NvmlLibraryNotFound", cause)
    match answer["error"]:
        case 9:
            return Unobserved("DriverNotLoaded", f"NVML: {cause} ({answer['library']})")
        case 18:
            return Unobserved("DriverLibraryMismatch", f"NVML: {cause} ({answer['library']})")
        case None:
            return Unobserved("NvmlNonsense", f"NVML's answer makes no sense: {cause}")
    return Unobserved("NvmlError", f"NVML: {cause} (error {answer['error']}, {answer['library']})")


def driver_version(root: Path) -> str:
    """The version of the loaded kernel module; '' when none is loaded."""
    try:
        return (root / "sys/module/nvidia/version").read_text(encoding="ascii", errors="replace").strip()[:64]
    except OSError:
        return ""


_VERSION = re.compile(r"libnvidia-ml\.so\.(\d{1,4}(?:\.\d{1,4}){1,3})\Z")
_EVERY_PROCESS = "pid:[4026531836]"
"""The first PID namespace of a kernel: PROC_PID_INIT_INO of include/linux/proc_ns.h."""


def library_versions(root: Path) -> tuple[str, ...]:
    """The versions of the driver's libraries under this root, as their files are named (hardware.md 3.5)."""
    found = set()
    for place in PLACES:
        try:
            file = resolve_inside(str(root).rstrip("/"), f"{place}/{SONAME}")
        except OSError:
            continue
        version = _VERSION.search(file)
        if version and Path(file).exists():
            found.add(version[1])
    return tuple(sorted(found))


def sees_every_process(root: Path) -> bool:
    """Whether we are in the node's own PID namespace; a tree without a living /proc is taken for it."""
    try:
        return (root / "proc/self/ns/pid").readlink().name == _EVERY_PROCESS
    except OSError:
        return True


def read_driver(host: Host) -> DriverLook:
    if host.ask_driver is None:
        raise ProbeError("this look does not ask the driver")
    look = host.ask_driver()
    assert isinstance(look, DriverLook)
    return look


NVML = Probe("nvml", read_driver, DriverLook)
