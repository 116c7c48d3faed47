"""Child process that loads the GPUs: arithmetic on all at once, then copies, one at a time.

Copies run one at a time because GPUs share PCIe switches, and because the published figures are of single copies. The
process prints one line of JSON and ends without cleaning up: the driver frees the memory of its GPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import c_float, c_uint, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from pathlib import Path
from uuid import UUID

import msgspec

from gpu_healthcheck.healthcheck.probes.gpu_load.cuda import Cuda, CudaError
from gpu_healthcheck.healthcheck.probes.gpu_load.kernels import KERNELS, THREADS, Kernel
from gpu_healthcheck.healthcheck.probes.gpu_load.speeds import (
    FROM_GPU,
    TO_GPU,
    TO_PEER,
    GpuSpeeds,
    LoadAnswer,
    LoadRequest,
)
from gpu_healthcheck.healthcheck.probes.pci import normalise_address

_COPIED = 16 << 20
_COPIES = 64
"""Bytes of one copy, and number of copies that are timed together."""
_FOREIGN_SHARE = 0.1
"""Share of a GPU's memory that the driver and this process may use before the test; more belongs to other work."""
_QUEUED = 2
"""Launches that wait in the stream of a GPU, so that it never idles."""
_GRACE_SECONDS = 60.0
"""Time for a GPU to complete its work beyond the requested time."""
_PAUSE_SECONDS = 0.002
_LONGEST_CPUS, _LONGEST_ERROR, _LONGEST_CAUSE, _MOST_CPUS = 4096, 300, 2000, 8192


class _HungError(Exception):
    """A GPU did not complete its work in time."""


@dataclass
class Gpu:
    """One GPU under test. `context` and the fields below it are set if it could be opened."""

    device: int
    speeds: GpuSpeeds
    processors: int = 0
    capability: int = 0
    context: c_void_p = field(default_factory=c_void_p)
    stream: c_void_p = field(default_factory=c_void_p)
    buffer: int = 0
    inbox: int = 0
    """Memory that its peers copy to: a copy that changed data must not be sent on."""
    bad_peers: list[str] = field(default_factory=list)
    """Addresses of the peers with which copies change data."""

    @property
    def is_sound(self) -> bool:
        return not self.speeds.error

    @contextlib.contextmanager
    def attempt(self, cuda: Cuda, step: str) -> Iterator[None]:
        """Use the GPU's context, and record the error of a call. After an error its context is unusable."""
        try:
            cuda.use(self.context)
            yield
        except CudaError as error:
            self.fail(f"{step}: {error}", error.code)
        except _HungError:
            self.fail(f"{step}: no end in time")

    def fail(self, error: str, code: int = 0) -> None:
        self.speeds.error, self.speeds.code = error[:_LONGEST_ERROR], code


def measure(cuda: Cuda, request: LoadRequest, root: Path) -> list[GpuSpeeds]:
    """Load the GPUs with these addresses, or all, and return what was measured."""
    gpus = [gpu for device in cuda.devices() if (gpu := _named(cuda, device, request.gpus)) is not None]
    for gpu in gpus:
        _open(cuda, gpu)
    for kernel in KERNELS:
        _calculate(
            cuda, kernel, [gpu for gpu in gpus if gpu.is_sound and gpu.capability in kernel.capabilities], request
        )
    _copy(cuda, [gpu for gpu in gpus if gpu.is_sound], root)
    return [gpu.speeds for gpu in gpus]


def _named(cuda: Cuda, device: int, asked: tuple[str, ...]) -> Gpu | None:
    address = normalise_address(cuda.address(device)) or ""
    if asked and address not in asked:
        return None
    return Gpu(device, GpuSpeeds(address, f"GPU-{UUID(bytes=cuda.uuid(device))}", cuda.name(device)))


def _open(cuda: Cuda, gpu: Gpu) -> None:
    try:
        gpu.processors, gpu.capability = cuda.processors(gpu.device), cuda.capability(gpu.device)
        gpu.context = cuda.open(gpu.device)
        free, total = cuda.memory()
        gpu.stream, gpu.buffer, gpu.inbox = cuda.stream(), cuda.allocate(_COPIED), cuda.allocate(_COPIED)
    except CudaError as error:
        gpu.fail(str(error), error.code)
    else:
        if total - free > _FOREIGN_SHARE * total:
            gpu.fail(f"other processes use {(total - free) / (1 << 30):.1f} GiB of its memory")


# --- arithmetic


