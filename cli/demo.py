"""`gpu-healthcheck demo`: a GPU failure on a simulated node."""

from __future__ import annotations

import sys

import typer

from gpu_healthcheck.healthcheck.host.program import COULD_NOT
from gpu_healthcheck.healthcheck.host.streams import say


def demo() -> None:
    """Show a GPU failure on a simulated node. It needs no cluster, GPU or root.

    The real agent finds it, and writes it to an API server on loopback. This takes 50 seconds. It needs Linux and a C
    compiler: gcc, clang, or the package ziglang.
    """
    if sys.platform != "linux":
        raise _impossible("it needs Linux, like the agent that it starts")
    try:
        from gpu_healthcheck.sim import c_library  # noqa: PLC0415 - images do not have it
        from gpu_healthcheck.sim import demo as stage  # noqa: PLC0415
    except ModuleNotFoundError:
        raise _impossible("it is not in container images: pipx run gpu-healthcheck demo") from None
    try:
        raise typer.Exit(stage.main())
    except c_library.CompilerError as error:
        raise _impossible(str(error)) from None


def _impossible(reason: str) -> typer.Exit:
    say(f"gpu-healthcheck demo: {reason}")
    return typer.Exit(COULD_NOT)
