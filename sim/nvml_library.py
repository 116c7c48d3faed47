"""The simulated driver's libnvidia-ml.so.1."""

from pathlib import Path

from sim import c_library

SOURCE = Path(__file__).parent / "nvml" / "nvml.c"


def build(*flags: str) -> Path:
    """The compiled library; it has to be copied into a node's tree, since it finds its node from its own place."""
    return c_library.build(SOURCE, "libnvidia-ml", "-Wl,-soname,libnvidia-ml.so.1", *flags)
