"""`gpu-healthcheck`, also reachable as `kubectl gpu-healthcheck`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run a command. The agent is a program of its own, so that it carries nothing of this one's for all its life."""
    if sys.argv[1:2] == ["agent"]:
        os.execv(sys.executable, [sys.executable, "-m", "agent", *sys.argv[2:]])  # noqa: S606 - no shell
    from cli.app import run  # noqa: PLC0415 - the agent need not wait for it

    run()


if __name__ == "__main__":
    main()
