"""Speeds and results of the GPUs under load.

Only a deep diagnostic runs the load (`load_run`), because it needs the GPUs alone.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError, Unobserved, UnobservedCause

NOT_RUN = UnobservedCause(
    "GpuLoadNotRun",
    "The load test of the GPUs could not run, or did not end: no CUDA library, too little memory, other work.",
    "Read its error in the message. If a GPU does not end its work, quarantine the node again after a reboot.",
)
FP32, BF16, TO_GPU, FROM_GPU, TO_PEER = "fp32", "bf16", "h2d", "d2h", "peer"
"""Measured quantities: arithmetic in TFLOPS; copies from and to this machine's memory, and between GPUs, in GB/s."""

_Text = Annotated[str, Meta(max_length=300)]


class GpuSpeeds(Struct):
    """One GPU under load. `code` is the CUresult behind `error`; 0: the test ended for another reason."""

    address: Annotated[str, Meta(max_length=16)]
    uuid: Annotated[str, Meta(max_length=64)] = ""
    name: Annotated[str, Meta(max_length=128)] = ""
    speeds: dict[Annotated[str, Meta(max_length=8)], Annotated[float, Meta(ge=0, le=1e6)]] = field(default_factory=dict)
    wrong: Annotated[list[_Text], Meta(max_length=8)] = field(default_factory=list)
    """Wrong results of arithmetic, and changed data of copies."""
    error: _Text = ""
    code: int = 0


class LoadRequest(Struct, frozen=True):
    """Parameters of the child process. `gpus` are PCI addresses; `()` means all."""

    gpus: tuple[str, ...] = ()
    warm_seconds: float = 0.0
    seconds: float = 1.0


class LoadAnswer(Struct, frozen=True):
    """Answer of the child process. `cause`: why no GPU could be loaded, or ''."""

    gpus: Annotated[tuple[GpuSpeeds, ...], Meta(max_length=256)] = ()
    cause: Annotated[str, Meta(max_length=2000)] = ""


class LoadReading(Struct, frozen=True):
    """Speeds of the GPUs, or why they are unknown. `absent` is the reason if there is nothing to measure."""

    gpus: tuple[GpuSpeeds, ...] = ()
    failed: Unobserved | None = None
    absent: str = ""


def read_load_answer(text: bytes) -> LoadAnswer:
    """Parse the child's answer. Raises ProbeError."""
    try:
        return msgspec.json.decode(text, type=LoadAnswer)
    except msgspec.MsgspecError as error:
        raise ProbeError(f"the load test's answer is malformed: {error}") from error


def read_gpu_load(host: Host) -> LoadReading:
    if host.ask_gpu_load is None:
        raise ProbeError("only a deep diagnostic loads the GPUs")
    reading: LoadReading = host.ask_gpu_load()
    return reading


GPU_LOAD = Probe("gpu-load", read_gpu_load, LoadReading, (NOT_RUN,))
