"""`python -m release STEP`: the steps of a release, in the order in which the workflow runs them."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from go_programs.build import ProgramError
from release import built, signing
from release import image as images
from release.bases import bases, pinned
from release.check import refusals
from release.image import buildah
from release.layout import Layout
from release.origin import REPOSITORY, exported, origin
from release.provenance import Builder
from release.publish import Release, publish, verify
from release.registry import Registry, resolve
from release.running import ReleaseError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Repository = Annotated[str, typer.Option(help="Such as ghcr.io/OWNER/gpu-healthcheck.")]
Target = Annotated[Literal["full", "slim"], typer.Argument(help="Target of the Dockerfile.")]
Folder = Annotated[Path, typer.Option(help="Directory of the files.")]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _registry(repository: str) -> Registry:
    """Return the registry with its repository in lower case: an owner's name may have capitals, which it rejects."""
    return Registry(repository.lower())


def _of_the_workflow(name: str) -> str:
    if name not in os.environ:
        raise ReleaseError(f"{name} is not set: only the workflow signs a version; run `make release-dry-run` locally")
    return os.environ[name]


@app.command()
def check(tag: str) -> None:
    """Print the reasons why the sources cannot be released as TAG, and exit 1 if there are any."""
    found = refusals(REPOSITORY, tag)
    for line in found:
        print(f"release: {line}", file=sys.stderr)
    raise typer.Exit(1 if found else 0)


@app.command()
def pin_bases() -> None:
    """Query the registries for the digests of the Dockerfile's base tags, and write them there."""
    file = REPOSITORY / "Dockerfile"
    text = file.read_text()
    digests = {name: resolve(image.partition("@")[0]) for name, image in bases(text).items()}
    file.write_text(pinned(text, digests))
    for name, digest in digests.items():
        print(f"{name}: {digest}")


@app.command()
def image(target: Target, repository: Repository, out: Folder = Path("dist"), source: str = "") -> None:
    """Build the TARGET for this machine's architecture, push it, and list its content."""
    made_from = origin(source)
    out.mkdir(parents=True, exist_ok=True)
    place = built.Place(buildah, (), ARCHITECTURES[platform.machine()])
    with exported(made_from.revision) as tree:
        print(built.build(place, target, made_from, tree, _registry(repository), out).digest)


@app.command()
def rebuild(target: Target, source: str = "") -> None:
    """Build the TARGET and print its digest, to compare with a released image."""
    made_from = origin(source)
    with exported(made_from.revision) as tree, tempfile.TemporaryDirectory() as folder:
        images.build(buildah, images.NAME, images.build_arguments(target, made_from), tree)
        images.layout(buildah, images.NAME, Path(folder))
        buildah("rmi", images.NAME)
        print(Layout(Path(folder)).digest)


@app.command(name="publish")
def publish_all(repository: Repository, images: Folder, out: Folder = Path("dist"), source: str = "") -> None:
    """Sign and attest the built IMAGES, create index, chart and files, and verify everything."""
    made_from = origin(source)
    workflow = f"https://github.com/{_of_the_workflow('GITHUB_WORKFLOW_REF')}"
    builder = Builder(workflow, f"{source}/actions/runs/{_of_the_workflow('GITHUB_RUN_ID')}")
    out.mkdir(parents=True, exist_ok=True)
    with exported(made_from.revision) as tree:
        release = Release(made_from, tree, _registry(repository), signing.by_identity(workflow), builder)
        found = built.read(images)
        published = publish(release, found, out)
        verify(release, found, published, out)
    for reference, digest in published.items():
        print(f"{reference}@{digest}")


if __name__ == "__main__":
    try:
        app()
    except (ReleaseError, ProgramError) as error:
        sys.exit(f"release: {error}")
