"""Real containerds of several releases, to verify our parser of their files and the commands that we print."""

from gpu_healthcheck.sim.containerd.build import RELEASES, program
from gpu_healthcheck.sim.containerd.running import RunningContainerd

__all__ = ["RELEASES", "RunningContainerd", "program"]
