"""Child process that becomes the loader of a container runtime, below the root of the runtime's process."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Replace this process by the program of a process: its folder in /proc, its name, and the arguments."""
    process, *words = sys.argv[1:]
    program = os.open(f"{process}/exe", os.O_RDONLY | os.O_CLOEXEC)
    os.chroot(f"{process}/root")
    os.chdir("/")
    os.execve(program, words, {})  # noqa: S606 - the purpose of this process
    return 1