@dataclass
class _Calculation:
    """Launches of a kernel on one GPU. `events` are before and after each launch that has not been counted yet."""

    gpu: Gpu
    function: c_void_p
    results: int
    events: list[c_void_p] = field(default_factory=list)
    launches: int = 0
    warm_seconds: float = 0.0
    seconds: float = 0.0
    counted: int = 0


def _calculate(cuda: Cuda, kernel: Kernel, gpus: list[Gpu], request: LoadRequest) -> None:
    """Run the kernel on all GPUs until each has been measured for the requested time."""
    running: list[_Calculation] = []
    for gpu in gpus:
        with gpu.attempt(cuda, kernel.name):
            results = cuda.allocate(8)
            cuda.fill(results, 0, 8)
            running.append(_Calculation(gpu, cuda.compile(kernel.ptx, kernel.name), results))
    ends = time.monotonic() + request.warm_seconds + request.seconds + _GRACE_SECONDS
    # A GPU that has been measured stays loaded until the others are, too: they share power and cooling.
    while any(work.gpu.is_sound and work.seconds < request.seconds for work in running):
        progress = False
        for work in running:
            if work.gpu.is_sound:
                with work.gpu.attempt(cuda, kernel.name):
                    progress |= _advance(cuda, kernel, work, request.warm_seconds)
                    if work.seconds < request.seconds and time.monotonic() > ends:
                        raise _HungError
        if not progress:
            time.sleep(_PAUSE_SECONDS)
    for work in running:
        if work.gpu.is_sound:
            with work.gpu.attempt(cuda, kernel.name):
                _wait(cuda, work.events[-1])
                _check(cuda, kernel, work)


def _advance(cuda: Cuda, kernel: Kernel, work: _Calculation, warm_seconds: float) -> bool:
    """Count a completed launch and queue launches. Return whether there was anything to do."""
    progress = False
    if len(work.events) > 1 and cuda.is_done(work.events[1]):
        start = work.events.pop(0)
        seconds = cuda.seconds(start, work.events[0])
        cuda.drop(start)
        if work.warm_seconds < warm_seconds:
            work.warm_seconds += seconds
        else:
            work.seconds += seconds
            work.counted += 1
        progress = True
    gpu = work.gpu
    if not work.events:
        work.events.append(cuda.event())
        cuda.record(work.events[0], gpu.stream)
    while len(work.events) <= _QUEUED:
        words = [c_uint.from_buffer_copy(kernel.operands, 4 * index) for index in range(4)]
        arguments = [c_uint64(work.results), c_uint(kernel.rounds), *words, c_float(kernel.sum)]
        cuda.launch(work.function, kernel.blocks_per_processor * gpu.processors, THREADS, gpu.stream, arguments)
        event = cuda.event()
        cuda.record(event, gpu.stream)
        work.events.append(event)
        work.launches += 1
        progress = True
    return progress


def _check(cuda: Cuda, kernel: Kernel, work: _Calculation) -> None:
    gpu = work.gpu
    threads = kernel.threads(gpu.processors)
    wrong, finished = (c_uint.from_buffer_copy(cuda.read(work.results, 8), 4 * index).value for index in range(2))
    if wrong or finished != threads * work.launches & 0xFFFF_FFFF:
        gpu.speeds.wrong.append(
            f"{kernel.name}: {wrong} wrong sums" if wrong else f"{kernel.name}: threads are missing"
        )
    if work.seconds:
        gpu.speeds.speeds[kernel.name] = threads * kernel.flops * work.counted / work.seconds / 1e12


# --- copies


def _copy(cuda: Cuda, gpus: list[Gpu], root: Path) -> None:
    sent = os.urandom(_COPIED)
    for gpu in gpus:
        with _near(root, gpu.speeds.address), gpu.attempt(cuda, "copy"):
            source, target = cuda.pinned(_COPIED), cuda.pinned(_COPIED)
            ctypes.memmove(source, sent, _COPIED)
            to_gpu = partial(cuda.to_gpu, gpu.buffer, source, _COPIED, gpu.stream)
            from_gpu = partial(cuda.from_gpu, target, gpu.buffer, _COPIED, gpu.stream)
            gpu.speeds.speeds[TO_GPU] = _rate(cuda, gpu, to_gpu)
            gpu.speeds.speeds[FROM_GPU] = _rate(cuda, gpu, from_gpu)
            if ctypes.string_at(target, _COPIED) != sent:
                gpu.speeds.wrong.append("copies from and to this machine's memory change data")
            cuda.free_pinned(source)
            cuda.free_pinned(target)
    _copy_to_peers(cuda, [gpu for gpu in gpus if gpu.is_sound and not gpu.speeds.wrong], sent)


