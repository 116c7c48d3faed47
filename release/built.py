"""Build and push one image of one architecture, list its content, and write the file for the next job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from release import image, registry, sbom
from release.image import Buildah
from release.origin import Origin
from release.registry import Registry
from release.running import ReleaseError


@dataclass(frozen=True, slots=True)
class Built:
    """One built image with its digest."""

    target: str
    digest: str
    sbom: Path


@dataclass(frozen=True, slots=True)
class Place:
    """Environment of a build: builder, additional arguments, and this machine's architecture."""

    buildah: Buildah
    words: Sequence[str]
    architecture: str


def build(place: Place, target: str, made_from: Origin, tree: Path, to: Registry, out: Path) -> Built:
    stem = f"{target}-{place.architecture}"
    image.build(place.buildah, image.NAME, [*image.build_arguments(target, made_from), *place.words], tree)
    digest = registry.push(
        place.buildah, image.NAME, to, f"{image.tag(made_from.version, target)}-{place.architecture}"
    )
    place.buildah("rmi", image.NAME)
    listed = out / f"sbom-{stem}.spdx.json"
    sbom.write(to, digest, made_from.version, listed)
    (out / f"image-{stem}.json").write_text(json.dumps({"target": target, "digest": digest, "sbom": listed.name}))
    return Built(target, digest, listed)


def read(folder: Path) -> list[Built]:
    """Return the images that other jobs built. Raises ReleaseError if there are none."""
    found = [json.loads(file.read_text()) for file in sorted(folder.rglob("image-*.json"))]
    if not found:
        raise ReleaseError(f"{folder} contains no description of an image")
    return [Built(entry["target"], entry["digest"], _within(folder, entry["sbom"])) for entry in found]


def _within(folder: Path, name: str) -> Path:
    (file,) = folder.rglob(name)
    return file
