"""DCGM's diagnostic, and its output."""
