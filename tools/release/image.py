"""Our images, bit-identical for one commit: without clock, builder name or files outside the commit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.release.origin import Origin, run

SLIM, FULL = "slim", "full"
TARGETS = (FULL, SLIM)
"""Targets of our Dockerfile."""
NAME = "localhost/gpu-healthcheck-release"
"""Name of the built image in the builder's store."""
Buildah = Callable[..., str]
"""Function that runs buildah with these arguments and returns its output."""


def buildah(*words: str) -> str:
    return run(["buildah", *words])


def build_arguments(target: str, made_from: Origin) -> list[str]:
    """Return the arguments of `buildah build`; pure."""
    values = {
        "EFA_FROM": "aws",
        "VERSION": made_from.version,
        "REVISION": made_from.revision,
        "SOURCE": made_from.source,
        "SOURCE_DATE_EPOCH": made_from.epoch,
    }
    return [
        f"--target={target}",
        f"--timestamp={made_from.epoch}",  # time of the image, its history, and each file in its layers
        "--identity-label=false",  # buildah's own version
        "--format=oci",
        *(f"--build-arg={name}={value}" for name, value in values.items()),
    ]


def build(buildah: Buildah, name: str, words: Sequence[str], context: Path) -> None:
    """Build without a cache: cached layers may contain outdated packages."""
    buildah("build", "--quiet", "--no-cache", f"--tag={name}", *words, str(context))


def digest(buildah: Buildah, name: str) -> str:
    """Return the digest of the image's manifest, by which registries name it."""
    with tempfile.TemporaryDirectory() as folder:
        buildah("push", "--quiet", "--format=oci", name, f"oci:{folder}")
        (manifest,) = json.loads((Path(folder) / "index.json").read_text())["manifests"]
    return str(manifest["digest"])
