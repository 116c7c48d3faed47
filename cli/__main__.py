"""`gpu-healthcheck`, also reachable as `kubectl gpu-healthcheck`."""

from __future__ import annotations

import os
import sys

_PROGRAMS = {"agent": "agent", "sweep": "sweeper", "sweep-run": "sweeper.node_test", "quarantine-run": "quarantine"}


def main() -> None:
    """Run a command. What runs in the cluster is a program of its own, and carries nothing of this one's."""
    program = _PROGRAMS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if program:
        os.execv(sys.executable, [sys.executable, "-m", program, *sys.argv[2:]])  # noqa: S606 - no shell
    from cli.app import run  # noqa: PLC0415 - the agent need not wait for it

    run()


if __name__ == "__main__":
    main()
