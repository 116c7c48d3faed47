"""Requests to this node's systemd, from a pod on it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from healthcheck.host import host_files
from healthcheck.model import ProbeError
from repair.host_programs import HostPrograms, message_of

_RUNS_SYSTEMD = "run/systemd/system"
"""Folder that exists only on hosts whose first process is systemd (sd_booted(3))."""
_SYSTEMCTL = "systemctl"
_IGNORED = re.compile(r"ignoring (?:request|command)", re.IGNORECASE)
"""Output of systemctl, with exit code 0, if it takes the host's root for a chroot."""
_OTHER_WAY = "set REPAIR_CONDITIONS=GpuRebootRequired for a program that reboots nodes, or reboot it by hand"


def must_have_systemd(root: Path) -> None:
    """Raise ProbeError if the host does not run systemd, or has no systemctl to ask it."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if not (root / _RUNS_SYSTEMD).is_dir():
        why = "the host does not run systemd"
    elif not any(host_files.is_executable(root, f"{folder}/{_SYSTEMCTL}") for folder in folders):
        why = f"the host has no {_SYSTEMCTL} in {os.pathsep.join(folders)}"
    else:
        return
    raise ProbeError(f"{why}, so this command can't reboot it: {_OTHER_WAY}")


def request_reboot(root: Path) -> None:
    """Request a reboot, as `systemctl reboot` on the host does. Raises ProbeError if systemd does not accept it.

    The host's services are stopped in order, and an inhibitor is obeyed: --force would skip both.
    """
    try:
        systemctl(HostPrograms(), root, "reboot")
    except ProbeError as error:
        raise ProbeError(f"systemd has not accepted the reboot: {error}: {_OTHER_WAY}") from error


def systemctl(programs: HostPrograms, root: Path, *words: str) -> None:
    """Run systemctl on the host. Raises ProbeError if the request is refused or ignored, or has no answer in time."""
    code, text = programs.run(root, _SYSTEMCTL, *words)
    if code or _IGNORED.search(text):
        raise ProbeError(message_of(text) or f"exit code {code}")
