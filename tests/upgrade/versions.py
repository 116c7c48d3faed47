"""The two versions: each a checkout with an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(__file__).parents[2]


class CouldNotTryError(Exception):
    """There is no such version here; the message says why."""


@dataclass(frozen=True)
class Version:
    """A checkout with the Python of its environment."""

    name: str
    root: Path
    python: Path

    @property
    def manifests(self) -> Path:
        return self.root / "kubernetes/manifests"

    def command(self, module: str, *words: str) -> list[str]:
        return [str(self.python), "-m", module, *words]


HERE = Version("this tree", ROOT, Path(sys.executable))


@contextmanager
def version_of(commit: str) -> Iterator[Version]:
    """Yield a second checkout, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-from-") as folder:
        root = Path(folder) / "from"
        _run("git", "worktree", "add", "--detach", str(root), commit)
        try:
            print(f"an environment for {commit}: make setup …", file=sys.stderr, flush=True)
            _run("make", "--directory", str(root), "setup")
            yield Version(commit, root, root / ".venv/bin/python")
        finally:
            _run("git", "worktree", "remove", "--force", str(root))


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CouldNotTryError(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
