"""Where the programs come from: the ecosystem's assets, our cache, or one Go build each for plane and kubelet."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

REQUIRED = ("etcd", "kube-apiserver", "kubectl")
"""What setup-envtest installs; the controller-manager and the scheduler are not among it."""

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
"""Beside them in a folder of its own: who needs no real node shall not wait for it."""


class ControlPlaneError(Exception):
    """The control plane could not be had, started or asked; the message says why."""


class NoBinariesError(ControlPlaneError):
    """Neither assets nor a cache nor Go: nothing on this machine can give a control plane."""


def kubernetes_version(room: Path = _KUBERNETES) -> str:
    """The version that its go.mod pins, such as 1.36.3."""
    found = re.search(r"k8s\.io/kubernetes v(\S+)", (room / "go.mod").read_text())
    if found is None:
        raise ControlPlaneError(f"{room / 'go.mod'} requires no k8s.io/kubernetes")
    return found[1]


def cache_folder(programs: str = "control-plane") -> Path:
    """The folder of exactly these sources: other go.sum, other folder."""
    return home_of(programs) / f"{kubernetes_version()}-{digest(*(_ROOM / module for module in _MODULES))}"


def home_of(programs: str) -> Path:
    """Where all builds of these programs are kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "gpu-healthcheck" / programs


def digest(*rooms: Path) -> str:
    """Of exactly these sources, each a folder with go.mod and go.sum."""
    told = hashlib.sha256()
    for room in rooms:
        for name in ("go.mod", "go.sum"):
            told.update((room / name).read_bytes())
    return told.hexdigest()[:12]


def other_minors() -> tuple[str, ...]:
    """Of Kubernetes, beside the one that all tests run on: each has a go.mod and go.sum of its own."""
    return tuple(sorted(room.name for room in (_ROOM / "minors").iterdir()))


def minor_binaries(minor: str) -> Path:
    """The programs of another minor version, as assets: built first where need be."""
    if minor not in other_minors():
        raise ControlPlaneError(f"no Kubernetes {minor} here; there are {', '.join(other_minors())}")
    room = _ROOM / "minors" / minor
    target = home_of("control-plane") / f"{kubernetes_version(room)}-{digest(_ROOM / 'etcd', room)}"
    return built(target, partial(_build_plane, room=room))


def find_binaries() -> Path | None:
    """The folder of programs that is there already, or None where a build is needed."""
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        missing = [name for name in REQUIRED if not (Path(assets) / name).is_file()]
        if missing:
            raise NoBinariesError(f"KUBEBUILDER_ASSETS={assets} has no {', '.join(missing)}")
        return Path(assets)
    return cache_folder() if cache_folder().is_dir() else None


def minor_of(folder: Path) -> str:
    """Such as 1.36, of a folder of our own build; '' of assets whose version nobody told."""
    return folder.name.rpartition("-")[0].rpartition(".")[0] if folder.parent == home_of("control-plane") else ""


def binaries() -> Path:
    """The folder of programs, built first where need be (about five minutes on two cores, once)."""
    found = find_binaries()
    if found is not None:
        return found
    return built(cache_folder(), _build_plane)


def node_binaries() -> tuple[Path, Path]:
    """Two folders, of the plane's programs and of the kubelet: both our own build, whatever assets are there."""
    return built(cache_folder(), _build_plane), built(cache_folder("kubelet"), _build_kubelet)


def built(target: Path, build: Callable[[Path], None]) -> Path:
    """Build beside the target and rename: a half-built folder is never seen under the final name."""
    if target.is_dir():
        return target
    if shutil.which("go") is None:
        raise NoBinariesError(
            f"no {target.parent.name}: neither Go (to build one) nor KUBEBUILDER_ASSETS "
            f"(a folder with {', '.join(REQUIRED)}) is here"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one_builder(target):
        if not target.is_dir():  # another process may have built it while we waited
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as folder:
                half_built = Path(folder) / "bin"
                build(half_built)
                half_built.rename(target)
    return target


@contextmanager
def _only_one_builder(target: Path) -> Iterator[None]:
    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_plane(folder: Path, room: Path = _KUBERNETES) -> None:
    version = kubernetes_version(room)
    print(f"building Kubernetes {version} and etcd, once: some minutes", file=sys.stderr, flush=True)
    go_build(_ROOM / "etcd", folder, "-s -w", _MODULES["etcd"])
    go_build(room, folder, "-s -w " + _version_flags(version), _MODULES["kubernetes"])
    # The module's path ends in /v3, so Go may name etcd's program after that or after the folder above.
    if not (folder / "etcd").is_file():
        (folder / "server").rename(folder / "etcd")


def _build_kubelet(folder: Path) -> None:
    version = kubernetes_version()
    print(f"building the kubelet {version}, once: a minute or two", file=sys.stderr, flush=True)
    go_build(_ROOM / "kubernetes", folder, "-s -w " + _version_flags(version), (_KUBELET,))


def go_build(room: Path, out: Path, ldflags: str, packages: Sequence[str], tags: str = "") -> None:
    """With the modules that the room's go.mod and go.sum pin, and without cgo. Raises ControlPlaneError."""
    out.mkdir(exist_ok=True)
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    command = ["go", "build", "-trimpath", "-tags", tags, "-ldflags", ldflags, "-o", f"{out}/", *packages]
    done = subprocess.run(command, cwd=room, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ControlPlaneError(f"go build of {room.name} failed:\n{done.stderr[-4000:]}")


def _version_flags(version: str) -> str:
    """Without these the server calls itself v0.0.0 and clients misbehave."""
    major, minor, _ = version.split(".", 2)
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{key}={value}" for package in packages for key, value in values.items())
