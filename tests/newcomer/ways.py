"""The ways to install, change and go back."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_healthcheck.sim.real_node.images import OURS, REPOSITORY
from tools.install_yaml import install_yaml

if TYPE_CHECKING:
    from pathlib import Path

README, INSTALL, RUNBOOK = "README.md", "docs/install.md", "docs/runbook.md"
ALERTS, FINDINGS, UNINSTALL = "docs/alerts.md", "docs/findings.md", "docs/uninstall.md"
CHART = "charts/gpu-healthcheck/README.md"
REGISTRY = OURS.rpartition("/")[0]
CHANGED = "120"
HELM_SETS = f" --set settings.CHECK_INTERVAL={CHANGED}"
_DATA = "data: {}", f'data: {{CHECK_INTERVAL: "{CHANGED}"}}'
_PATCH = f"""\
#  - target: {{kind: ConfigMap, name: gpu-healthcheck-config}}
#    patch: |
#      - {{op: add, path: /data/CHECK_INTERVAL, value: "{CHANGED}"}}
"""


@dataclass(frozen=True)
class Way:
    """A document, and the beginning of its command."""

    name: str
    install: tuple[str, str]
    upgrade: tuple[str, str]
    back: tuple[str, str]
    stop: tuple[str, str]
    """The first line of an uninstallation."""
    file: str = ""
    """File in which the setting is changed; empty: in the command."""
    unset: str = ""
    """Its text there without the setting."""
    changed: str = ""
    """The same with the setting."""
    prepare: tuple[str, str] | None = None
    """Writes the image into the manifests."""


_EXAMPLE = "kubernetes/overlays/example/kustomization.yaml"
_STOP = (UNINSTALL, "kubectl delete daemonsets")
_MANIFESTS = (README, "kubectl apply -f kubernetes/manifests/")
_KUSTOMIZE, _FILE = (
    (INSTALL, "kubectl apply -k kubernetes/overlays/example"),
    (INSTALL, "kubectl apply -f install.yaml"),
)
WAYS = (
    Way(
        "helm",
        (README, "helm install"),
        (INSTALL, "helm upgrade"),
        (INSTALL, "helm rollback"),
        (UNINSTALL, "helm uninstall"),
    ),
    Way(
        "manifests",
        _MANIFESTS,
        _MANIFESTS,
        _MANIFESTS,
        _STOP,
        "kubernetes/manifests/03-config.yaml",
        *_DATA,
        prepare=(README, "sed -i"),
    ),
    Way("kustomize", _KUSTOMIZE, _KUSTOMIZE, _KUSTOMIZE, _STOP, _EXAMPLE, _PATCH, _PATCH.replace("#", "")),
    Way("install.yaml", _FILE, _FILE, _FILE, _STOP, "install.yaml", *_DATA),
)


def lay_out(folder: Path) -> None:
    """Create a checkout with a user's registry, and a release's single file."""
    for name in ("charts", "kubernetes"):
        shutil.copytree(REPOSITORY / name, folder / name)
    example = folder / _EXAMPLE
    example.write_text(example.read_text().replace("registry.example.com", REGISTRY))
    (folder / "install.yaml").write_text(install_yaml(OURS))
