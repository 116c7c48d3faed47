"""`dcgmi` that lies beside a proven engine, run with the engine's own libraries.

Client and engine of different versions can refuse each other (DCGM issue 314), so the engine's own client asks it. The
client runs in the engine's root as an unprivileged user: it only sends requests to the engine's port.

A program is run only from a root that no tenant controls: the host's, or that of the GPU operator's privileged engine.
Its file and all folders above it belong to root, and no other user can write to them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from healthcheck.host import host_files
from healthcheck.host.kernel_files import read
from healthcheck.model import ProbeError
from healthcheck.probes.container_runtime import processes
from healthcheck.probes.container_runtime.origins import Origin
from healthcheck.probes.dcgm.engine import Engine, find_engine

_USUAL = "/usr/bin/nv-hostengine"
"""Path of the engine's program in DCGM's packages and images."""
_CHROOT = ("chroot", "--userspec=+65534:+65534", "--groups=")
"""`+` marks numbers: chroot then searches no names, for which it would load libraries of that root as root."""
NOT_STARTED = (125, 126, 127)
"""Exit codes of chroot and of the dynamic loader for a program that did not start; dcgmi has none of them."""
_WRITABLE_BY_OTHERS, _EXECUTABLE, _SETS_IDS = 0o022, 0o111, stat.S_ISUID | stat.S_ISGID


@contextmanager
def own_dcgmi(root: Path, engine: Engine) -> Iterator[tuple[str, ...]]:
    """Yield the command line that runs the engine's own dcgmi; `()` if it has none that may be run.

    The engine's root stays open meanwhile, so another process with the same pid is never used.
    """
    with ExitStack() as opened:
        command: tuple[str, ...] = ()
        with suppress(OSError, ProbeError):
            command = _command(root, engine, opened) if engine.pid else ()
        yield command


def _command(root: Path, engine: Engine, opened: ExitStack) -> tuple[str, ...]:
    process = opened.enter_context(processes.opened(root, engine.pid))
    # The engine is proven by its pid. The open folder shows the same process until its end, so a process that is alive
    # after the proof is the proven one.
    found = processes.find(root)
    if find_engine(root, found) != engine:
        return ()
    proven = next(known for known in found.engines if known.pid == engine.pid)
    top = root if proven.origin is Origin.HOST else _root_of_container(root, proven, process, opened)
    read("stat", 1, process)  # raises OSError if the process has ended
    if top is None:
        return ()
    owner = (root / "proc/1").stat().st_uid  # root's number, as this tree shows it
    for beside in dict.fromkeys((proven.program or _USUAL, _USUAL)):
        path = host_files.resolve(top, f"{beside.rpartition('/')[0]}/dcgmi")
        if _is_roots_program(top, path, owner):
            return (*_CHROOT, str(top), path)
    return ()


def _root_of_container(root: Path, proven: processes.Process, process: int, opened: ExitStack) -> Path | None:
    """Return the root of the operator's engine, held open; None unless the engine runs as the host's root."""
    if not processes.runs_as_root(process, root / "proc/1"):
        return None
    is_link = stat.S_ISLNK(os.stat("root", dir_fd=process, follow_symlinks=False).st_mode)
    if is_link and processes.root_of(root, proven) == root:  # a file of a captured tree, which leads anywhere
        return None
    top = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    opened.callback(os.close, top)
    return Path(f"/proc/{os.getpid()}/fd/{top}")


def _is_roots_program(top: Path, path: str, owner: int) -> bool:
    """Whether this program exists, only root can have written it, and it changes no user ID."""
    base = str(top).rstrip("/")
    parts = path.strip("/").split("/")
    folders = ("/".join(("", *parts[:depth], "")) for depth in range(len(parts)))
    try:
        program, above = os.lstat(f"{base}{path}"), [os.stat(f"{base}{folder}") for folder in folders]  # noqa: PTH116
    except OSError:
        return False
    mode = program.st_mode
    return (
        stat.S_ISREG(mode)
        and bool(mode & _EXECUTABLE)
        and not mode & _SETS_IDS
        and all(part.st_uid == owner and not part.st_mode & _WRITABLE_BY_OTHERS for part in (program, *above))
    )
