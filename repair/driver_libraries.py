"""The driver's libraries for DCGM in this container, which the container toolkit did not mount."""

from __future__ import annotations

import re
from pathlib import Path

from healthcheck.host.opening import names_in
from healthcheck.probes.nvml.library import places_by_version, resolve_inside

_LIBRARY = re.compile(r"lib(?:cuda|nvidia-[a-z0-9-]{1,40})\.so\.[0-9.]{1,20}\Z", re.ASCII)


def link_libraries(root: Path, folder: Path) -> None:
    """Link the host's libraries of the driver into this folder: the host's own folders also have its C library."""
    base = str(root).rstrip("/")
    for place in places_by_version(base):
        try:
            names = [name for name in names_in(resolve_inside(base, place)) if _LIBRARY.match(name)]
        except OSError:
            continue
        for name in names:
            link = folder / name
            if not link.is_symlink():
                link.symlink_to(resolve_inside(base, f"{place}/{name}"))
