"""`python -m sim.release`: a complete release of the checked-out commit on this machine.

The steps are those of the workflow. A minimal Debian replaces both bases and AWS's installer, a registry on
loopback the real one, and a temporary key pair the workflow's identity. Never publish the result.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path

from go_programs.build import ProgramError
from release import built, signing
from release.__main__ import ARCHITECTURES
from release.changelog import section
from release.check import refusals
from release.image import TARGETS
from release.origin import REPOSITORY, Origin, exported, origin
from release.provenance import Builder
from release.publish import Release, publish, verify
from release.registry import Registry
from release.running import ReleaseError
from sim.real_node import images, needs
from sim.release import local_registry

OUT = REPOSITORY / "dist" / "dry-run"
SOURCE = "https://dry-run.invalid/gpu-healthcheck"
"""Repository that cannot be mistaken for a release."""
_UNRELEASED = re.compile(r"^## Unreleased$", re.MULTILINE)


def main() -> int:
    if reason := needs.missing():
        print(f"release-dry-run: {reason}", file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-release-") as folder:
            _rehearse(Path(folder))
    except (ReleaseError, ProgramError) as error:
        print(f"release-dry-run: {error}", file=sys.stderr)
        return 1
    return 0


def _rehearse(folder: Path) -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    made_from = origin(SOURCE)
    with exported(made_from.revision) as tree, local_registry.running(folder) as host:
        for line in refusals(tree, f"v{made_from.version}"):
            print(f"a real release would be rejected: {line}")
        changelog = tree / "CHANGELOG.md"
        changelog.write_text(named(changelog.read_text(), made_from.version))
        registry = Registry(f"{host}/gpu-healthcheck", plain_http=True)
        release = Release(made_from, tree, registry, signing.by_key(folder), Builder("urn:dry-run", "urn:dry-run"))
        parts = _images(made_from, tree, registry, folder)
        published = publish(release, parts, OUT)
        verify(release, parts, published, OUT)
        _refuse_another_key(published, folder)
    for reference, digest in published.items():
        print(f"signed and verified: {reference.partition('/')[2]}@{digest}")
    for file in sorted(OUT.iterdir()):
        print(f"{file.relative_to(REPOSITORY)}  {file.stat().st_size:,} bytes")


def _images(made_from: Origin, tree: Path, registry: Registry, folder: Path) -> list[built.Built]:
    found = []
    with images.on_stand_ins() as words:
        place = built.Place(images.buildah, words, ARCHITECTURES[platform.machine()])
        for target in TARGETS:
            print(f"building {target} for {place.architecture}, with a stand-in for its bases", flush=True)
            found.append(built.build(place, target, made_from, tree, registry, folder))
    return found


def named(changelog: str, version: str) -> str:
    """Return the changelog with a section of that version; the unreleased section becomes it if there is none."""
    try:
        section(changelog, version)
    except ReleaseError:
        return _UNRELEASED.sub(f"## {version}", changelog, count=1)
    return changelog


def _refuse_another_key(published: dict[str, str], folder: Path) -> None:
    """Check that the verification rejects another key."""
    (folder / "another").mkdir()
    another = signing.by_key(folder / "another")
    for reference, digest in published.items():
        try:
            signing.verify(another, f"{reference.rpartition(':')[0]}@{digest}")
        except ReleaseError:
            continue
        raise ReleaseError(f"the verification of {reference} accepts a key that did not sign it")


if __name__ == "__main__":
    sys.exit(main())
