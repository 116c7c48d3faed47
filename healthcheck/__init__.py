"""Shared logic of all programs: probes, checks, decisions and their application to the Node."""

__version__ = "0.4.0"
