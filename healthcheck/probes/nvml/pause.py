"""Pause of the agent's NVML reads during a GPU reset: a file in the agent's state directory, with a deadline.

An open handle blocks a reset. The deadline is in seconds of the boot's monotonic clock and at most five minutes away,
so that a dead Job never stops the agent's reads for longer.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from gpu_healthcheck.healthcheck.host import node_file
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.probes.kernel_log import boot_id

LONGEST_SECONDS = 300.0
_FILE = "nvml-pause.json"
_MOST_BYTES = 256


def start_pause(folder: Path, root: Path, seconds: float) -> None:
    """Request a pause of at most `LONGEST_SECONDS`. Raises OSError and ProbeError."""
    until = time.monotonic() + min(seconds, LONGEST_SECONDS)
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"boot_id": boot_id(root), "until": until})
    node_file.replace_whole(folder / _FILE, content.encode(), on_disk=False)


def end_pause(folder: Path) -> None:
    """Remove the request. Raises OSError."""
    (folder / _FILE).unlink(missing_ok=True)


def is_paused(folder: Path, root: Path) -> bool:
    """Whether a request is in force. An unreadable request, or one with a later deadline, is not."""
    try:
        row = json.loads(node_file.read_start(folder / _FILE, _MOST_BYTES))
        left = float(row["until"]) - time.monotonic()
        return 0 < left <= LONGEST_SECONDS and row["boot_id"] == boot_id(root)
    except (OSError, ProbeError, ValueError, KeyError, TypeError, RecursionError):
        return False
