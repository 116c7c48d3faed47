"""Write the archives of all platforms and their manifest.

SOURCE_DATE_EPOCH sets the time of all files in an archive.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from pathlib import Path

import yaml

import healthcheck
from tools.krew import archive, dependencies, manifest
from tools.krew.platforms import PLATFORMS, Platform

_ROOT = Path(__file__).parents[2]
_EARLIEST_EPOCH = 315532800
"""Default time of the files, 1980, as in the wheels."""


def main() -> None:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [
        platform
        for platform in PLATFORMS
        if not options.platform or f"{platform.os}/{platform.arch}" in options.platform
    ]
    checksums = {platform: _build(platform, options.wheel, options.out) for platform in chosen}
    written = manifest.manifest(healthcheck.__version__, options.homepage, options.url, checksums)
    (options.out / "gpu-healthcheck.yaml").write_text(yaml.safe_dump(written, sort_keys=False, width=1000))


def _build(platform: Platform, wheel: Path, out: Path) -> str:
    """Build the archive of a platform and return its checksum."""
    target = out / platform.archive(healthcheck.__version__)
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-krew-") as folder:
        wheels = dependencies.download(platform, _ROOT / "requirements/product.txt", Path(folder))
        held = archive.files([wheel, *wheels], Path(__file__).with_name(archive.PROGRAM), _ROOT / "LICENSE")
    archive.write(target, held, int(os.environ.get("SOURCE_DATE_EPOCH", _EARLIEST_EPOCH)))
    return hashlib.sha256(target.read_bytes()).hexdigest()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.krew", description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--url", required=True, help="the folder that will hold the archives")
    parser.add_argument("--homepage", required=True)
    names = [f"{platform.os}/{platform.arch}" for platform in PLATFORMS]
    parser.add_argument("--platform", action="append", choices=names, help="only this one; may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    main()
