"""Options of several commands, with the names and meanings of kubectl, and completions of their values for a shell.

Completions are names from the cluster, within a short time; none without an answer. A shell evaluates completions, and
a cluster or kubeconfig may be hostile, so only valid names are offered. Imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access, context_names
from gpu_healthcheck.healthcheck.host.forked import answered_within
from gpu_healthcheck.healthcheck.text.durations import timeout
from gpu_healthcheck.healthcheck.text.printable import printable

_SECONDS = 2.0
"""Deadline of each request."""
_PATIENCE_SECONDS = 5.0
"""Deadline of all requests together: a kubeconfig may run a login program, and the shell waits for it."""
_NAME = re.compile(r"[A-Za-z0-9][\w.:/@+=,-]{0,252}\Z", re.ASCII)
_KINDS = ("pod", "node", "deployment", "replicaset", "statefulset", "daemonset", "job", "cronjob", "jobset", "hami")


def complete_contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    return _offered(answered_within(_PATIENCE_SECONDS, lambda: context_names(_access(ctx))), incomplete)


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the nodes that have an agent's verdict and are not on the command line yet."""
    from gpu_healthcheck.healthcheck.node.state import STATUS  # noqa: PLC0415 - where a cluster is asked

    there = ctx.params.get("nodes") or ()
    named = _asked(ctx, lambda cluster: cluster.nodes.names(STATUS))
    return _offered((text for text in named if text not in there), incomplete)


def complete_namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    return _offered(_asked(ctx, lambda cluster: cluster.nodes.names_of_namespaces()), incomplete)


def complete_subjects(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of `diagnose`: kinds, and names of nodes."""
    words = ctx.params.get("words") or ()
    if not words:
        return _offered(_KINDS, incomplete)
    return complete_nodes(ctx, incomplete) if list(words) in (["node"], ["nodes"], ["no"]) else []


def complete_explained_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return all names that `explain` knows. Codes are left out: they are typed as numbers."""
    del ctx
    from gpu_healthcheck.cli import index  # noqa: PLC0415 - only for this completion
    from gpu_healthcheck.healthcheck.catalog.cuda_errors import cuda_errors, library_errors  # noqa: PLC0415

    reasons = (reason.reason.name for reason in index.reasons().values())
    terms = (word[0].name for word in index.words().values())
    errors = (name for error in (*cuda_errors(), *library_errors()) for name in error.names)
    return _offered(dict.fromkeys([*reasons, *terms, *errors]), incomplete)


def _access(ctx: typer.Context) -> Access:
    return Access(ctx.params.get("kubeconfig") or "", ctx.params.get("context") or "", _SECONDS)


def _asked(ctx: typer.Context, question: Callable[..., list[str]]) -> list[str]:
    from gpu_healthcheck.cli.access import cluster_of  # noqa: PLC0415 - where a cluster is asked

    return answered_within(_PATIENCE_SECONDS, lambda: question(cluster_of(_access(ctx))))


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete) and _NAME.match(name)]


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
    from gpu_healthcheck.healthcheck.cluster.prometheus import AddressError, checked  # noqa: PLC0415 - only if a URL is given

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
    list[str],
    typer.Argument(metavar="NODE...", help="Their names.", callback=node_names, autocompletion=complete_nodes),
]
Context = Annotated[
    str,
    typer.Option(
        "--context",
        metavar="NAME",
        autocompletion=complete_contexts,
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
