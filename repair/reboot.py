"""Reboot of this node through the host's systemd, from a pod on it."""

from __future__ import annotations

import os
from pathlib import Path

from healthcheck.host.command import ChildError, Program
from healthcheck.model import ProbeError, Shortage
from healthcheck.text.printable import printable

_SECONDS, _PATIENCE_SECONDS = 60.0, 10.0
_RUNS_SYSTEMD = "run/systemd/system"
"""Folder that exists only on hosts whose first process is systemd (sd_booted(3))."""
_OTHER_WAY = "set REPAIR_CONDITIONS=GpuRebootRequired for a program that reboots nodes, or reboot it by hand"
_LONGEST_MESSAGE = 300


def must_have_systemd(root: Path) -> None:
    """Raise ProbeError if the host does not run systemd."""
    if not (root / _RUNS_SYSTEMD).is_dir():
        raise ProbeError(f"the host does not run systemd, so this command can't reboot it: {_OTHER_WAY}")


def request_reboot(root: Path) -> None:
    """Request a reboot, as `systemctl reboot` on the host does. Raises ProbeError if systemd does not accept it."""
    program = Program({"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)}, _PATIENCE_SECONDS)
    try:
        ended = program.run(("chroot", str(root), "systemctl", "reboot"), _SECONDS)
    except (ChildError, Shortage) as error:
        raise ProbeError(f"the reboot by systemctl: {error}: {_OTHER_WAY}") from error
    if ended.code:
        text = (ended.out + b"\n" + ended.err).decode("utf-8", "replace")
        message = printable(" ".join(text.split()), _LONGEST_MESSAGE) or f"exit code {ended.code}"
        raise ProbeError(f"systemd refuses the reboot: {message}: {_OTHER_WAY}")
