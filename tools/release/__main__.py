"""`python -m tools.release STEP`: the steps of a release that the workflow leaves to us."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tools.go_programs.build import ProgramError
from tools.release import files
from tools.release import image as images
from tools.release.check import refusals
from tools.release.image import buildah
from tools.release.origin import REPOSITORY, ReleaseError, exported, origin

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Repository = Annotated[str, typer.Option(help="Such as ghcr.io/OWNER/gpu-healthcheck, in lower case.")]
Target = Annotated[Literal["full", "slim"], typer.Argument(help="Target of the Dockerfile.")]
Digest = Annotated[str, typer.Option(help="Digest of the released image; the default is that of no image.")]
_NO_IMAGE = f"sha256:{'0' * 64}"


@app.command()
def check(tag: str) -> None:
    """Print the reasons why the sources cannot be released as TAG, and exit 1 if there are any."""
    found = refusals(REPOSITORY, tag)
    for line in found:
        print(f"release: {line}", file=sys.stderr)
    raise typer.Exit(1 if found else 0)


@app.command()
def image(target: Target, source: str = "", push_to: Annotated[str, typer.Option(help="Repository:tag.")] = "") -> None:
    """Build the TARGET for this machine's architecture, push it if told where, and print its digest."""
    made_from = origin(source)
    with exported(made_from.revision) as tree:
        images.build(buildah, images.NAME, images.build_arguments(target, made_from), tree)
    print(images.digest(buildah, images.NAME))
    if push_to:
        buildah("push", "--quiet", "--format=oci", images.NAME, f"docker://{push_to}")
    buildah("rmi", images.NAME)


@app.command(name="files")
def write_files(
    repository: Repository,
    full: Digest = _NO_IMAGE,
    slim: Digest = _NO_IMAGE,
    out: Path = Path("dist"),
    source: str = "",
) -> None:
    """Write the files of a release: chart, manifests, wheel, source archive, krew's archives, notes, checksums."""
    made_from, out = origin(source), out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with exported(made_from.revision) as tree:
        files.write_all(made_from, tree, repository, full, slim, out)
    for file in sorted(out.iterdir()):
        print(f"{file.name}  {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    try:
        app()
    except (ReleaseError, ProgramError) as error:
        sys.exit(f"release: {error}")
