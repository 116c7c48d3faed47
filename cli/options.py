"""Options of several commands, with the names and meanings of kubectl. Imports nothing heavy."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from cli.completing import contexts, nodes
from healthcheck.text.durations import timeout
from healthcheck.text.printable import printable

F = TypeVar("F", bound=StrEnum)
_LONGEST_NAME = 253
_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
"""Object names of Kubernetes (RFC 1123 subdomain)."""


class OutputFormat(StrEnum):
    """Format of one object for programs."""

    JSON = "json"
    YAML = "yaml"


class TableFormat(StrEnum):
    """Output format of a command that prints a table by default."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def one_of(words: type[StrEnum]) -> dict[str, Any]:
    """Return the arguments of an option that accepts only these values, offers them, and lists them in errors."""

    def parse(text: str) -> StrEnum:
        try:
            return words(text)
        except ValueError:
            raise typer.BadParameter(f"{printable(text)!r}: allowed are {', '.join(words)}") from None

    def complete(incomplete: str) -> list[str]:
        return [str(word) for word in words if word.startswith(incomplete)]

    return {"parser": parse, "autocompletion": complete}


def form_of(output: F | None, json: F, *, as_json: bool) -> F | None:
    """Return the output format by -o and --json; None if neither is given. Raises typer.BadParameter."""
    if as_json and output not in {None, json}:
        raise typer.BadParameter(f"--json means -o json, but -o {output} was given too: use one of them")
    return json if as_json else output


def path(text: str | Path) -> Path:
    """Return a path. An empty text is an unset variable, and would mean the current directory."""
    if not str(text):
        raise typer.BadParameter("the path of a file or folder is empty")
    return Path(text)


def seconds_of(text: str | float) -> float:
    """Parse a duration in seconds. Raises typer.BadParameter."""
    try:
        return text if isinstance(text, float) else timeout(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def positive_seconds(text: str | float) -> float:
    """Parse the duration of a limited wait. Raises typer.BadParameter."""
    if seconds := seconds_of(text):
        return seconds
    raise typer.BadParameter("must be more than 0")


def _url(value: str) -> str:
    if not value:
        return ""
    from healthcheck.cluster.prometheus import AddressError, checked  # noqa: PLC0415 - only if a URL is given

    try:
        return checked(value)
    except AddressError as error:
        raise typer.BadParameter(str(error)) from None


def node_names(names: list[str] | None) -> list[str]:
    """Return the names without repeats: each becomes part of a URL of the API server.

    Raises typer.BadParameter for an invalid one, such as an empty variable.
    """
    for name in names or ():
        if len(name) > _LONGEST_NAME or not _NODE_NAME.fullmatch(name):
            raise typer.BadParameter(f"{name[:_LONGEST_NAME]!r} is not a valid node name")
    return list(dict.fromkeys(names or ()))


Nodes = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Their names.", callback=node_names, autocompletion=nodes)
]
Context = Annotated[
    str,
    typer.Option(
        "--context",
        metavar="NAME",
        autocompletion=contexts,
        help="Context of the kubeconfig; default: its current one.",
    ),
]
Kubeconfig = Annotated[
    str,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="Default: KUBECONFIG, ~/.kube/config, the pod's service account."
    ),
]
RequestTimeout = Annotated[
    float | None,
    typer.Option(
        "--request-timeout",
        metavar="TIME",
        parser=seconds_of,
        help="Limit of each request, as 5s or 2m; 0: none. Default: 3s to connect, 10s for an answer.",
    ),
]
JsonOrYaml = Annotated[
    OutputFormat | None,
    typer.Option(
        "--output", "-o", metavar="FORM", help="json or yaml; default: readable text.", **one_of(OutputFormat)
    ),
]
TableJsonOrYaml = Annotated[
    TableFormat,
    typer.Option(
        "--output",
        "-o",
        metavar="FORM",
        show_default=False,
        help="table (default), json or yaml.",
        **one_of(TableFormat),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
InstanceType = Annotated[
    str,
    typer.Option("--instance-type", metavar="TYPE", help="Instance type whose properties are expected of the node."),
]
Prometheus = Annotated[
    str,
    typer.Option(
        "--prometheus",
        metavar="URL",
        callback=_url,
        help="Also read GPU utilization from this Prometheus: http://HOST:9090.",
    ),
]
Selector = Annotated[
    str,
    typer.Option("--selector", "-l", metavar="SELECTOR", help="Only nodes with these labels: a=b,c!=d,'e in (f,g)'."),
]
