"""Node names on a command line. They are validated because they become part of a URL of the API server."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from cli.completing import nodes

_LONGEST = 253
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
"""Object names of Kubernetes (RFC 1123 subdomain)."""


def node_names(names: list[str] | None) -> list[str]:
    """Return the names without repeats. Raises typer.BadParameter for an invalid one, such as an empty variable."""
    for name in names or ():
        if len(name) > _LONGEST or not _NAME.fullmatch(name):
            raise typer.BadParameter(f"{name[:_LONGEST]!r} is not a valid node name")
    return list(dict.fromkeys(names or ()))


Nodes = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Their names.", callback=node_names, autocompletion=nodes)
]
MaybeNodes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NODE...]", help="Their names.", callback=node_names, autocompletion=nodes),
]
"""Where labels may choose them too."""
