"""`python -m sim.control_plane build|up`: build the programs, or run a control plane until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys

from gpu_healthcheck.sim.control_plane import ControlPlane, binaries
from gpu_healthcheck.sim.control_plane.build import minor_binaries
from tools.go_programs.build import ProgramError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.control_plane", description=__doc__)
    parser.add_argument("command", choices=["build", "up"])
    parser.add_argument("--minor", help="build: another Kubernetes version, such as 1.31, for KUBEBUILDER_ASSETS")
    parser.add_argument("--controllers", action="store_true", help="also run the controller-manager")
    parser.add_argument("--scheduler", action="store_true", help="also run the scheduler")
    arguments = parser.parse_args()
    try:
        if arguments.command == "build":
            print(minor_binaries(arguments.minor) if arguments.minor else binaries())
        else:
            _up(ControlPlane(controllers=arguments.controllers, scheduler=arguments.scheduler))
    except ProgramError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _up(plane: ControlPlane) -> None:
    wanted = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    with plane:
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        print("running; Ctrl-C ends it and removes everything", file=sys.stderr, flush=True)
        signal.sigwait(wanted)


if __name__ == "__main__":
    sys.exit(main())
