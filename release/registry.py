"""Registry of a release: images by architecture, and one index of them under the version's tag."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from release.image import Buildah
from release.programs import program
from release.running import run


@dataclass(frozen=True, slots=True)
class Registry:
    """Registry that images are pushed to."""

    repository: str
    """Repository, as ghcr.io/OWNER/gpu-healthcheck; the chart is in `charts/` next to it."""
    plain_http: bool = False
    """Whether to use HTTP; only for a registry on loopback."""

    @property
    def charts(self) -> str:
        return f"{self.repository.rpartition('/')[0]}/charts"


def push(buildah: Buildah, name: str, registry: Registry, tag: str) -> str:
    """Push an image and return its digest in the registry."""
    with tempfile.TemporaryDirectory() as folder:
        digest = Path(folder) / "digest"
        words = (
            "--quiet",
            "--format=oci",
            f"--digestfile={digest}",
            f"--tls-verify={str(not registry.plain_http).lower()}",
        )
        buildah("push", *words, name, f"docker://{registry.repository}:{tag}")
        return digest.read_text().strip()


def join(registry: Registry, digests: Sequence[str], tag: str) -> str:
    """Create an index of the images under the tag, and return its digest."""
    parts = [word for digest in digests for word in ("--manifest", f"{registry.repository}@{digest}")]
    run([program("crane"), "index", "append", *parts, "--tag", f"{registry.repository}:{tag}"])
    return resolve(f"{registry.repository}:{tag}")


def resolve(image: str) -> str:
    """Return the current digest of a tag, which is the index's if there is one."""
    return run([program("crane"), "digest", image])
