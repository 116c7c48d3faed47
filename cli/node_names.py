"""The names of nodes on a command line: part of an address at the API server, so that nothing else gets there."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from cli.completing import nodes

_LONGEST = 253
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
"""As Kubernetes names objects (RFC 1123, a subdomain)."""


def node_names(names: list[str] | None) -> list[str]:
    """Each once, in their order. Raises typer.BadParameter for one that no Node can have, such as an empty variable."""
    for name in names or ():
        if len(name) > _LONGEST or not _NAME.fullmatch(name):
            raise typer.BadParameter(f"{name[:_LONGEST]!r} is no name of a node")
    return list(dict.fromkeys(names or ()))


Nodes = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Their names.", callback=node_names, autocompletion=nodes)
]
MaybeNodes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NODE...]", help="Their names.", callback=node_names, autocompletion=nodes),
]
"""Where labels may choose them too."""
