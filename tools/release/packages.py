"""The wheel, the source archive and the plugin's archives for krew, bit-identical for one commit."""

from __future__ import annotations

import gzip
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.release.origin import Origin, run

_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def build(tree: Path, out: Path, epoch: int) -> list[Path]:
    """Build the wheel and the source archive with the locked setuptools of this environment."""
    time = {"SOURCE_DATE_EPOCH": str(epoch)}
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-cache-dir")
    run([*pip, "--no-index", "--no-deps", "--no-build-isolation", f"--wheel-dir={out}", str(tree)], time)
    run([sys.executable, "-c", _SDIST, str(out)], time, folder=tree)
    (sdist,) = out.glob("*.tar.gz")
    even_out(sdist, epoch)
    return sorted(out.iterdir())


def for_krew(tree: Path, out: Path, made_from: Origin) -> None:
    """Build the krew archive of each platform from the wheel, and the manifest with their checksums."""
    (wheel,) = out.glob("*.whl")
    files = f"{made_from.source}/releases/download/v{made_from.version}"
    words = (f"--wheel={wheel}", f"--out={out}", f"--url={files}", f"--homepage={made_from.source}")
    time = {"SOURCE_DATE_EPOCH": str(made_from.epoch)}
    run([sys.executable, "-m", "tools.krew", *words], time, folder=tree)


def even_out(archive: Path, epoch: int) -> None:
    """Rewrite an archive in which setuptools or Helm stores the current time, the user's name and umask modes."""
    fresh = archive.with_suffix(".fresh")
    with tarfile.open(archive) as old, reproducible_archive(fresh, epoch) as new:
        for member in sorted(old.getmembers(), key=lambda tar_info: tar_info.name):
            if member.name.split("/")[1:2] == ["tests"]:
                continue  # setuptools adds tests/test_*.py without the modules that they import
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member))
    fresh.rename(archive)


@contextmanager
def reproducible_archive(path: Path, epoch: int) -> Iterator[tarfile.TarFile]:
    """Open a new archive whose own header depends on no clock and no name."""
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        yield tar
