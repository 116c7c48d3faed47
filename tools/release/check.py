"""Conditions that must hold before a version is built, such as pinned base images in the Dockerfile; pure."""

from __future__ import annotations

import re
from pathlib import Path

from tools.release.origin import ReleaseError, version_of

VERSION = re.compile(r"\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?\Z")
_UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## \[?(?P<version>[^\]\s]+)\]?.*$", re.MULTILINE)

_FROM = re.compile(r"^FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.MULTILINE | re.IGNORECASE)
_ARG = re.compile(r"^ARG\s+(\w+)=(\S+)\s*$", re.MULTILINE | re.IGNORECASE)
_COPIED = re.compile(r"^(?:COPY|ADD)\s+(?:--\S+\s+)*?--from=(\S+)", re.MULTILINE | re.IGNORECASE)
_NAMED = re.compile(r"\$(?:(\w+)|\{(\w+)\})\Z")
_PINNED = re.compile(r".+@sha256:[0-9a-f]{64}\Z")


def refusals(tree: Path, tag: str) -> list[str]:
    """Return the reasons why the sources cannot be released under the tag, one line each."""
    version = version_of(tree)
    dockerfile = (tree / "Dockerfile").read_text()
    found = [f"{name}={image} has no digest: merge Renovate's proposal" for name, image in unpinned(dockerfile).items()]
    found += [f"the Dockerfile names {image} directly instead of by an argument" for image in unnamed(dockerfile)]
    if not bases(dockerfile):
        found.append("the Dockerfile names no base by an argument")
    if not VERSION.match(version):
        found.append(f"{version} is not a version such as 1.2.3 or 1.2.3-rc.1")
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, but the sources have v{version} (healthcheck/__init__.py)")
    sections = _sections((tree / "CHANGELOG.md").read_text())
    if sections.get(_UNRELEASED):
        found.append(f"CHANGELOG.md has entries below `## {_UNRELEASED}`: move them to the section of {version}")
    if not sections.get(version):
        found.append(_without_notes(version))
    return found


def section(changelog: str, version: str) -> str:
    """Return the text under a heading such as `## 0.1.0 - 2026-11-30`. Raises ReleaseError."""
    if text := _sections(changelog).get(version):
        return f"{text}\n"
    raise ReleaseError(_without_notes(version))


def _sections(changelog: str) -> dict[str, str]:
    headings = list(_HEADING.finditer(changelog))
    ends = [*(heading.start() for heading in headings[1:]), len(changelog)]
    texts = (changelog[heading.end() : end].strip() for heading, end in zip(headings, ends, strict=True))
    return {heading["version"]: text for heading, text in zip(headings, texts, strict=True)}


def _without_notes(version: str) -> str:
    return f"CHANGELOG.md has no text of {version}: rename `## {_UNRELEASED}` to `## {version} - DATE`"


def stages(dockerfile: str) -> list[str]:
    return [stage for _, stage in _FROM.findall(dockerfile) if stage]


def bases(dockerfile: str) -> dict[str, str]:
    """Return the base images of the Dockerfile by the argument that names each."""
    defaults = dict(_ARG.findall(dockerfile))
    named = (_NAMED.match(base) for base, _ in _FROM.findall(dockerfile))
    return {name: defaults[name] for found in named if found and (name := found[1] or found[2]) in defaults}


def unpinned(dockerfile: str) -> dict[str, str]:
    """Return the base images without a digest: their tag may move."""
    return {name: image for name, image in bases(dockerfile).items() if not _PINNED.match(image)}


def unnamed(dockerfile: str) -> list[str]:
    """Return images used directly in a FROM or a `--from`, which are neither pinned nor in the provenance."""
    known = {*stages(dockerfile), "scratch"}
    used = [*(base for base, _ in _FROM.findall(dockerfile)), *_COPIED.findall(dockerfile)]
    return [entry for entry in used if "$" not in entry and entry not in known]
