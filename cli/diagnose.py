"""`gpu-healthcheck diagnose`: the causes that keep a GPU pod or node stuck, and their fixes."""

from __future__ import annotations

import re
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct, field

from cli.completing import namespaces, nodes, subjects
from cli.node_names import node_names
from cli.options import AsJson, Context, Kubeconfig, Prometheus, RequestTimeout, one_of, path, refuse_two_forms
from healthcheck.cluster.kubeconfig import Access
from healthcheck.cluster.names import NAMESPACE

ALL_SUSPECTS = "all-suspects"
_WORKERS, _MOST_WORKERS = 8, 64


class DiagnoseFormat(StrEnum):
    """Output format of `diagnose`."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    YAML = "yaml"
    HTML = "html"


class ProbeOptions(Struct, frozen=True):
    """Nodes to probe with a pod on each. `nodes` is empty if the command line names none."""

    nodes: tuple[str, ...] = ()
    image: str = ""
    namespace: str = NAMESPACE
    max_workers: int = _WORKERS


class DiagnoseOptions(Struct, frozen=True):
    """Options of the command line. The state comes from `saved` files, or from a cluster; then `save` keeps a copy."""

    words: tuple[str, ...]
    access: Access
    output: DiagnoseFormat
    namespace: str = ""
    saved: tuple[Path, ...] = ()
    save: Path | None = None
    since: Path | None = None
    wanted: Path | None = None
    prometheus: str = ""
    probes: ProbeOptions = field(default_factory=ProbeOptions)


def _workers(text: str | int) -> int:
    number = int(text) if re.fullmatch(r"[0-9]{1,3}", str(text), re.ASCII) else 0
    if not 1 <= number <= _MOST_WORKERS:
        raise typer.BadParameter(f"1 to {_MOST_WORKERS} are allowed")
    return number


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KIND NAME]",
        autocompletion=subjects,
        help="pod NS/NAME, node NAME, job NS/NAME or another kind; default: the whole cluster.",
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        autocompletion=namespaces,
        help="Only causes in this namespace or of its pods; default: all namespaces.",
    ),
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces, even with -n.")]
Saved = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        metavar="PATH",
        parser=path,
        help="Read a saved state: kubectl's JSON, a cluster-info dump, or a file of --save.",
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save", metavar="FILE", parser=path, help="Save the cluster state, without secrets, as FILE (tar.gz)."
    ),
]
Since = Annotated[
    Path | None,
    typer.Option("--since", metavar="OLD", parser=path, help="Also list the changes since this saved state."),
]
Wanted = Annotated[
    Path | None,
    typer.Option(
        "--would-fit",
        metavar="FILE",
        parser=path,
        help="Find nodes for the pods of this manifest; nothing is created.",
    ),
]
OutputForm = Annotated[
    DiagnoseFormat | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FORM",
        show_default=False,
        help="terminal (default), markdown, html, json or yaml.",
        **one_of(DiagnoseFormat),
    ),
]


def _names(messages: list[str] | None) -> list[str]:
    """Raises typer.BadParameter."""
    return node_names([name.strip() for text in messages or () for name in text.removesuffix(",").split(",")])


ProbeNodes = Annotated[
    list[str] | None,
    typer.Option(
        "--probe-nodes",
        metavar="NODE,…",
        callback=_names,
        autocompletion=nodes,
        help=f"Run `check` on these nodes, or on {ALL_SUSPECTS}, in a pod on each that is removed afterwards.",
    ),
]
ProbeImage = Annotated[
    str, typer.Option("--probe-image", metavar="IMAGE", help="Image of that pod; default: the agent's.")
]
ProbeNamespace = Annotated[
    str,
    typer.Option(
        "--probe-namespace",
        metavar="NAME",
        autocompletion=namespaces,
        help="Namespace of that pod; it must allow privileged pods.",
    ),
]
MaxWorkers = Annotated[
    int,
    typer.Option(
        "--max-workers",
        metavar="NUMBER",
        parser=_workers,
        show_default=False,
        help=f"Nodes probed at the same time, 1 to {_MOST_WORKERS}; default: {_WORKERS}.",
    ),
]


def _apart(words: list[str], with_saved: bool) -> tuple[list[str], list[Path]]:
    """Split the arguments into saved files and KIND NAME.

    The shell expands `--from *.json` to one value and further arguments.
    """
    files = list(takewhile(_is_a_file, words)) if with_saved else []
    return words[len(files) :], [Path(file) for file in files]


def _is_a_file(word: str) -> bool:
    """No kind has a dot or a slash in its name."""
    return not {".", "/"}.isdisjoint(word) and Path(word).exists()


def diagnose(  # noqa: PLR0913, PLR0917 - each is an option of the command
    words: Words = None,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    saved: Saved = None,
    save: Save = None,
    since: Since = None,
    wanted: Wanted = None,
    output: OutputForm = None,
    as_json: AsJson = False,
    prometheus: Prometheus = "",
    probe_nodes: ProbeNodes = None,
    probe_image: ProbeImage = "",
    probe_namespace: ProbeNamespace = NAMESPACE,
    max_workers: MaxWorkers = _WORKERS,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Show why GPU pods and nodes are stuck. Exit code: 0 no cause found, 1 causes found, 2 could not check."""
    refuse_two_forms(output, as_json=as_json)
    from cli.diagnosing import answer  # noqa: PLC0415 - its help needs none of it

    words, more = _apart(words or [], bool(saved))
    options = DiagnoseOptions(
        words=tuple(words),
        access=Access(kubeconfig, context, request_timeout),
        output=DiagnoseFormat.JSON if as_json else output or DiagnoseFormat.TERMINAL,
        namespace="" if all_namespaces else namespace,
        saved=(*(saved or ()), *more),
        save=save,
        since=since,
        wanted=wanted,
        prometheus=prometheus,
        probes=ProbeOptions(tuple(probe_nodes or ()), probe_image, probe_namespace, max_workers),
    )
    raise typer.Exit(answer(options))
