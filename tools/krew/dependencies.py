"""PyPI dependencies of the commands, as wheels of one platform; exactly the locked versions with their hashes."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.krew.platforms import PYTHONS, Platform

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
