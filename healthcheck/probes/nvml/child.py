"""Child process that reads NVML: one line in, one line of JSON out.

It imports as few modules as possible. NVML is shut down after every read. An open handle on /dev/nvidia* would block a
GPU reset, a MIG change and a driver upgrade. A hang or a crash in the driver affects only this process.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import combinations

from gpu_healthcheck.healthcheck.probes.nvml import queries
from gpu_healthcheck.healthcheck.probes.nvml.library import Library
from gpu_healthcheck.healthcheck.probes.nvml.queries import ABSENT, GpuHandle, Inforoms, text

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing uses 0.6 MiB
    from collections.abc import Callable
    from typing import Any, BinaryIO

    Queries = list[tuple[str, Callable[[GpuHandle], Any], str]]
    """Name, query and subject of a failure of each reading: the parts of a `gpus.Reading`."""

_MOST_GPUS = 256
_NOT_OF_THE_GPU = frozenset({3, 4, 13, 25})
"""Codes of nvml.h for missing features and permissions. A GPU without a name due to them is not faulty."""
_BROKEN = frozenset({8, 11, 15, 16})
"""Codes of nvml.h for power, interrupts, lost, reset required. From any call, they mean a faulty GPU."""
_GONE = frozenset({15, 16})
"""Codes after which no further calls are made: each would return the same code, slowly."""
_P2P_CAPS = (0, 2)
"""READ and NVLINK of nvmlGpuP2PCapsIndex_t. Due to a stray comma, READ is not a number in pynvml."""


def read_gpus(library: Library, inforoms: Inforoms, wanted: Queries) -> dict[str, Any]:
    """Read the driver once: initialise, query, shut down."""
    import pynvml  # noqa: PLC0415 - only after the right library is loaded

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"library": library.path, "error": error.value, "cause": str(error)}
    try:
        count = pynvml.nvmlDeviceGetCount()
        if count > _MOST_GPUS:
            return {"library": library.path, "error": None, "cause": f"NVML reports {count} GPUs"}
        version = text(pynvml.nvmlSystemGetDriverVersion())
        gpus = [_gpu(pynvml, index, inforoms, version, wanted) for index in range(count)]
        p2p = _p2p(pynvml, gpus)
        return {
            "library": library.path,
            "driver_version": version,
            "gpus": [readings for readings, _ in gpus],
            "p2p": p2p,
        }
    except pynvml.NVMLError as error:
        return {"library": library.path, "error": error.value, "cause": str(error)}
    finally:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            print(f"nvmlShutdown: {error}", file=sys.stderr)


def _gpu(nvml: Any, index: int, inforoms: Inforoms, version: str, wanted: Queries) -> tuple[dict[str, Any], Any]:
    """Return the readings of one GPU, and its handle; None if there is no handle."""
    readings: dict[str, Any] = {"index": index, "error": 0, "errors": {}, "nonsense": []}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return readings | {"error": error.value}, None
    gpu = GpuHandle(nvml, handle, inforoms, version)
    for name, query, on_failure in wanted:
        try:
            readings[name] = query(gpu)
        except nvml.NVMLError as error:
            _note_failure(readings, name, error.value, on_failure)
            if error.value in _GONE and on_failure != "none":
                return readings, handle
        except ValueError:  # also for invalid text
            readings["nonsense"].append(name)
    return readings, handle


def _note_failure(readings: dict[str, Any], name: str, code: int, on_failure: str) -> None:
    """Record the failure of a reading."""
    if on_failure == "gpu":
        readings["error"] = readings["error"] or (0 if code in _NOT_OF_THE_GPU else code)
    elif on_failure == "reading" and code not in ABSENT:
        readings["errors"][name] = code
        readings["error"] = readings["error"] or (code if code in _BROKEN else 0)


def _p2p(nvml: Any, gpus: list[tuple[dict[str, Any], Any]]) -> list[list[int]]:
    """Return both indices, READ status and NVLINK status of each pair of healthy GPUs.

    MIG and P2P exclude each other.
    """
    pairs = []
    healthy = [
        (readings, handle)
        for readings, handle in gpus
        if not readings["error"] and not (readings.get("mig_mode") or [0])[0]
    ]
    for (first, handle), (second, second_handle) in combinations(healthy, 2):
        try:
            statuses = [nvml.nvmlDeviceGetP2PStatus(handle, second_handle, caps) for caps in _P2P_CAPS]
            pairs.append([first["index"], second["index"], *statuses])
        except nvml.NVMLError as error:
            if error.value not in ABSENT:
                first["errors"]["p2p"] = second["errors"]["p2p"] = error.value
    return pairs


def find_queries(declared: str) -> Queries:
    """Return the readings of this JSON list of name, call and subject of a failure.

    The call is a function of `queries`, or else one of NVML with the GPU's handle.
    """
    return [
        (name, getattr(queries, call, None) or (lambda gpu, call=call: gpu.ask(call)), on_failure)
        for name, call, on_failure in json.loads(declared)
    ]


def _answers(out: BinaryIO, root: str, use_loader: bool, wanted: Queries) -> None:
    library: Library | None = None
    inforoms = Inforoms()
    for _ in sys.stdin:
        try:
            library = library or Library(root, use_loader)
            answer = {"changed": library.path} if library.replaced() else read_gpus(library, inforoms, wanted)
        except OSError as error:
            answer = {"library": None, "error": None, "cause": str(error)[:1000]}
        except Exception as error:  # noqa: BLE001 - boundary of the probe: report invalid data of a driver
            answer = {"library": library and library.path, "error": None, "cause": f"{type(error).__name__}: {error}"}
        try:
            out.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
            out.flush()
        except BrokenPipeError:
            os._exit(0)  # the parent has ended; a normal exit would try to write again


def main() -> None:
    """Answer requests until standard input ends. Usage: `nvml_child ROOT loader|root-only READINGS`.

    READINGS is the argument of `find_queries`: the table of readings is the parent's, with types and more modules.
    """
    root, mode, declared = sys.argv[1:]
    # Output of a library must neither mix with the answers nor flood the agent's log, which this program still uses.
    out = os.fdopen(os.dup(1), "wb")
    sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    _answers(out, root, mode == "loader", find_queries(declared))
