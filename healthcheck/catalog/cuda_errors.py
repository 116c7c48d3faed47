"""Errors of CUDA, NVML, NCCL and libfabric as programs print them, each with its cause in a cluster.

Sources: cuda.h, driver_types.h, nvml.h, nccl.h; the texts that cudaGetErrorString, nvmlErrorString and
ncclGetErrorString return; for libfabric, the warnings of aws-ofi-nccl. The cause is the name of a cause of `diagnose`,
or '' if the error alone does not indicate one. CUDA's errors of textures, graphics and profilers are left out.
"""

from __future__ import annotations

import re
from functools import cache

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows


class LibraryError(Struct, frozen=True):
    """Error of a library. `number` is None if it has none; `names` are those of its interfaces."""

    library: str
    number: int | None
    names: tuple[str, ...]
    messages: tuple[str, ...]
    """Texts for it, which differ between programs and versions."""
    cause: str


@cache
def cuda_errors() -> tuple[LibraryError, ...]:
    """Return the errors of CUDA's driver and its runtime, which have the same numbers."""
    return tuple(
        LibraryError(
            "CUDA",
            int(row["number"]),
            tuple(filter(None, (row["driver_name"], row["runtime_name"]))),
            tuple(filter(None, (row["message"],))),
            row["cause"],
        )
        for _, row in read_rows("cuda_errors.csv")
    )


@cache
def library_errors() -> tuple[LibraryError, ...]:
    """Return the errors of NVML, NCCL and libfabric."""
    return tuple(
        LibraryError(
            row["library"],
            int(row["number"]) if row["number"] else None,
            tuple(filter(None, (row["name"],))),
            tuple(row["message"].split("|")),
            row["cause"],
        )
        for _, row in read_rows("library_errors.csv")
    )


@cache
def error_fixes() -> tuple[tuple[str, re.Pattern[str], str], ...]:
    """Return the fixes of errors that need another one than their cause: cause, text in the error, fix."""
    rows = (row for _, row in read_rows("error_fixes.csv"))
    return tuple((row["cause"], re.compile(row["text"], re.IGNORECASE), row["fix"]) for row in rows)


def fix_of(cause: str, message: str) -> str:
    """Return the fix of an error with this cause and message; '' if that of the cause applies."""
    return next((fix for name, text, fix in error_fixes() if name == cause and text.search(message)), "")
