"""`gpu-healthcheck explain`: the meaning of a code or reason, and the settings of this cluster for it."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.completing import explained
from cli.options import JsonOrYaml

Word = Annotated[
    str,
    typer.Argument(
        metavar="[WORD]",
        show_default=False,
        autocompletion=explained,
        help="79, SXid20034, dcgm 52, GpuCountLow; xid, sxid, dcgm or reasons lists all of a kind; default: all.",
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[HEX...]", help="Data words at the end of an NVLink Xid's log line, to decode."),
]


def explain(word: Word = "", words: Words = None, output: JsonOrYaml = None) -> None:
    """Explain a code or reason: its meaning, NVIDIA's advice, and the settings of this cluster."""
    from cli.explaining import explain_words  # noqa: PLC0415 - its help needs none of it

    raise typer.Exit(explain_words([word, *(words or ())], output))
