"""The images that our Dockerfile builds on, read from its arguments; pure."""

from __future__ import annotations

import re

_FROM = re.compile(r"^FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.MULTILINE | re.IGNORECASE)
_ARG = re.compile(r"^ARG\s+(\w+)=(\S+)\s*$", re.MULTILINE | re.IGNORECASE)
_COPIED = re.compile(r"^(?:COPY|ADD)\s+(?:--\S+\s+)*?--from=(\S+)", re.MULTILINE | re.IGNORECASE)
_NAMED = re.compile(r"\$(?:(\w+)|\{(\w+)\})\Z")
_PINNED = re.compile(r".+@sha256:[0-9a-f]{64}\Z")


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
