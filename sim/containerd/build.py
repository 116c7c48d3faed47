"""Where they come from: our cache, or one Go build each (about a minute on two cores, once)."""

from __future__ import annotations

import sys
from pathlib import Path

from go_programs.build import built, digest, go_build, home_of

RELEASES = {
    "1.7": "github.com/containerd/containerd/cmd/containerd",
    "2.2": "github.com/containerd/containerd/v2/cmd/containerd",
    "2.4": "github.com/containerd/containerd/v2/cmd/containerd",
}
"""One of each way to put files together: 2.0 and 2.1 do it as 2.2 does, 2.3 as 2.4. Each has a go.mod of its own."""
_ROOM = Path(__file__).parent
_TAGS = "no_aufs,no_btrfs,no_devmapper,no_zfs"
"""Snapshotters that need cgo or that no test uses."""


def program(release: str) -> Path:
    """The containerd of that release, built first where need be. Raises NoProgramError where there is no Go either."""
    room = _ROOM / release

    def build(folder: Path) -> None:
        print(f"building containerd {release}, once: a minute or two", file=sys.stderr, flush=True)
        go_build(room, folder, "-s -w", [RELEASES[release]], _TAGS)

    return built(home_of("containerd") / f"{release}-{digest(room)}", build) / "containerd"
