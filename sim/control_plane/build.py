"""Source of the programs: setup-envtest's assets, our cache, or one Go build each for plane and kubelet."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from pathlib import Path

from tools.go_programs.build import NoProgramError, ProgramError, built, digest, go_build, home_of

REQUIRED = ("etcd", "kube-apiserver", "kubectl")
"""Programs that setup-envtest installs; controller-manager and scheduler are not among them."""

_ROOM = Path(__file__).parent
_MODULES = {
    "etcd": ("go.etcd.io/etcd/server/v3",),
    "kubernetes": (
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-scheduler",
        "k8s.io/kubernetes/cmd/kubectl",
    ),
}
_KUBERNETES = _ROOM / "kubernetes"
_KUBELET = "k8s.io/kubernetes/cmd/kubelet"
"""Built in a separate folder: tests without a real node do not wait for it."""


class ControlPlaneError(ProgramError):
    """The control plane cannot be started or queried; the message has the reason."""


def kubernetes_version(room: Path = _KUBERNETES) -> str:
    """Return the version that the go.mod pins, such as 1.36.3."""
    found = re.search(r"k8s\.io/kubernetes v(\S+)", (room / "go.mod").read_text())
    if found is None:
        raise ControlPlaneError(f"{room / 'go.mod'} requires no k8s.io/kubernetes")
    return found[1]


def cache_folder(programs: str = "control-plane") -> Path:
    """Return the folder of the build from these sources; its name contains their digest."""
    return home_of(programs) / f"{kubernetes_version()}-{digest(*(_ROOM / module for module in _MODULES))}"


def other_minors() -> tuple[str, ...]:
    """Return further Kubernetes versions for tests: each has a go.mod and go.sum of its own."""
    return tuple(sorted(room.name for room in (_ROOM / "minors").iterdir()))


def minor_binaries(minor: str) -> Path:
    """Return the programs of another minor version as assets, and build them if necessary."""
    if minor not in other_minors():
        raise ControlPlaneError(f"Kubernetes {minor} is not available; available: {', '.join(other_minors())}")
    room = _ROOM / "minors" / minor
    target = home_of("control-plane") / f"{kubernetes_version(room)}-{digest(_ROOM / 'etcd', room)}"
    return built(target, partial(_build_plane, room=room))


def find_binaries() -> Path | None:
    """Return the existing folder of programs; None if a build is needed."""
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        missing = [name for name in REQUIRED if not (Path(assets) / name).is_file()]
        if missing:
            raise NoProgramError(f"KUBEBUILDER_ASSETS={assets} has no {', '.join(missing)}")
        return Path(assets)
    return cache_folder() if cache_folder().is_dir() else None


def minor_of(folder: Path) -> str:
    """Return the version, such as 1.36, of a folder of our own build; '' for assets of unknown version."""
    return folder.name.rpartition("-")[0].rpartition(".")[0] if folder.parent == home_of("control-plane") else ""


def binaries() -> Path:
    """Return the folder of programs, and build it if necessary (about five minutes on two cores, once)."""
    found = find_binaries()
    if found is not None:
        return found
    try:
        return built(cache_folder(), _build_plane)
    except NoProgramError as error:
        raise NoProgramError(
            f"{error}, and KUBEBUILDER_ASSETS is not set (a folder with {', '.join(REQUIRED)})"
        ) from None


def node_binaries() -> tuple[Path, Path]:
    """Return the folders of the plane's programs and of the kubelet: our own builds, even if assets exist."""
    return built(cache_folder(), _build_plane), built(cache_folder("kubelet"), _build_kubelet)


def _build_plane(folder: Path, room: Path = _KUBERNETES) -> None:
    version = kubernetes_version(room)
    print(f"building Kubernetes {version} and etcd (once, takes some minutes)", file=sys.stderr, flush=True)
    go_build(_ROOM / "etcd", folder, "-s -w", _MODULES["etcd"])
    go_build(room, folder, "-s -w " + _version_flags(version), _MODULES["kubernetes"])
    # The module's path ends in /v3, so Go may name etcd's program after that or after the folder above.
    if not (folder / "etcd").is_file():
        (folder / "server").rename(folder / "etcd")


def _build_kubelet(folder: Path) -> None:
    version = kubernetes_version()
    print(f"building the kubelet {version} (once, takes one or two minutes)", file=sys.stderr, flush=True)
    go_build(_ROOM / "kubernetes", folder, "-s -w " + _version_flags(version), (_KUBELET,))


def _version_flags(version: str) -> str:
    """Return the linker flags with the version; without them, the server reports v0.0.0 and clients misbehave."""
    major, minor, _ = version.split(".", 2)
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{key}={value}" for package in packages for key, value in values.items())
