"""Images of a node at its start: a stand-in for the bases of our Dockerfile, the pause image, and our own.

No registry is used. A minimal Debian with Debian's Python replaces a base such as docker.io/library/python:3.12-slim.
This tests our layers, not the pull. Never publish an image built on it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_healthcheck.healthcheck import __version__
from gpu_healthcheck.sim.c_library import find_compiler
from gpu_healthcheck.sim.control_plane.build import ControlPlaneError, cache_folder
from gpu_healthcheck.sim.real_node.needs import codename
from tools.release.check import bases, stages
from tools.release.image import SLIM

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = Path(__file__).parent / "recipes"
CACHE = cache_folder("node").parent
PAUSE = "registry.k8s.io/pause:3.10"
OURS = f"docker.io/library/gpu-healthcheck:{__version__}"
"""Name of our image in the manifests."""
WHEELHOUSE = "/wheelhouse"

_STAND_IN = "localhost/gpu-healthcheck-stand-in"
_PACKAGES = "ca-certificates,python3,python3-pip,python3-venv"
_LEFT_OUT = (
    "dev/*",
    "var/cache/apt/*",
    "var/lib/apt/lists/*",
    "usr/share/doc/*",
    "usr/share/man/*",
    "usr/share/locale/*",
)
_REQUIREMENTS = re.compile(r"requirements/[\w-]+\.txt")


class ImageError(ControlPlaneError):
    """An image cannot be built; the message ends with the tool's output."""


# --- images


def ours(target: str = SLIM) -> Path:
    """Return an archive of our image, built from the Dockerfile; unchanged layers are reused."""
    with _one_at_a_time():
        return _ours(target)


def pause() -> Path:
    with _one_at_a_time(), tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "pause"
        _run([*find_compiler(), "-Os", "-static", "-s", "-o", str(program), str(RECIPES / "pause.c")])
        _build(PAUSE, f"--file={RECIPES / 'pause.Dockerfile'}", folder)
        return _archive(PAUSE, "pause")


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ours(target: str) -> Path:
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    if target not in stages(dockerfile):
        raise ImageError(f"the Dockerfile has no target {target}; its targets are {', '.join(stages(dockerfile))}")
    with _on_stand_ins(dockerfile) as words:
        _build(OURS, *words, f"--target={target}", str(REPOSITORY))
    return _archive(OURS, target)


@contextmanager
def _on_stand_ins(dockerfile: str) -> Iterator[list[str]]:
    """Yield arguments of `buildah build` for our Dockerfile without registry or other downloads."""
    stand_in = _stand_in()
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "sources.list"
        sources.write_text(f"deb {_mirror()} {codename()} main\n")
        yield [
            *("--isolation=chroot", "--pull-never"),
            *(f"--build-arg={name}={stand_in}" for name in bases(dockerfile)),
            # Mounted only during the build: no layer contains this machine's sources.
            f"--volume={_wheelhouse(dockerfile, _python_version(stand_in))}:{WHEELHOUSE}:ro",
            f"--volume={sources}:/etc/apt/sources.list:ro",
            "--volume=/etc/apt/apt.conf.d:/etc/apt/apt.conf.d:ro",
            f"--secret=id=pip,src={RECIPES / 'pip.conf'}",
            "--build-arg=EFA_FROM=distribution",  # needs no download from AWS
        ]


def _stand_in() -> str:
    """Return the name of the stand-in base, built once per state of its recipe and release of Debian."""
    recipe = (RECIPES / "stand-in.Dockerfile").read_text()
    digest = hashlib.sha256("\n".join([codename(), _PACKAGES, *_LEFT_OUT, recipe]).encode()).hexdigest()
    name = f"{_STAND_IN}:{digest[:12]}"
    if buildah("images", "--quiet", "--filter", f"reference={name}"):
        return name
    print("building the stand-in base image (once, takes one or two minutes)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root, tar = Path(folder) / "rootfs", Path(folder) / "rootfs.tar"
        words = ["--variant=minbase", f"--include={_PACKAGES}", codename(), str(root), _mirror()]
        _run(["unshare", "--mount", "debootstrap", *words])  # its mounts end with it
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        (root / "etc/apt/sources.list").write_text("")
        (root / WHEELHOUSE.strip("/")).mkdir()
        without = [f"--exclude=./{path}" for path in _LEFT_OUT]
        _run(["tar", "--create", f"--file={tar}", f"--directory={root}", "--anchored", *without, "."])
        _build(name, f"--file={RECIPES / 'stand-in.Dockerfile'}", folder)
    return name


def _mirror() -> str:
    """Return the sources of Debian's packages in this machine's apt."""
    words = "$(CODENAME) $(COMPONENT) $(REPO_URI)"
    for line in _run(["apt-get", "indextargets", f"--format={words}", "Created-By: Packages"]).splitlines():
        release, component, uri = line.split(maxsplit=2)
        if (release, component) == (codename(), "main"):
            return uri
    raise ImageError(f"apt has no source of {codename()} main; run `apt-get update`")


def _python_version(image: str) -> str:
    container = buildah("from", "--pull-never", image)
    try:
        program = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
        return buildah("run", "--isolation=chroot", container, "python3", "-c", program)
    finally:
        buildah("rm", container)


def _wheelhouse(dockerfile: str, python_version: str) -> Path:
    """Download the wheels that the Dockerfile installs and builds with, by this machine's pip with hash checks."""
    texts = [(REPOSITORY / file).read_text() for file in sorted(set(_REQUIREMENTS.findall(dockerfile)))]
    digest = hashlib.sha256("\n".join([python_version, *texts]).encode()).hexdigest()[:12]
    house = CACHE / "wheelhouse" / f"{python_version}-{digest}"
    if house.is_dir():
        return house
    house.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=house.parent, prefix=".fetching-") as folder:
        wheels = Path(folder) / "wheels"
        for index, text in enumerate(texts):
            requirements = Path(folder) / f"{index}.txt"
            requirements.write_text(text)
            _run([
                *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
                *("--no-deps", "--require-hashes", "--only-binary=:all:", f"--python-version={python_version}"),
                *(f"--dest={wheels}", f"--requirement={requirements}"),
            ])  # fmt: skip
        wheels.rename(house)
    return house


# --- buildah


def _build(name: str, *words: str) -> None:
    words = ("--quiet", "--isolation=chroot", "--pull-never", "--layers", *words)
    buildah("build", f"--tag={name}", *words)


def _archive(name: str, stem: str) -> Path:
    """Export the image as one file, named after its content."""
    identity = buildah("images", "--quiet", "--no-trunc", "--filter", f"reference={name}").split()[0]
    file = CACHE / "archives" / f"{stem}-{identity.partition(':')[2][:12]}.tar"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in file.parent.glob(f"{stem}-*"):
            old.unlink()
        fresh = file.with_suffix(".new")
        buildah("push", "--quiet", name, f"docker-archive:{fresh}:{name}")
        fresh.rename(file)
    return file


def buildah(*words: str) -> str:
    """Run buildah with our own store, in a mount namespace, because it otherwise leaves a mount on its store."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-buildah-") as running:
        store = ["--root", str(CACHE / "storage"), "--runroot", running, "--storage-driver", "overlay"]
        return _run(["unshare", "--mount", "buildah", *store, *words], {"TMPDIR": running})


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        message = f"{done.stdout}\n{done.stderr}".strip()[-3000:]
        raise ImageError(f"`{shlex.join(command)}` failed:\n{message}")
    return done.stdout.strip()
