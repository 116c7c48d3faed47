"""One Go build of exactly the modules that a folder's go.mod and go.sum pin, cached under their digest."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class ProgramError(Exception):
    """A program cannot be built, started or queried; the message has the reason."""


class NoProgramError(ProgramError):
    """The program is missing, and this machine cannot build it."""


def home_of(programs: str) -> Path:
    """Return the cache directory of the built programs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "gpu-healthcheck" / programs


def digest(*rooms: Path) -> str:
    """Return the digest of these sources, each a folder with go.mod and go.sum."""
    sums = hashlib.sha256()
    for room in rooms:
        for name in ("go.mod", "go.sum"):
            sums.update((room / name).read_bytes())
    return sums.hexdigest()[:12]


def built(target: Path, build: Callable[[Path], None]) -> Path:
    """Build in a temporary folder and rename it: the final name never has a partial build."""
    if target.is_dir():
        return target
    if shutil.which("go") is None:
        raise NoProgramError(f"{target.parent.name} is missing, and there is no Go to build it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one_builder(target):
        if not target.is_dir():  # another process may have built it while we waited
            unfinished = f".building-{target.name}."
            for left in target.parent.glob(f"{glob.escape(unfinished)}*"):  # of a killed build: we have its lock
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=unfinished) as folder:
                half_built = Path(folder) / "bin"
                build(half_built)
                half_built.rename(target)
    return target


@contextmanager
def _only_one_builder(target: Path) -> Iterator[None]:
    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def go_build(room: Path, out: Path, ldflags: str, packages: Sequence[str], tags: str = "") -> None:
    """Build with the modules pinned by the folder's go.mod and go.sum, without cgo. Raises ProgramError."""
    out.mkdir(exist_ok=True)
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    command = ["go", "build", "-trimpath", "-tags", tags, "-ldflags", ldflags, "-o", f"{out}/", *packages]
    done = subprocess.run(command, cwd=room, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProgramError(f"go build of {room.name} failed:\n{done.stderr[-4000:]}")
