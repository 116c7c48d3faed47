"""Source of a release: one commit, with the commit time in place of the clock; and programs that read it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

REPOSITORY = Path(__file__).parents[2]
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


class ReleaseError(Exception):
    """A step of a release failed; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a release: its commit, time and version."""

    version: str
    revision: str
    epoch: int
    source: str = ""
    """URL of the repository; empty if not given."""


def origin(source: str = "") -> Origin:
    """Return the origin of the checked-out commit. Raises ReleaseError."""
    revision, epoch = run(["git", "log", "-1", "--format=%H %ct"], folder=REPOSITORY).split()
    return Origin(version_of(REPOSITORY), revision, int(epoch), source)


def version_of(tree: Path) -> str:
    found = _VERSION.search((tree / "healthcheck/__init__.py").read_text())
    if found is None:
        raise ReleaseError("healthcheck/__init__.py has no version")
    return found[1]


@contextmanager
def exported(revision: str) -> Iterator[Path]:
    """Provide the files of the commit, without others, with modes independent of the umask."""
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-sources-") as folder:
        tar, tree = Path(folder) / "sources.tar", Path(folder) / "sources"
        tree.mkdir()
        run(["git", "-c", "tar.umask=0022", "archive", f"--output={tar}", revision], folder=REPOSITORY)
        run(["tar", "--extract", "--same-permissions", "--no-same-owner", f"--directory={tree}", f"--file={tar}"])
        yield tree


def run(words: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Return the output of a program. Raises ReleaseError."""
    try:
        done = subprocess.run(  # noqa: S603 - our own words; no shell
            words,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise ReleaseError(f"cannot start `{words[0]}`: {error.strerror}") from error
    if done.returncode != 0:
        message = f"{done.stdout}\n{done.stderr}".strip()[-3000:]
        raise ReleaseError(f"`{shlex.join(words)}` failed:\n{message}")
    return done.stdout.strip()