def _copy_to_peers(cuda: Cuda, gpus: list[Gpu], sent: bytes) -> None:
    """Copy between GPUs that an NVLink connects.

    The speed of a GPU is that of its fastest pair, in the slower direction: on some machines pairs have different
    numbers of links. Changed data counts for the GPUs with the most pairs that change data.
    """
    rates: dict[tuple[int, int], float] = {}
    for gpu, peer in permutations(gpus, 2):
        rate = _rate_to_peer(cuda, gpu, peer, sent)
        if rate:
            rates[gpu.device, peer.device] = rate
    most = max((len(gpu.bad_peers) for gpu in gpus), default=0)
    for gpu in gpus:
        if most and len(gpu.bad_peers) == most:
            gpu.speeds.wrong.append(f"copies between it and {gpu.bad_peers[0]} change data")
        of_pairs = [
            min(rate, rates[peer, device])
            for (device, peer), rate in rates.items()
            if device == gpu.device and (peer, device) in rates
        ]
        if of_pairs:
            gpu.speeds.speeds[TO_PEER] = max(of_pairs)


def _rate_to_peer(cuda: Cuda, gpu: Gpu, peer: Gpu, sent: bytes) -> float:
    """Return the speed of copies to a peer in GB/s; 0 if no NVLink connects the two, or a copy fails."""
    rate, step = 0.0, f"copy from {gpu.speeds.address} to {peer.speeds.address}"
    if gpu.is_sound and peer.is_sound:
        with peer.attempt(cuda, step):
            cuda.fill(peer.inbox, 0xFFFF_FFFF, _COPIED)
    if gpu.is_sound and peer.is_sound:
        with gpu.attempt(cuda, step):
            if not cuda.is_linked(gpu.device, peer.device):
                return 0.0
            cuda.enable_peer(peer.context)
            copy = partial(cuda.to_peer, peer.inbox, peer.context, gpu.buffer, gpu.context, _COPIED, gpu.stream)
            rate = _rate(cuda, gpu, copy)
    if gpu.is_sound and peer.is_sound:
        with peer.attempt(cuda, step):
            if cuda.read(peer.inbox, _COPIED) != sent:
                gpu.bad_peers.append(peer.speeds.address)
                peer.bad_peers.append(gpu.speeds.address)
    return rate


def _rate(cuda: Cuda, gpu: Gpu, copy: Callable[[], None]) -> float:
    """Return the speed of repeated copies in GB/s, after one that is not counted."""
    start, end = cuda.event(), cuda.event()
    copy()
    cuda.record(start, gpu.stream)
    for _ in range(_COPIES):
        copy()
    cuda.record(end, gpu.stream)
    _wait(cuda, end)
    seconds = cuda.seconds(start, end)
    return _COPIED * _COPIES / seconds / 1e9 if seconds > 0 else 0.0


def _wait(cuda: Cuda, event: c_void_p) -> None:
    """Wait for an event without a call that blocks. Raises Hung."""
    ends = time.monotonic() + _GRACE_SECONDS
    while not cuda.is_done(event):
        if time.monotonic() > ends:
            raise _HungError
        time.sleep(_PAUSE_SECONDS)


@contextlib.contextmanager
def _near(root: Path, address: str) -> Iterator[None]:
    """Run on the CPUs next to the GPU, so that its pinned memory is next to it, too. Without them, run on any CPU."""
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError, ValueError):
        with (root / "sys/bus/pci/devices" / address / "local_cpulist").open(encoding="ascii") as file:
            text = file.read(_LONGEST_CPUS)
        if near := before & set(_cpus(text)):
            os.sched_setaffinity(0, near)
    yield
    os.sched_setaffinity(0, before)


def _cpus(text: str) -> Iterator[int]:
    """Yield the CPUs of a list such as `0-3,8`. Raises ValueError."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), min(int(last or first), _MOST_CPUS) + 1)


def main() -> None:
    """Print the answer. Usage: `gpu_load.load_child ROOT REQUEST`."""
    root, request = sys.argv[1:]
    # Output of a library must not mix with the answer.
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        speeds = measure(Cuda(root), msgspec.json.decode(request, type=LoadRequest), Path(root))
        answer = LoadAnswer(tuple(speeds))
    except (OSError, CudaError) as error:
        answer = LoadAnswer(cause=str(error)[:_LONGEST_CAUSE])
    with os.fdopen(out, "wb") as file:
        file.write(msgspec.json.encode(answer))
    os._exit(0)  # a GPU that hangs would hang the library's clean-up
