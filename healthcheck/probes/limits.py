"""Limits that the kernel sets for this process.

A pod's limits come from the container runtime and are the same for all pods.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.host.opening import read
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError

_LOCKED_MEMORY = re.compile(r"^Max locked memory +(unlimited|[0-9]{1,20}) ", re.MULTILINE)
"""Line with the soft limit, which applies, before the hard limit (proc_pid_limits(5))."""
_LONGEST = 1 << 16


class ProcessLimits(Struct, frozen=True):
    """Limits of a process. `locked_memory` is in bytes; None means unlimited."""

    locked_memory: int | None


def read_limits(host: Host) -> ProcessLimits | None:
    """Return this process's limits; None if they do not represent those of pods.

    They do not outside of a container, or in a captured tree.
    """
    if host.root == Path("/"):
        return None  # a shell outside of containers has the limits of a login
    file = host.root / "proc/self/limits"
    try:
        table = read(file, _LONGEST).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProbeError(f"{file}: {error.strerror}") from error
    found = _LOCKED_MEMORY.search(table)
    if found is None:
        raise ProbeError(f"{file}: no line for locked memory")
    return ProcessLimits(None if found[1] == "unlimited" else int(found[1]))


LIMITS = Probe("limits", read_limits, ProcessLimits | None)
