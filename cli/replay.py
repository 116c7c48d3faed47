"""`gpu-healthcheck replay`: judge a saved log, with the rule of each line, or a saved check cycle."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec import Struct

from cli.options import AsJson, InstanceType, JsonOrYaml, OutputFormat, one_of, refuse_two_forms
from healthcheck.captures.kind import InputKind

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="Saved logs of one node, oldest first, or evidence; - is standard input."),
]
As = Annotated[
    InputKind | None,
    typer.Option(
        "--as",
        metavar="KIND",
        help=f"Kind of the files: {', '.join(InputKind)}; default: by their content.",
        **one_of(InputKind),
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also show lines that are no fault.")]


class ReplayOptions(Struct, frozen=True):
    """Options of the command line."""

    files: tuple[str, ...]
    kind: InputKind | None
    """None: detected by content."""
    instance_type: str
    form: OutputFormat | None
    """None: readable text."""
    verbose: bool


def replay(
    files: Files,
    kind: As = None,
    instance_type: InstanceType = "",
    output: JsonOrYaml = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Judge saved logs or evidence.

    Exit code: 0 pass or warn, 1 fail, 2 unknown, 3 usage or unreadable input.
    """
    from cli.replaying import judge_files  # noqa: PLC0415 - its help needs none of it

    refuse_two_forms(output, as_json=as_json)
    form = OutputFormat.JSON if as_json else output
    raise typer.Exit(judge_files(ReplayOptions(tuple(files), kind, instance_type, form, verbose)))
