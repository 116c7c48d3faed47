"""Compile a C source of the simulation into a shared library, once per state of the source."""

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

BUILD_DIRECTORY = Path(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),  # noqa: PTH111 - Path raises without a home
    "gpu-healthcheck/simulation",
)
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-O2", "-shared", "-fPIC")


class CompilerError(Exception):
    """There is no C compiler, it rejected the source, or its result cannot be written."""


@functools.cache
def build(source: Path, name: str, *flags: str) -> Path:
    """Return the compiled library. Its file name contains a digest of its sources, so that no old file is used."""
    command = (*FLAGS, *flags)
    identity = source.read_bytes() + repr(command).encode() + platform.machine().encode()
    library = BUILD_DIRECTORY / f"{name}-{hashlib.sha256(identity).hexdigest()[:16]}.so"
    if not library.exists():
        try:
            BUILD_DIRECTORY.mkdir(parents=True, exist_ok=True)
            _compile([*find_compiler(), *command, str(source)], library)
        except OSError as error:
            raise CompilerError(f"cannot write the simulated driver to {BUILD_DIRECTORY}: {error}") from error
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
        "no C compiler for the simulation: install gcc or clang, set CC, "
        "or take the one that comes as a Python package: pip install ziglang"
    )


def _compile(command: list[str], library: Path) -> None:
    # Parallel test runs may build at the same time: each writes its own file, and the last rename wins.
    with tempfile.TemporaryDirectory(dir=library.parent) as directory:
        fresh = Path(directory) / library.name
        whole = [*command, "-o", str(fresh), "-ldl"]
        try:
            done = subprocess.run(whole, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CompilerError(f"cannot start the C compiler `{shlex.join(whole)}`: {error}") from error
        if done.returncode != 0:
            raise CompilerError(f"`{shlex.join(whole)}` failed:\n{done.stderr}")
        fresh.rename(library)
