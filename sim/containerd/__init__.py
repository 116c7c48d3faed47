"""Real containerds of several releases, to hold our reading of their files and the commands that we print against."""

from sim.containerd.build import RELEASES, program
from sim.containerd.running import RunningContainerd

__all__ = ["RELEASES", "RunningContainerd", "program"]
