"""Real containerds of several releases, to verify our parser of their files and the commands that we print."""

from sim.containerd.build import RELEASES, program
from sim.containerd.running import RunningContainerd

__all__ = ["RELEASES", "RunningContainerd", "program"]
