"""Resource use of a process and its children.

It is read from outside, so that the measurement costs the measured program nothing.
"""

from __future__ import annotations

import resource
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

_PAGE = resource.getpagesize()
_PRESENT = 1 << 63
_FRAME = (1 << 55) - 1


def _family(pid: int) -> list[int]:
    """Return the process and its living descendants."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """Return user and system time of the family, to the nanosecond, and of its reaped children, to the tick."""
    seconds = 0.0
    for member in _family(pid):
        try:
            times = psutil.Process(member).cpu_times()
            # clock_getcpuclockid(3): the scheduler's clock of another process, its ended threads included.
            seconds += time.clock_gettime(~member << 3 | 2)
        except (psutil.NoSuchProcess, OSError):
            continue  # it has just ended; the parent's time includes it
        seconds += times.children_user + times.children_system
    return seconds


def memory_mib(pid: int) -> dict[str, float]:
    """Return RSS and PSS of the process family, and its memory without shared files.

    PSS splits a shared page among all processes that map it, and the bench's own Python maps many of the agent's.
    """
    members = _family(pid)
    sizes = {"rss": 0.0, "pss": 0.0}
    for member in members:
        for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()[1:]:
            name, kib = line.split()[0].rstrip(":").lower(), int(line.split()[1])
            if name in sizes:
                sizes[name] += kib / 1024
    sizes["alone"] = _alone_mib(members)
    return {name: round(size, 2) for name, size in sizes.items()}


def _alone_mib(members: Sequence[int]) -> float:
    """Return the number of distinct page frames of these processes; 0 without root."""
    frames: set[int] = set()
    for member in members:
        frames.update(_frames(member))
    return len(frames - {0}) * _PAGE / 2**20


def _frames(pid: int) -> Iterator[int]:
    """Yield the page frames of a process (Linux, admin-guide/mm/pagemap.rst: bit 63 present, bits 0-54 frame)."""
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            words = line.split()
            if words[-1] in ("[vsyscall]", "[vvar]", "[vvar_vclock]", "[vdso]"):
                continue  # the kernel's own pages, in every process
            start, end = (int(address, 16) for address in words[0].split("-"))
            pagemap.seek(start // _PAGE * 8)
            entries = array("Q")
            entries.frombytes(pagemap.read((end - start) // _PAGE * 8))
            yield from (entry & _FRAME for entry in entries if entry & _PRESENT)
