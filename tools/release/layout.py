"""OCI layout of an image on disk: its digest, and the differing files of two builds."""

from __future__ import annotations

import hashlib
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Layout:
    """Image in the OCI layout format."""

    folder: Path

    @property
    def digest(self) -> str:
        """Return the digest of the manifest, which registries and signatures use."""
        (manifest,) = json.loads((self.folder / "index.json").read_text())["manifests"]
        return str(manifest["digest"])

    @property
    def manifest(self) -> Any:
        return json.loads(self.blob(self.digest).read_text())

    @property
    def layers(self) -> list[Path]:
        return [self.blob(layer["digest"]) for layer in self.manifest["layers"]]

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")


def differences(layout: Layout, other: Layout) -> list[str]:
    """Return one line per difference, for debugging; empty if the digests are equal."""
    if layout.digest == other.digest:
        return []
    messages = (
        [] if len(layout.layers) == len(other.layers) else [f"{len(layout.layers)} layers, {len(other.layers)} layers"]
    )
    for number, (first, second) in enumerate(zip(layout.layers, other.layers, strict=False), 1):
        if first.name != second.name:
            messages += [f"layer {number}: {name}" for name in _differing(_members(first), _members(second))]
    return messages or ["the configuration or the compression; the files are equal"]


def _differing(entry: dict[str, tuple[object, ...]], other: dict[str, tuple[object, ...]]) -> list[str]:
    return sorted(name for name in entry.keys() | other.keys() if entry.get(name) != other.get(name))


def _members(layer: Path) -> dict[str, tuple[object, ...]]:
    """Return, by name: kind, mode, owner, time, link target and content."""
    found: dict[str, tuple[object, ...]] = {}
    with tarfile.open(layer) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            message = hashlib.sha256(content.read()).hexdigest() if content else ""
            found[member.name] = (
                member.type,
                member.mode,
                member.uid,
                member.gid,
                member.mtime,
                member.linkname,
                message,
            )
    return found
