"""`gpu-healthcheck`, also reachable as `kubectl gpu-healthcheck`."""

from __future__ import annotations

import gc
import runpy
import sys

_PROGRAMS = {
    "agent": "agent",
    "sweep": "sweeper",
    "sweep-run": "sweeper.sweep_run",
    "quarantine-run": "quarantine",
    "reset-run": "repair",
    "reset-idle": "cli.reset_idle",
    "gate": "cli.gate",
    "evict": "evict",
}
_COMPLETE = "__complete"
"""Name of Cobra's hidden completion command."""
_OBJECTS = 200_000
"""Allocations before the first garbage collection. Most commands end earlier and never collect."""


def main() -> None:
    """Run a command. The cluster's programs are started before any module of a command is loaded."""
    program = _PROGRAMS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if program and not {"-h", "--help"} & {*sys.argv[2:]}:
        del sys.argv[1]
        runpy.run_module(f"gpu_healthcheck.{program}", run_name="__main__", alter_sys=True)
        return
    gc.set_threshold(_OBJECTS)
    from gpu_healthcheck.cli.app import complete, run  # noqa: PLC0415 - the agent does not need it

    if sys.argv[1:2] == [_COMPLETE]:
        complete(sys.argv[2:])
    else:
        run()


def main_for_kubectl() -> None:
    """`kubectl_complete-gpu_healthcheck`: kubectl runs it for the words behind `kubectl gpu-healthcheck`."""
    sys.argv.insert(1, _COMPLETE)
    main()


if __name__ == "__main__":
    main()
