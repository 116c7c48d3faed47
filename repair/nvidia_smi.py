"""nvidia-smi of the host or of the driver container, and systemd's fabric manager.

The container toolkit cannot mount the driver into a pod while a GPU is faulty (NVSentinel PR 1243).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from msgspec import Struct

from healthcheck.host import host_files
from healthcheck.model import ProbeError
from repair.host_programs import HostPrograms, message_of
from repair.systemd import systemctl

RESET_SECONDS = 180.0
"""Deadline of a reset. NVSentinel's objective for one GPU is 2 minutes."""
_ROOTS = ("", "run/nvidia/driver")
"""Roots with the driver's programs, below the host's: its own, and the GPU operator's driver container."""
_NVIDIA_SMI = "/usr/bin/nvidia-smi"
FABRIC_MANAGER_UNIT = "nvidia-fabricmanager"
_DONE = re.compile(r"successfully reset")
_NOT_AVAILABLE = 3
"""Exit code: the operation is not available on this device (nvidia-smi manual, return values)."""
_IN_USE = re.compile(r"in use by|being used by", re.IGNORECASE)
_NOT_SUPPORTED = re.compile(r"not supported", re.IGNORECASE)


class ResetOutcome(StrEnum):
    """Result of `nvidia-smi --gpu-reset`."""

    DONE = "done"
    IN_USE = "in use"
    NOT_SUPPORTED = "not supported"
    FAILED = "failed"


class ResetAnswer(Struct, frozen=True):
    """Result of a reset, and nvidia-smi's message in one line."""

    outcome: ResetOutcome
    message: str


def read_reset_answer(code: int, text: str) -> ResetAnswer:
    """Interpret exit code and output. Partial success is a failure: the first cause in the output names it."""
    message = message_of(text)
    if _IN_USE.search(text):
        return ResetAnswer(ResetOutcome.IN_USE, message)
    if code == _NOT_AVAILABLE or _NOT_SUPPORTED.search(text):
        return ResetAnswer(ResetOutcome.NOT_SUPPORTED, message)
    if code == 0 and _DONE.search(text):
        return ResetAnswer(ResetOutcome.DONE, message)
    return ResetAnswer(ResetOutcome.FAILED, message or f"exit code {code}")


@dataclass
class NvidiaSmi:
    """Programs of this host, one at a time. `root` is the host's `/`, `driver` the root with nvidia-smi."""

    root: Path
    driver: Path
    _programs: HostPrograms = field(default_factory=HostPrograms)

    @classmethod
    def find(cls, root: Path) -> Self:
        """Raises ProbeError if there is no nvidia-smi."""
        driver = next((root / place for place in _ROOTS if host_files.is_executable(root / place, _NVIDIA_SMI)), None)
        if driver is None:
            raise ProbeError(f"neither the host nor {_ROOTS[1]} has {_NVIDIA_SMI}")
        return cls(root, driver)

    def reset(self, gpus: Sequence[str]) -> ResetAnswer:
        """Reset these GPUs together; `()` means all of the node."""
        which = ("-i", ",".join(gpus)) if gpus else ()
        try:
            code, text = self._programs.run(self.driver, _NVIDIA_SMI, "--gpu-reset", *which, seconds=RESET_SECONDS)
        except ProbeError as error:
            return ResetAnswer(ResetOutcome.FAILED, str(error))
        return read_reset_answer(code, text)

    def set_persistence(self, gpu: str, *, on: bool) -> None:
        """Switch the persistence mode, for which nvidia-persistenced holds the GPU. Raises ProbeError."""
        code, text = self._programs.run(self.driver, _NVIDIA_SMI, "-i", gpu, "-pm", str(int(on)))
        if code:
            raise ProbeError(f"nvidia-smi -pm: {message_of(text)}")

    def set_fabric_manager(self, *, on: bool) -> None:
        """Start or stop the host's fabric manager. Raises ProbeError."""
        systemctl(self._programs, self.root, "start" if on else "stop", FABRIC_MANAGER_UNIT)
