"""The simulated driver's libcuda.so.1."""

from pathlib import Path

from gpu_healthcheck.sim import c_library

SOURCE = Path(__file__).parent / "cuda.c"


def build() -> Path:
    """Return the compiled library. Copy it into a node's tree: it finds its node by its own path."""
    return c_library.build(SOURCE, "libcuda", "-Wl,-soname,libcuda.so.1")
