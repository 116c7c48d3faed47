"""Publish a version whose images are in the registry: indexes, provenance, signatures, chart, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from release import assets, chart, manifests, packages, signing
from release.bases import bases
from release.built import Built
from release.changelog import section
from release.image import FULL, SLIM, TARGETS, tag
from release.origin import Origin
from release.provenance import Builder, predicate
from release.registry import Registry, join
from release.running import ReleaseError
from release.signing import PROVENANCE, SBOM, Signer

NOTES = "notes.md"


@dataclass(frozen=True, slots=True)
class Release:
    """One release: its source, registry and signer."""

    made_from: Origin
    tree: Path
    registry: Registry
    signer: Signer
    builder: Builder

    def reference(self, digest: str) -> str:
        return f"{self.registry.repository}@{digest}"


def publish(release: Release, built: Sequence[Built], out: Path) -> dict[str, str]:
    """Publish everything, with its files in that folder; return the digests of the installable parts by reference."""
    version = release.made_from.version
    images = {target: _image(release, target, [one for one in built if one.target == target]) for target in TARGETS}
    archive = chart.package(release.tree, out, release.registry, images[FULL], images[SLIM])
    pushed = chart.push(archive, release.registry, version)
    signing.sign(release.signer, f"{release.registry.charts}/gpu-healthcheck@{pushed}")
    packages.build(release.tree, out, release.made_from.epoch)
    packages.for_krew(release.tree, out, release.made_from)
    (out / "install.yaml").write_text(manifests.install_file(release.tree, release.reference(images[FULL])))
    (out / NOTES).write_text(section((release.tree / "CHANGELOG.md").read_text(), version))
    for one in built:
        (out / one.sbom.name).write_bytes(one.sbom.read_bytes())
    signing.sign_file(release.signer, assets.write_checksums(out))
    return {
        **{f"{release.registry.repository}:{tag(version, target)}": digest for target, digest in images.items()},
        f"{release.registry.charts}/gpu-healthcheck:{version}": pushed,
    }


def _image(release: Release, target: str, parts: Sequence[Built]) -> str:
    """Sign the index with its images, and attest SBOM and provenance of each architecture's image."""
    if not parts:
        raise ReleaseError(f"there is no built image of the target {target}")
    known = bases((release.tree / "Dockerfile").read_text())
    for part in parts:
        reference = release.reference(part.digest)
        signing.attest(release.signer, reference, SBOM, part.sbom)
        signing.attest(
            release.signer, reference, PROVENANCE, predicate(release.made_from, target, known, release.builder)
        )
    index = join(release.registry, [part.digest for part in parts], tag(release.made_from.version, target))
    signing.sign(release.signer, release.reference(index))
    return index


def verify(release: Release, built: Sequence[Built], published: Mapping[str, str], out: Path) -> None:
    """Verify as any user with the public key, or the workflow's name, can. Raises ReleaseError."""
    for reference, digest in published.items():
        signing.verify(release.signer, f"{reference.rpartition(':')[0]}@{digest}")
    for one in built:
        signing.verify(release.signer, release.reference(one.digest))
        for kind in (SBOM, PROVENANCE):
            signing.verify_attestation(release.signer, release.reference(one.digest), kind)
    signing.verify_file(release.signer, out / assets.CHECKSUMS)
