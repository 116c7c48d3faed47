"""Start programs of a release; on failure their output is the error message."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class ReleaseError(Exception):
    """A step of a release failed; the message has the reason."""


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
