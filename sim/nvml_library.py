"""Builds the simulated driver's libnvidia-ml.so.1 from nvml/nvml.c, once per state of its source."""

import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml" / "nvml.c"
BUILD_DIRECTORY = Path(__file__).parent.parent / "build"
FLAGS = (
    *("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"),
    "-Wl,-soname,libnvidia-ml.so.1",
)


class CompilerError(Exception):
    """There is no C compiler, or it refused the source."""


@functools.cache
def build() -> Path:
    """The compiled library; it has to be copied into a node's tree, since it finds its node from its own place."""
    identity = SOURCE.read_bytes() + repr(FLAGS).encode() + platform.machine().encode()
    library = BUILD_DIRECTORY / f"libnvidia-ml-{hashlib.sha256(identity).hexdigest()[:16]}.so"
    if not library.exists():
        BUILD_DIRECTORY.mkdir(exist_ok=True)
        _compile(find_compiler(), library)
    return library


def find_compiler() -> list[str]:
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise CompilerError(
        "no C compiler for the simulated driver: install gcc or clang, set CC, "
        "or take the one that comes as a Python package: pip install ziglang (our extra `cc`)"
    )


def _compile(compiler: list[str], library: Path) -> None:
    # Parallel test runs may build at the same time: each writes its own file, and the last rename wins.
    with tempfile.TemporaryDirectory(dir=library.parent) as directory:
        fresh = Path(directory) / library.name
        command = [*compiler, *FLAGS, str(SOURCE), "-o", str(fresh), "-ldl"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CompilerError(f"the C compiler `{shlex.join(compiler)}` does not start: {error}") from error
        if done.returncode != 0:
            raise CompilerError(f"`{shlex.join(command)}` failed:\n{done.stderr}")
        fresh.rename(library)
