"""DCGM's diagnostic, and what it wrote."""
