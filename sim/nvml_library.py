"""The simulated driver's libnvidia-ml.so.1."""

from pathlib import Path

from gpu_healthcheck.sim import c_library

SOURCE = Path(__file__).parent / "nvml.c"


def build(*flags: str) -> Path:
    """Return the compiled library. Copy it into a node's tree: it finds its node by its own path."""
    return c_library.build(SOURCE, "libnvidia-ml", "-Wl,-soname,libnvidia-ml.so.1", *flags)
