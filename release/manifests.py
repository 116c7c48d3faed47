"""All our objects in one file, every image by its digest."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from release.running import ReleaseError, run

_BY_DIGEST = re.compile(r".+@sha256:[0-9a-f]{64}\Z")


def install_file(tree: Path, reference: str) -> str:
    """Of that tree. Raises ReleaseError where something in it would run another image."""
    text = f"{run([sys.executable, '-m', 'tools.install_yaml', reference], folder=tree)}\n"
    if other := others(text, reference):
        raise ReleaseError(f"these images are not the one of the release: {', '.join(sorted(other))}")
    return text


def others(text: str, reference: str) -> set[str]:
    """The images of containers that are not this one by its digest; pure."""
    found = {image for document in yaml.safe_load_all(text) for image in _images(document)}
    return found - {reference} if _BY_DIGEST.match(reference) else found


def _images(value: Any) -> set[str]:
    """Of all containers below it."""
    if isinstance(value, list):
        return {image for entry in value for image in _images(entry)}
    if not isinstance(value, dict):
        return set()
    found = {image for entry in value.values() for image in _images(entry)}
    return found | {value["image"]} if isinstance(value.get("image"), str) else found
