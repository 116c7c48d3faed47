"""Programs that sign, list and join images: built once from the modules that each go.mod and go.sum pins."""

from __future__ import annotations

import sys
from pathlib import Path

from go_programs.build import built, digest, go_build, home_of

_PACKAGES = {
    "cosign": "github.com/sigstore/cosign/v2/cmd/cosign",
    "crane": "github.com/google/go-containerregistry/cmd/crane",
    "syft": "github.com/anchore/syft/cmd/syft",
}


def program(name: str) -> str:
    """Return the program's path, and build it if necessary. Raises NoProgramError without Go."""
    room = Path(__file__).parent / name

    def build(folder: Path) -> None:
        print(f"building {name}, once: some minutes", file=sys.stderr, flush=True)  # noqa: T201
        go_build(room, folder, "-s -w", [_PACKAGES[name]])

    return str(built(home_of(name) / digest(room), build) / name)
