"""Source of the containerds: our cache, or one Go build each (about a minute on two cores, once)."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.go_programs.build import built, digest, go_build, home_of

RELEASES = {
    "1.7": "github.com/containerd/containerd/cmd/containerd",
    "2.2": "github.com/containerd/containerd/v2/cmd/containerd",
    "2.3": "github.com/containerd/containerd/v2/cmd/containerd",
    "2.4": "github.com/containerd/containerd/v2/cmd/containerd",
}
"""Releases whose loaders differ: 2.0 and 2.1 merge like 2.2, and only 2.3 refuses a drop-in above the first file."""
_ROOM = Path(__file__).parent
_TAGS = "no_aufs,no_btrfs,no_devmapper,no_zfs"
"""Snapshotters that need cgo or that no test uses."""


def program(release: str) -> Path:
    """Return the containerd of that release, and build it if necessary. Raises NoProgramError without Go."""
    room = _ROOM / release

    def build(folder: Path) -> None:
        print(f"building containerd {release} (once, takes one or two minutes)", file=sys.stderr, flush=True)
        go_build(room, folder, "-s -w", [RELEASES[release]], _TAGS)

    return built(home_of("containerd") / f"{release}-{digest(room)}", build) / "containerd"
