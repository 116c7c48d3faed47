"""Files of a release, each image by its digest: chart, manifests, packages, notes, checksums."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tools.go_programs import helm
from tools.release import packages
from tools.release.check import section
from tools.release.origin import Origin, ReleaseError, run

NOTES, CHECKSUMS = "notes.md", "checksums.txt"
_CHART = Path("charts/gpu-healthcheck")
_BY_DIGEST = re.compile(r".+@sha256:[0-9a-f]{64}\Z")


def write_all(made_from: Origin, tree: Path, repository: str, full: str, slim: str, out: Path) -> None:
    """Write all files of a release from the tree. `full` and `slim`: digests of the images."""
    package_chart(tree, out, repository, full, slim, made_from.epoch)
    packages.build(tree, out, made_from.epoch)
    packages.for_krew(tree, out, made_from)
    (out / "install.yaml").write_text(install_file(tree, f"{repository}@{full}"))
    (out / NOTES).write_text(section((tree / "CHANGELOG.md").read_text(), made_from.version))
    write_checksums(out)


def package_chart(tree: Path, out: Path, repository: str, full: str, slim: str, epoch: int) -> None:
    """Package the chart; its values name the images by digest, so that an installation needs no `--set`."""
    with tempfile.TemporaryDirectory() as folder:
        chart = shutil.copytree(tree / _CHART, Path(folder) / _CHART.name)
        values = chart / "values.yaml"
        values.write_text(values_by_digest(values.read_text(), repository, full, slim))
        run([str(helm.program()), "package", str(chart), f"--destination={out}"])
    (packed,) = out.glob("*.tgz")
    packages.even_out(packed, epoch)


def values_by_digest(values: str, repository: str, full: str, slim: str) -> str:
    """Return values.yaml with repository and digests filled in; pure. Raises ReleaseError if a line is missing."""
    for key, old, new in (
        ("image", "  repository: gpu-healthcheck\n", f"  repository: {repository}\n"),
        ("image", "  digest: ''\n", f"  digest: {full}\n"),
        ("slim", "  digest: ''\n", f"  digest: {slim}\n"),
    ):
        head, found, block = f"\n{values}".partition(f"\n{key}:\n")
        if not found or old not in block:
            raise ReleaseError(f"the chart's values have no `{old.strip()}` below `{key}`")
        values = f"{head}{found}{block.replace(old, new, 1)}".removeprefix("\n")
    return values


def install_file(tree: Path, reference: str) -> str:
    """Return the manifests of the tree as one file. Raises ReleaseError if a container has another image."""
    text = f"{run([sys.executable, '-m', 'tools.install_yaml', reference], folder=tree)}\n"
    if other := other_images(text, reference):
        raise ReleaseError(f"these images differ from the image of the release: {', '.join(sorted(other))}")
    return text


def other_images(text: str, reference: str) -> set[str]:
    """Return the images of containers other than this reference; pure."""
    found = {image for document in yaml.safe_load_all(text) for image in _images(document)}
    return found - {reference} if _BY_DIGEST.match(reference) else found


def _images(value: Any) -> set[str]:
    """Return the images of all containers in the object."""
    if isinstance(value, list):
        return {image for entry in value for image in _images(entry)}
    if not isinstance(value, dict):
        return set()
    found = {image for entry in value.values() for image in _images(entry)}
    return found | {value["image"]} if isinstance(value.get("image"), str) else found


def write_checksums(folder: Path) -> Path:
    """Write the checksums of all files in the format of `sha256sum --check`."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != CHECKSUMS)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    checksums = folder / CHECKSUMS
    checksums.write_text("".join(lines))
    return checksums
