"""Our overlays as used by `kubectl -k`: alone, and components in a user's folder."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from gpu_healthcheck.sim.control_plane import MANIFESTS

OVERLAYS = MANIFESTS.parent / "overlays"


def folder_of(overlay: str, folder: Path) -> str:
    """The overlay; of a component the manifests with it alone, written into this folder."""
    kind = yaml.safe_load((OVERLAYS / overlay / "kustomization.yaml").read_text())["kind"]
    return over_the_manifests(overlay, folder) if kind == "Component" else str(OVERLAYS / overlay)


def over_the_manifests(component: str, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    # Kustomize takes no absolute paths.
    base, named = (os.path.relpath(path, folder.resolve()) for path in (MANIFESTS, OVERLAYS / component))
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": [base], "components": [named]}))
    return str(folder)
