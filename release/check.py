"""Conditions that must hold before a version is built; pure."""

from __future__ import annotations

import re
from pathlib import Path

from release.bases import bases, unnamed, unpinned
from release.changelog import UNRELEASED, has_unreleased, section
from release.origin import version_of
from release.running import ReleaseError

VERSION = re.compile(r"\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?\Z")


def refusals(tree: Path, tag: str) -> list[str]:
    """Return the reasons why the sources cannot be released under the tag, one line each."""
    version = version_of(tree)
    dockerfile = (tree / "Dockerfile").read_text()
    found = [f"{name}={image} has no digest: `make pin-bases`" for name, image in unpinned(dockerfile).items()]
    found += [f"the Dockerfile names {image} directly instead of by an argument" for image in unnamed(dockerfile)]
    if not bases(dockerfile):
        found.append("the Dockerfile names no base by an argument")
    if not VERSION.match(version):
        found.append(f"{version} is not a version such as 1.2.3 or 1.2.3-rc.1")
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, but the sources have v{version} (healthcheck/__init__.py)")
    changelog = (tree / "CHANGELOG.md").read_text()
    if has_unreleased(changelog):
        found.append(f"CHANGELOG.md has entries below `## {UNRELEASED}`: move them to the section of {version}")
    try:
        section(changelog, version)
    except ReleaseError as error:
        found.append(str(error))
    return found
