"""The driver's libraries for DCGM in this container, which the container toolkit did not mount."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from healthcheck.host.opening import names_in
from healthcheck.probes.nvml.library import places_by_version, resolve_inside

_LIBRARY = re.compile(r"lib(?:cuda|nvidia-[a-z0-9-]{1,40})\.so\.[0-9.]{1,20}\Z", re.ASCII)
_MOST_LIBRARIES = 512
"""Most libraries of one folder; a driver has about a hundred."""


def link_libraries(root: Path, folder: Path) -> None:
    """Link the host's libraries of the driver into this folder: the host's own folders also have its C library.

    What leads to no regular file is left out: a link in a circle or to nothing, a folder, a pipe that would block the
    loader. Raises OSError if the folder can't be written.
    """
    base = str(root).rstrip("/")
    for place in places_by_version(base):
        try:
            names = [name for name in names_in(resolve_inside(base, place)) if _LIBRARY.match(name)]
        except OSError:
            continue
        for name in names[:_MOST_LIBRARIES]:
            link, file = folder / name, None
            with suppress(OSError):
                file = Path(resolve_inside(base, f"{place}/{name}"))
            if file is not None and file.is_file() and not link.is_symlink():
                link.symlink_to(file)
