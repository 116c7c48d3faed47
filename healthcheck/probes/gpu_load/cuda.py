"""The driver's CUDA library (libcuda.so.1) by ctypes: only the functions that the load test calls.

Names with _v2 are the ones that cuda.h gives their calls since CUDA 4; the library keeps them.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from gpu_healthcheck.healthcheck.probes.nvml.library import load

SONAME = "libcuda.so.1"
SUCCESS = 0
_NOT_READY, _ALREADY_ENABLED = 600, 704
"""Codes of CUresult, cuda.h."""
_PROCESSORS, _CAPABILITY = 16, 75
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT and _COMPUTE_CAPABILITY_MAJOR."""
_NATIVE_ATOMICS = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: two GPUs have it over NVLink, and not over PCIe."""
_PORTABLE = 1
"""CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts."""


class CudaError(Exception):
    """A call failed. `code` is its CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name or 'error'} ({code})")
        self.code = code


class Cuda:
    """The initialised library. Raises OSError if it can't be loaded, and CudaError in every call."""

    def __init__(self, root: str) -> None:
        load(root, use_loader=True, soname=SONAME)
        self._library = ctypes.CDLL(SONAME)
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any, allowed: int = SUCCESS) -> int:
        """Return the code of the call: success, or the other one that is allowed."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise CudaError(name, -1, "the library lacks it") from None
        code = int(function(*arguments))
        if code not in (SUCCESS, allowed):
            error_name = c_char_p()
            self._library.cuGetErrorName(code, byref(error_name))
            raise CudaError(name, code, (error_name.value or b"").decode("ascii", "replace"))
        return code

    # --- devices

    def devices(self) -> range:
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return range(count.value)

    def address(self, device: int) -> str:
        buffer = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", buffer, c_int(len(buffer)), c_int(device))
        return buffer.value.decode("ascii", "replace")

    def uuid(self, device: int) -> bytes:
        raw = ctypes.create_string_buffer(16)
        self.call("cuDeviceGetUuid_v2", raw, c_int(device))
        return raw.raw

    def name(self, device: int) -> str:
        buffer = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", buffer, c_int(len(buffer)), c_int(device))
        return buffer.value.decode("ascii", "replace")

    def processors(self, device: int) -> int:
        return self._attribute(_PROCESSORS, device)

    def capability(self, device: int) -> int:
        return self._attribute(_CAPABILITY, device)

    def is_linked(self, device: int, peer: int) -> bool:
        """Whether an NVLink connects the two GPUs."""
        value = c_int()
        self.call("cuDeviceGetP2PAttribute", byref(value), c_int(_NATIVE_ATOMICS), c_int(device), c_int(peer))
        return value.value == 1

    def _attribute(self, number: int, device: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), c_int(number), c_int(device))
        return value.value

    # --- one GPU's context, which later calls use

    def open(self, device: int) -> c_void_p:
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), c_int(device))
        self.use(context)
        return context

    def use(self, context: c_void_p) -> None:
        self.call("cuCtxSetCurrent", context)

    def enable_peer(self, context: c_void_p) -> None:
        self.call("cuCtxEnablePeerAccess", context, 0, allowed=_ALREADY_ENABLED)

    def memory(self) -> tuple[int, int]:
        """Return the free and the total memory of the GPU in bytes."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        return pointer.value

    def fill(self, pointer: int, word: int, size: int) -> None:
        """Set the memory to a repeated word of 32 bits, and wait."""
        self.call("cuMemsetD32_v2", c_uint64(pointer), ctypes.c_uint(word), c_size_t(size // 4))
        self.call("cuCtxSynchronize")

    def pinned(self, size: int) -> int:
        """Allocate memory of this machine that the GPU can copy by itself."""
        pointer = c_void_p()
        self.call("cuMemHostAlloc", byref(pointer), c_size_t(size), _PORTABLE)
        return pointer.value or 0

    def free_pinned(self, pointer: int) -> None:
        self.call("cuMemFreeHost", c_void_p(pointer))

    def read(self, pointer: int, size: int) -> bytes:
        """Copy a few bytes from the GPU, and wait."""
        buffer = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", buffer, c_uint64(pointer), c_size_t(size))
        return buffer.raw

    # --- work in a stream

    def stream(self) -> c_void_p:
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), 1)  # CU_STREAM_NON_BLOCKING
        return stream

    def event(self) -> c_void_p:
        event = c_void_p()
        self.call("cuEventCreate", byref(event), 0)
        return event

    def drop(self, event: c_void_p) -> None:
        self.call("cuEventDestroy_v2", event)

    def record(self, event: c_void_p, stream: c_void_p) -> None:
        self.call("cuEventRecord", event, stream)

    def is_done(self, event: c_void_p) -> bool:
        return self.call("cuEventQuery", event, allowed=_NOT_READY) == SUCCESS

    def seconds(self, start: c_void_p, end: c_void_p) -> float:
        """Return the GPU's time between two events."""
        milliseconds = c_float()
        self.call("cuEventElapsedTime", byref(milliseconds), start, end)
        return milliseconds.value / 1000

    def compile(self, ptx: str, name: str) -> c_void_p:
        module, function = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), ptx.encode())
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        return function

    def launch(self, function: c_void_p, blocks: int, threads: int, stream: c_void_p, arguments: list[Any]) -> None:
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        grid = (blocks, 1, 1, threads, 1, 1, 0)
        self.call("cuLaunchKernel", function, *grid, stream, pointers, None)

    def to_gpu(self, pointer: int, source: int, size: int, stream: c_void_p) -> None:
        self.call("cuMemcpyHtoDAsync_v2", c_uint64(pointer), c_void_p(source), c_size_t(size), stream)

    def from_gpu(self, target: int, pointer: int, size: int, stream: c_void_p) -> None:
        self.call("cuMemcpyDtoHAsync_v2", c_void_p(target), c_uint64(pointer), c_size_t(size), stream)

    def to_peer(self, target: int, to: c_void_p, source: int, context: c_void_p, size: int, stream: c_void_p) -> None:
        self.call("cuMemcpyPeerAsync", c_uint64(target), to, c_uint64(source), context, c_size_t(size), stream)
