"""Programs of the host, run in its root or in that of the driver container."""

from __future__ import annotations

import os
from pathlib import Path

from healthcheck.host.command import ChildError, Program
from healthcheck.model import ProbeError, Shortage
from healthcheck.text.printable import printable

SECONDS = 60.0
"""Deadline of a program."""
_PATIENCE_SECONDS = 10.0
_LONGEST_MESSAGE = 300


class HostPrograms:
    """Programs of this host, one at a time."""

    def __init__(self) -> None:
        # Without the last variable, systemctl may take the host's root in a pod for a chroot: it then ignores commands,
        # with exit code 0 (systemd, docs/ENVIRONMENT.md).
        variables = {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath), "SYSTEMD_IGNORE_CHROOT": "1"}
        self._program = Program(variables, _PATIENCE_SECONDS)

    def run(self, root: Path, *words: str, seconds: float | None = None) -> tuple[int, str]:
        """Run a program in this root, and return its exit code and output. Raises ProbeError without an end in time."""
        try:
            ended = self._program.run(("chroot", str(root), *words), seconds or SECONDS)
        except (ChildError, Shortage) as error:
            raise ProbeError(f"{words[0]}: {error}") from error
        return ended.code, (ended.out + b"\n" + ended.err).decode("utf-8", "replace")


def message_of(text: str) -> str:
    """Return a program's output in one printable line of limited length."""
    return printable(" ".join(text.split()), _LONGEST_MESSAGE)
