"""One platform's archive: our packages and dependencies in one folder, with the compiled modules of each Python.

A compiled module has its Python's version in its name, so those of several versions fit in one folder.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from zipfile import ZipFile

PROGRAM = "kubectl-gpu_healthcheck"
_MAIN = f"""\
import sys

sys.argv[0] = {PROGRAM!r}
from cli.__main__ import main

main()
"""
_GENERATED = ("kubernetes/client/api/", "kubernetes/client/models/")
"""Generated classes that our programs do not load (docs/decisions/notes.md): 100 MB, omitted as in the image."""
_OF_ONE_WHEEL = ("RECORD", "WHEEL", "top_level.txt", "entry_points.txt", "sboms/")


class Clash(Exception):
    """Two wheels contain different files of the same name."""


def files(wheels: Iterable[Path], launcher: Path, license_text: Path) -> dict[str, bytes]:
    """Return the content of the archive by name. Raises Clash."""
    held = {PROGRAM: launcher.read_bytes(), "LICENSE": license_text.read_bytes(), "lib/__main__.py": _MAIN.encode()}
    for wheel in wheels:
        for name, content in _members(wheel):
            if held.setdefault(f"lib/{name}", content) != content:
                raise Clash(f"{wheel.name}: {name} differs from that of another wheel")
    return held


def _members(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with ZipFile(wheel) as zipped:
        for name in zipped.namelist():
            if not name.endswith("/") and _is_wanted(name):
                # Our packages are in the same folder as the others, because each is called by its own name.
                yield name.removeprefix("gpu_healthcheck/"), zipped.read(name)


def _is_wanted(name: str) -> bool:
    top, _, rest = name.partition("/")
    if top.endswith(".data") or name.startswith("kubernetes/aio/"):
        return False
    if top.endswith(".dist-info"):
        return not rest.startswith(_OF_ONE_WHEEL)
    return not name.startswith(_GENERATED) or name.endswith("/__init__.py")


def write(archive: Path, held: Mapping[str, bytes], epoch: int) -> None:
    """Write the archive: equal files give equal bytes, independent of machine and time."""
    with (
        archive.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, content in sorted(held.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, 0o755 if name == PROGRAM else 0o644
            tar.addfile(member, io.BytesIO(content))
