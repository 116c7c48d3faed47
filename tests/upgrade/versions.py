"""The two versions: each a checkout with an environment of its own."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.compare import checkout

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(__file__).parents[2]


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
    with checkout(commit) as root:
        yield Version(commit, root, root / ".venv/bin/python")
