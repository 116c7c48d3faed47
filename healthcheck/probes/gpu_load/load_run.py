"""Run of the load test in a child process with a deadline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gpu_healthcheck.healthcheck.host.command import ChildError, Program, how_it_ended, isolated
from gpu_healthcheck.healthcheck.model import Host, Shortage, Unobserved
from gpu_healthcheck.healthcheck.probes.gpu_load.speeds import (
    NOT_RUN,
    GpuSpeeds,
    LoadReading,
    LoadRequest,
    read_load_answer,
)
from gpu_healthcheck.healthcheck.probes.pci import read_functions
from gpu_healthcheck.healthcheck.text.printable import printable

WARM_SECONDS, MEASURED_SECONDS = 10.0, 30.0
"""Time of each kind of arithmetic: a GPU warms up, and is then measured."""
SHORT_SECONDS = 2.0
"""Time of each kind in the short test after a reset, which proves that the GPU works."""
_DEADLINE_SECONDS, SHORT_DEADLINE_SECONDS = 600.0, 180.0
"""Deadlines of the whole test. Eight GPUs without persistence mode take half a minute to initialise."""
_PATIENCE_SECONDS = 5.0
_ENVIRONMENT = {"LC_ALL": "C", "CUDA_CACHE_DISABLE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Environment without this process's CUDA variables, such as CUDA_VISIBLE_DEVICES, which would hide GPUs."""
_NVIDIA_DRIVER = "nvidia"
_LONGEST_TEXT = 300


@dataclass
class GpuLoad:
    """The load test of these GPUs, by PCI address; `()` means all."""

    root: Path
    gpus: Sequence[str] = ()
    warm_seconds: float = WARM_SECONDS
    seconds: float = MEASURED_SECONDS
    deadline_seconds: float = _DEADLINE_SECONDS
    libraries: Path | None = None
    """Folder with the driver's libraries, where the loader does not find them."""
    _program: Program = field(init=False)

    def __post_init__(self) -> None:
        folders = (str(self.libraries or ""), os.environ.get("LD_LIBRARY_PATH", ""))
        libraries = ":".join(filter(None, folders))
        environment = {**_ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath)}
        self._program = Program(environment | ({"LD_LIBRARY_PATH": libraries} if libraries else {}), _PATIENCE_SECONDS)

    def run(self) -> LoadReading:
        """Load the GPUs. Raises ProbeError if they can't be counted, or if the answer is malformed."""
        functions = read_functions(Host(self.root))
        addresses = [
            function.address for function in functions if function.is_gpu and function.driver == _NVIDIA_DRIVER
        ]
        if not addresses:
            return LoadReading(absent="no GPU belongs to NVIDIA's driver")
        request = LoadRequest(tuple(self.gpus), self.warm_seconds, self.seconds)
        argv = (
            *isolated("gpu_healthcheck.healthcheck.probes.gpu_load.load_child"),
            str(self.root),
            msgspec.json.encode(request).decode(),
        )
        try:
            ended = self._program.run(argv, self.deadline_seconds)
        except (ChildError, Shortage) as error:
            return LoadReading(failed=Unobserved(NOT_RUN, f"the load test: {error}"))
        if ended.code != 0:
            last = printable(ended.err.decode("utf-8", "replace").strip().rpartition("\n")[2], _LONGEST_TEXT)
            return LoadReading(failed=Unobserved(NOT_RUN, f"the load test {how_it_ended(ended.code)}: {last}"))
        answer = read_load_answer(ended.out)
        if answer.cause:
            return LoadReading(failed=Unobserved(NOT_RUN, f"the load test: {answer.cause}"))
        known = {gpu.address for gpu in answer.gpus}
        silent = [address for address in self.gpus or addresses if address not in known]
        return LoadReading((*answer.gpus, *(GpuSpeeds(address, error="CUDA does not list it") for address in silent)))

    def stop(self) -> None:
        """Stop the run of another thread. Nothing is started after it."""
        self._program.stop()
