"""`gpu-healthcheck check`: check this node once, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from cli.options import AsJson, InstanceType, JsonOrYaml, OutputFormat, path, refuse_two_forms

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CHECK...]",
        help="Group numbers or check names; default: CHECKS_LIGHTWEIGHT. 1 runs DCGM's level 2 for minutes.",
    ),
]
Root = Annotated[
    Path | None, typer.Option("--root", metavar="FOLDER", parser=path, help="Check the host tree mounted here.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print the evidence for the verdict.")]
SaveEvidence = Annotated[
    Path | None,
    typer.Option(
        "--save-evidence",
        metavar="FILE",
        parser=path,
        help="Write the evidence for `replay`; it contains serial numbers, UUIDs and the kernel log.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Run level 2 although pods or processes use the GPUs.")]


class CheckOptions(Struct, frozen=True):
    """Options of the command line."""

    names: tuple[str, ...]
    form: OutputFormat | None
    """None: readable text."""
    root: Path | None
    instance_type: str
    verbose: bool
    save_evidence: Path | None
    force: bool


def check(  # noqa: PLR0913, PLR0917 - each is an option of the command
    names: Names = None,
    output: JsonOrYaml = None,
    as_json: AsJson = False,
    root: Root = None,
    instance_type: InstanceType = "",
    verbose: Verbose = False,
    save_evidence: SaveEvidence = None,
    force: Force = False,
) -> None:
    """Check this node once and print the verdict.

    Exit code: 0 pass or warn, 1 fail, 2 unknown, 3 usage, 130 Ctrl-C.
    """
    from cli.checking import look_and_tell  # noqa: PLC0415 - its help needs none of it

    refuse_two_forms(output, as_json=as_json)
    form = OutputFormat.JSON if as_json else output
    options = CheckOptions(tuple(names or ()), form, root, instance_type, verbose, save_evidence, force)
    raise typer.Exit(look_and_tell(options))
