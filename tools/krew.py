"""The commands for krew: one archive per platform that needs no installation, and the manifest of the archives.

An archive has our packages and their dependencies in one folder, with the compiled modules of each Python: a compiled
module has its Python's version in its name. SOURCE_DATE_EPOCH sets the time of all files in an archive.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any
from zipfile import ZipFile

import yaml

from gpu_healthcheck import healthcheck
from tools.release.packages import reproducible_archive

_ROOT = Path(__file__).parents[1]
_EARLIEST_EPOCH = 315532800
"""Default time of the files, 1980, as in the wheels."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True, slots=True)
class Platform:
    """Platform: `os` and `arch` of krew's selectors, `tags` of wheels (PyPA's platform compatibility tags)."""

    os: str
    arch: str
    tags: tuple[str, ...]

    def archive(self, version: str) -> str:
        return f"gpu-healthcheck_v{version}_{self.os}_{self.arch}.tar.gz"


PLATFORMS = (
    Platform("linux", "amd64", ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")),
    Platform("linux", "arm64", ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")),
    Platform("darwin", "amd64", ("macosx_11_0_x86_64", "macosx_10_13_x86_64", "macosx_10_12_x86_64")),
    Platform("darwin", "arm64", ("macosx_11_0_arm64",)),
)

PROGRAM = "kubectl-gpu_healthcheck"
LAUNCHER = Path(__file__).with_name(PROGRAM)
_MAIN = f"""\
import sys

sys.argv[0] = {PROGRAM!r}
from gpu_healthcheck.cli.__main__ import main

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
                yield name, zipped.read(name)


def _is_wanted(name: str) -> bool:
    top, _, rest = name.partition("/")
    if top.endswith(".data") or name.startswith("kubernetes/aio/"):
        return False
    if top.endswith(".dist-info"):
        return not rest.startswith(_OF_ONE_WHEEL)
    return not name.startswith(_GENERATED) or name.endswith("/__init__.py")


def write(archive: Path, held: Mapping[str, bytes], epoch: int) -> None:
    """Write the archive: equal files give equal bytes, independent of machine and time."""
    with reproducible_archive(archive, epoch) as tar:
        for name, content in sorted(held.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, 0o755 if name == PROGRAM else 0o644
            tar.addfile(member, io.BytesIO(content))


LEFT_OUT = frozenset(
    {"aiohappyeyeballs", "aiohttp", "aiohttp-retry", "aiosignal", "frozenlist", "multidict", "propcache", "yarl"}
    | {"grpcio", "protobuf"}
)
"""Packages omitted from the archive. As in the image, only the client's asynchronous variant needs the first set; only
checks of the local container runtime need the second, which is larger than all other packages together."""
_PACKAGE = re.compile(r"^[\w-].*?(?=^[\w-]|\Z)", re.MULTILINE | re.DOTALL)


def wanted(locked: str) -> str:
    """Return the lock file without the omitted packages."""
    return "".join(entry for entry in _PACKAGE.findall(locked) if entry.partition("==")[0] not in LEFT_OUT)


def download(platform: Platform, lock: Path, folder: Path) -> list[Path]:
    """Download the wheels for all Pythons and return them; a wheel that fits several is listed once."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(wanted(lock.read_text()))
        requirements.flush()
        for python in PYTHONS:
            subprocess.run(_pip(platform, python, Path(requirements.name), folder), check=True)  # noqa: S603 - no shell
    return sorted(folder.glob("*.whl"))


def _pip(platform: Platform, python: str, requirements: Path, folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"),
        *("--only-binary", ":all:", "--require-hashes", "--requirement", str(requirements), "--dest", str(folder)),
        *("--implementation", "cp", "--python-version", python),
        *(word for tag in platform.tags for word in ("--platform", tag)),
    ]


def manifest(version: str, homepage: str, url: str, checksums: Mapping[Platform, str]) -> dict[str, Any]:
    """Return the manifest. `url`: the folder of the archives; `checksums`: the SHA-256 of each, in hex."""
    template = Template(Path(__file__).with_name("krew.yaml").read_text())
    written: dict[str, Any] = yaml.safe_load(template.substitute(VERSION=version, HOMEPAGE=homepage))
    written["spec"]["platforms"] = [
        _platform(platform, version, url, checksum) for platform, checksum in checksums.items()
    ]
    return written


def _platform(platform: Platform, version: str, url: str, checksum: str) -> dict[str, Any]:
    return {
        "selector": {"matchLabels": {"os": platform.os, "arch": platform.arch}},
        "uri": f"{url.rstrip('/')}/{platform.archive(version)}",
        "sha256": checksum,
        "bin": PROGRAM,
    }


def main() -> None:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [
        platform
        for platform in PLATFORMS
        if not options.platform or f"{platform.os}/{platform.arch}" in options.platform
    ]
    checksums = {platform: _build(platform, options.wheel, options.out) for platform in chosen}
    written = manifest(healthcheck.__version__, options.homepage, options.url, checksums)
    (options.out / "gpu-healthcheck.yaml").write_text(yaml.safe_dump(written, sort_keys=False, width=1000))


def _build(platform: Platform, wheel: Path, out: Path) -> str:
    """Build the archive of a platform and return its checksum."""
    target = out / platform.archive(healthcheck.__version__)
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-krew-") as folder:
        wheels = download(platform, _ROOT / "requirements/product.txt", Path(folder))
        held = files([wheel, *wheels], LAUNCHER, _ROOT / "LICENSE")
    write(target, held, int(os.environ.get("SOURCE_DATE_EPOCH", _EARLIEST_EPOCH)))
    return hashlib.sha256(target.read_bytes()).hexdigest()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.krew", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--url", required=True, help="the folder that will hold the archives")
    parser.add_argument("--homepage", required=True)
    names = [f"{platform.os}/{platform.arch}" for platform in PLATFORMS]
    parser.add_argument("--platform", action="append", choices=names, help="only this one; may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    main()
