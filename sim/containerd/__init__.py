"""Real containerds of several releases, to hold our reading of their files against."""

from sim.containerd.build import RELEASES, program

__all__ = ["RELEASES", "program"]
