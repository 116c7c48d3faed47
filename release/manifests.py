"""All manifests in one file, with every image by its digest."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from release.running import ReleaseError, run

_BY_DIGEST = re.compile(r".+@sha256:[0-9a-f]{64}\Z")


def install_file(tree: Path, reference: str) -> str:
    """Return the manifests of the tree as one file. Raises ReleaseError if a container has another image."""
    text = f"{run([sys.executable, '-m', 'tools.install_yaml', reference], folder=tree)}\n"
    if other := others(text, reference):
        raise ReleaseError(f"these images differ from the image of the release: {', '.join(sorted(other))}")
    return text


def others(text: str, reference: str) -> set[str]:
    """Return the images of containers other than this reference; pure."""
    found = {image for document in yaml.safe_load_all(text) for image in _images(document)}
    return found - {reference} if _BY_DIGEST.match(reference) else found


def _images(value: Any) -> set[str]:
    """Return the images of all containers in the object."""
    if isinstance(value, list):
        return {image for entry in value for image in _images(entry)}
    if not isinstance(value, dict):
        return set()
    found = {image for entry in value.values() for image in _images(entry)}
    return found | {value["image"]} if isinstance(value.get("image"), str) else found
