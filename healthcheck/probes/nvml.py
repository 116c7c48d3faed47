"""What NVML says of the GPUs, asked through a child process under a deadline."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from healthcheck.command import Child, ChildError, MissedDeadline
from healthcheck.model import Host, Probe, ProbeError, Unobserved
from healthcheck.probes.pci import normalise_address

SUCCESS = 0
GPU_IS_LOST, RESET_REQUIRED = 15, 16
"""nvmlReturn_t (nvml.h)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU by NVML's index. `error` is the nvmlReturn_t of its handle or of a call that must work; else 0."""

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

    @property
    def about(self) -> dict[str, str]:
        names = {"index": str(self.index), "uuid": self.uuid, "serial": self.serial}
        return {key: value for key, value in names.items() if value}


@dataclass(frozen=True, slots=True)
class Gpus:
    driver_version: str
    library: str
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class DriverLook:
    """One look: the GPUs, or why there was no answer. `missed`: monotonic seconds of deadlines missed in a row."""

    answer: Gpus | Unobserved
    missed: tuple[float, ...] = ()
    deadline_seconds: float = 0.0
    stuck_pid: int | None = None


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
        return DriverLook(answer, tuple(self._missed), self.deadline_seconds, stuck_pid)


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
        return Answer(Gpus(str(answer["driver_version"]), str(answer["library"]), gpus), answered_by_driver=True)
    except (ValueError, KeyError, TypeError) as error:
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
    action, instances = raw.get("recovery_action"), raw.get("instances")
    return Gpu(
        index,
        code,
        address,
        str(raw.get("uuid", "")),
        str(raw.get("serial", "")),
        str(raw.get("name", "")),
        recovery_action=None if action is None else int(action),
        recovery_error=int(raw.get("recovery_error", SUCCESS)),
        instances=None if instances is None else tuple(int(one) for one in instances),
    )


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


def read_driver(host: Host) -> DriverLook:
    if host.ask_driver is None:
        raise ProbeError("this look does not ask the driver")
    look = host.ask_driver()
    assert isinstance(look, DriverLook)
    return look


NVML = Probe("nvml", read_driver)
