"""`gpu-healthcheck diagnose`: the causes that keep a GPU pod or node stuck, and their fixes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from time import sleep
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from gpu_healthcheck.cli.access import acyclic, cluster_of, listings_of
from gpu_healthcheck.cli.options import (
    AsJson,
    Context,
    Kubeconfig,
    Prometheus,
    RequestTimeout,
    complete_namespaces,
    complete_nodes,
    complete_subjects,
    form_of,
    node_names,
    one_of,
    path,
)
from gpu_healthcheck.cli.output.json_documents import write_as
from gpu_healthcheck.cli.words import end
from gpu_healthcheck.diagnosis.answers.live import read_cluster
from gpu_healthcheck.diagnosis.answers.pod_fit import would_fit_each
from gpu_healthcheck.diagnosis.answers.ranks import RankReport, ask_ranks
from gpu_healthcheck.diagnosis.answers.suspects import ALL_SUSPECTS, answers, chosen_nodes
from gpu_healthcheck.diagnosis.answers.target import HAMI, Target, TargetError, is_there, parse_target
from gpu_healthcheck.diagnosis.causes.copied_logs import is_known
from gpu_healthcheck.diagnosis.causes.diagnose import SAVED_STATE
from gpu_healthcheck.diagnosis.facts.wanted_pods import LONGEST, NoPodError, pods_in
from gpu_healthcheck.diagnosis.report import terminal, would_fit
from gpu_healthcheck.diagnosis.report.content import Report, report_of
from gpu_healthcheck.diagnosis.report.document import document
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.gpu_use import USE
from gpu_healthcheck.diagnosis.sources.bundle import Bundle
from gpu_healthcheck.diagnosis.sources.kinds import KINDS
from gpu_healthcheck.diagnosis.sources.saved import NoSavedStateError, SavedStateError, read_saved
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access, namespace_of
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, INTERRUPTED
from gpu_healthcheck.healthcheck.host.streams import complain, say, write_document
from gpu_healthcheck.healthcheck.text.printable import printable

CAUSES = 1
_NO_CONTEXT = "default"
"""Namespace of a target without one in a saved state, to which no context belongs."""
_WORKERS, _MOST_WORKERS = 8, 64
_NEEDED = frozenset(("Node", "Pod", USE, SAVED_STATE))
"""Inputs without which "no cause found" is not certain; `USE` only if it was requested."""


class DiagnoseFormat(StrEnum):
    """Output format of `diagnose`."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    YAML = "yaml"
    HTML = "html"


_WOULD_FIT_FORMS = (DiagnoseFormat.TERMINAL, DiagnoseFormat.JSON, DiagnoseFormat.YAML)


def _workers(text: str | int) -> int:
    number = int(text) if re.fullmatch(r"[0-9]{1,3}", str(text), re.ASCII) else 0
    if not 1 <= number <= _MOST_WORKERS:
        raise typer.BadParameter(f"1 to {_MOST_WORKERS} are allowed")
    return number


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KIND NAME]",
        autocompletion=complete_subjects,
        help="pod NS/NAME, node NAME, job NS/NAME or another kind, or hami; default: the whole cluster.",
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        autocompletion=complete_namespaces,
        help="Only causes in this namespace or of its pods; default: all, for KIND NAME that of the context.",
    ),
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces, even with -n.")]
Saved = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        metavar="PATH",
        parser=path,
        help="Read a saved state: kubectl's JSON or YAML, a dump, a file of --save, or pasted text; - for stdin.",
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
Ranks = Annotated[
    bool,
    typer.Option("--ranks", help="Ask NCCL in a pod of a hanging job which rank is missing or behind; twice."),
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


def _names(values: list[str] | None) -> list[str]:
    """Parse the node names of the option. Raises typer.BadParameter."""
    return node_names([name.strip() for value in values or () for name in value.removesuffix(",").split(",")])


ProbeNodes = Annotated[
    list[str] | None,
    typer.Option(
        "--probe-nodes",
        metavar="NODE,…",
        callback=_names,
        autocompletion=complete_nodes,
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
        autocompletion=complete_namespaces,
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


@acyclic()
def diagnose(  # noqa: PLR0913, PLR0917 - each is an option of the command
    words: Words = None,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    saved: Saved = None,
    save: Save = None,
    since: Since = None,
    wanted: Wanted = None,
    ranks: Ranks = False,
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
    """Show why GPU pods and nodes are stuck.

    Exit code: 0 no cause found, 1 causes found, 2 could not check.
    """
    form = form_of(output, DiagnoseFormat.JSON, as_json=as_json) or DiagnoseFormat.TERMINAL
    namespace = "" if all_namespaces else namespace
    words, more = _apart(words or [], bool(saved))
    saved = [*(saved or ()), *more]
    if prometheus and saved:
        end("diagnose", "--prometheus reads current values and --from reads a saved state: use one of them")
    if probe_nodes and saved:
        end("diagnose", "--probe-nodes checks nodes now and --from reads a saved state: use one of them")
    if wanted and (words or since or prometheus or probe_nodes or form not in _WOULD_FIT_FORMS):
        end(
            "diagnose",
            "--would-fit allows no KIND NAME, --since, --prometheus or --probe-nodes, and prints text, JSON or YAML",
        )
    access = Access(kubeconfig, context, request_timeout)
    own = namespace or (_NO_CONTEXT if saved else namespace_of(access))
    pods = _read_wanted(wanted, own) if wanted else ()
    try:
        target = _parse_job(words, own, saved) if ranks else parse_target(words, own)
        old = _read_old(since) if since else None
        is_near = target is not None and target.kind == "Pod" and not (save or since or probe_nodes or ranks)
        fallback = "" if all_namespaces else own
        snapshot = read_saved(saved, is_known) if saved else _read_live(access, target, fallback, save, is_near=is_near)
        if probe_nodes:
            snapshot = _with_probes(snapshot, access, probe_nodes, probe_image, probe_namespace, max_workers)
    except (TargetError, NoSavedStateError) as error:
        end("diagnose", str(error))
    except (SavedStateError, ClusterError) as error:
        end("diagnose", str(error), COULD_NOT)
    except OSError as error:
        end("diagnose", f"{save}: {error.strerror}")
    namespace = namespace or _only_namespace(snapshot, target)
    _must_have(snapshot, namespace or (target.namespace if target else ""))
    if pods:
        raise typer.Exit(_would_fit(snapshot, pods, None if saved else access, form))
    if prometheus:
        from gpu_healthcheck.diagnosis.sources.measured_use import with_use  # noqa: PLC0415 - where a Prometheus is to be asked

        snapshot = with_use(snapshot, prometheus, idle=True)
    _must_exist(snapshot, target)
    report = replace(
        report_of(snapshot, target, namespace, old, overview=form is not DiagnoseFormat.TERMINAL),
        ranks=_ask_ranks(snapshot, target, access) if ranks and target else None,
    )
    _print(report, form)
    raise typer.Exit(_exit_code(report))


def _apart(words: list[str], with_saved: bool) -> tuple[list[str], list[Path]]:
    """Split the arguments into saved files and KIND NAME.

    The shell expands `--from *.json` to one value and further arguments.
    """
    files = list(takewhile(_is_a_file, words)) if with_saved else []
    return words[len(files) :], [Path(file) for file in files]


def _is_a_file(word: str) -> bool:
    """Whether the argument is a path: kinds have neither a dot nor a slash in their names."""
    return not {".", "/"}.isdisjoint(word) and Path(word).exists()


def _read_old(path: Path) -> Snapshot:
    """Read a saved state. Raises SavedStateError if it is incomplete: its missing part would count as new."""
    old = read_saved([path])
    if old.unread:
        raise SavedStateError(old.unread[0])
    return old


def _read_live(access: Access, target: Target | None, namespace: str, save: Path | None, *, is_near: bool) -> Snapshot:
    """Read the state, and save it. `is_near`: the dependencies of one pod are enough.

    `namespace`: the namespace to list if listing all namespaces is forbidden, and the target has none.
    Raises ClusterError, and OSError if it can't be saved.
    """
    from gpu_healthcheck.cli.output.progress import progress_bar  # noqa: PLC0415 - only if there is something to wait for

    bundle = Bundle() if save else None
    namespace = (target.namespace if target else "") or namespace
    with progress_bar("Listing", None if is_near else len(KINDS)) as advance:  # near a pod, their number is unknown
        keep = bundle.keep if bundle else None
        snapshot = read_cluster(listings_of(access), namespace, target if is_near else None, keep, advance)
    if bundle and save:
        listed = [kind.kind for kind in KINDS if snapshot.sees(kind.kind)]
        bundle.write(save, snapshot.now, snapshot.missing, listed, snapshot.only_in)
    return snapshot


def _with_probes(
    snapshot: Snapshot, access: Access, names: Sequence[str], image: str, namespace: str, max_workers: int
) -> Snapshot:
    """Return the snapshot with the records of probed nodes; failures are reported. Raises TargetError."""
    from gpu_healthcheck.cli.output.progress import progress_bar  # noqa: PLC0415 - seldom requested
    from gpu_healthcheck.diagnosis.sources.node_probes import NodeProbeError, NodeProbes, with_records  # noqa: PLC0415

    chosen = chosen_nodes(snapshot, names)
    if not chosen:
        say("every suspect node has an agent's record")
    for node in chosen:
        if not answers(node):
            say(f"node {node.name} was not checked: its kubelet does not answer")
    nodes = [(node.name, node.meta.uid) for node in chosen if answers(node)]
    if not nodes:
        return snapshot
    try:
        probes = NodeProbes(cluster_of(access), image, namespace, say)
        with progress_bar("Probing", len(nodes)) as advance:
            probed = probes.run(nodes, max_workers, advance)
    except (NodeProbeError, ClusterError) as error:
        complain("diagnose", f"--probe-nodes: {error}")
        return snapshot
    for answer in probed.values():
        if answer.left:
            say(f"left: `kubectl -n {namespace} delete pod {answer.left}` removes it; it also ends on its own")
    if probes.interrupted:
        end("diagnose", "interrupted", INTERRUPTED)
    for name, answer in probed.items():
        if answer.why_not:
            say(f"node {name} was not checked: {answer.why_not}")
    return with_records(snapshot, probed)


def _parse_job(words: list[str], namespace: str, saved: list[Path]) -> Target:
    """Parse the target of --ranks. Raises TargetError for one whose NCCL can't be asked."""
    target = parse_target(words, namespace)
    if saved:
        raise TargetError("--ranks asks a running job and --from reads a saved state: use one of them")
    if target is None or target.kind in ("Node", HAMI):
        raise TargetError("--ranks needs a workload or a pod, such as job NAMESPACE/NAME")
    return target


def _ask_ranks(snapshot: Snapshot, target: Target, access: Access) -> RankReport:
    from gpu_healthcheck.cli.output.progress import progress_bar  # noqa: PLC0415 - seldom requested

    with progress_bar("Asking NCCL", None):
        return ask_ranks(snapshot, target, listings_of(access).execute, sleep)


def _read_wanted(file: Path, namespace: str) -> tuple[dict[str, Any], ...]:
    try:
        with file.open("rb") as opened:
            return pods_in(opened.read(4 * LONGEST + 1).decode(), namespace)
    except (OSError, ValueError) as error:  # a UnicodeDecodeError or NoPodError
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        reason = str(error.strerror) if isinstance(error, OSError) else reason
        end("diagnose", f"{printable(str(file), 200)}: {reason}")


def _would_fit(
    snapshot: Snapshot, pods: Sequence[Mapping[str, Any]], access: Access | None, form: DiagnoseFormat
) -> int:
    """Print the answer; returns 0 if each pod fits on a node, CAUSES if one does not, COULD_NOT if that is unknown."""
    try:
        found = list(would_fit_each(snapshot, pods, listings_of(access).try_pod if access else None))
    except NoPodError as error:
        end("diagnose", str(error))
    except ClusterError as error:
        end("diagnose", str(error), COULD_NOT)
    if form is DiagnoseFormat.TERMINAL:
        screen = Screen.of_rows()
        for part in would_fit.page(found):
            screen.print(part, soft_wrap=True)
    else:
        write_as(form, would_fit.document(found))
    if snapshot.unread:
        end("diagnose", f"{snapshot.unread[0]}: free resources are unknown", COULD_NOT)
    if not snapshot.sees("Node") or not snapshot.sees_all_pods:
        end("diagnose", "nodes or pods can't be listed: free resources are unknown", COULD_NOT)
    return 0 if all(answer.fits for answer in found) else CAUSES


def _must_exist(snapshot: Snapshot, target: Target | None) -> None:
    if target is None or is_there(snapshot, target):
        return
    hidden = next((kind for kind in target.kinds if not snapshot.sees(kind)), None)
    invalid = next((one.reason for one in snapshot.invalid if one.subject == target.subject), "")
    if hidden is None and not invalid:
        end("diagnose", f"there is no {target.subject}")
    end("diagnose", f"{target.subject} can't be read: {invalid or snapshot.missing[hidden or '']}", COULD_NOT)


def _only_namespace(snapshot: Snapshot, target: Target | None) -> str:
    """Return the namespace to which the permissions limit a diagnosis of the cluster, and report it; '' if none."""
    if target is not None or not snapshot.only_in:
        return ""
    say(f"only namespace {snapshot.only_in}: you may not list the pods of all namespaces")
    return snapshot.only_in


def _must_have(snapshot: Snapshot, namespace: str) -> None:
    """End the command if the namespace does not exist; not if namespaces are not visible."""
    there = [meta.name for meta in snapshot.namespaces]
    if namespace and there and snapshot.sees("Namespace") and namespace not in there:
        near = get_close_matches(namespace, there, 1)
        end("diagnose", f"there is no namespace {namespace}" + (f"; do you mean {near[0]}?" if near else ""))


def _print(report: Report, form: DiagnoseFormat) -> None:
    match form:
        case DiagnoseFormat.JSON | DiagnoseFormat.YAML:
            write_as(form, document(report))
        case DiagnoseFormat.MARKDOWN | DiagnoseFormat.HTML:
            from gpu_healthcheck.diagnosis.report.pages import html_page, markdown_page  # noqa: PLC0415 - no other form needs templates

            write_document(html_page(report) if form is DiagnoseFormat.HTML else markdown_page(report))
        case DiagnoseFormat.TERMINAL:
            screen = Screen.of_rows()
            for line in terminal.page(report, screen.width):
                screen.print(line, soft_wrap=True)


def _exit_code(report: Report) -> int:
    ranks = report.ranks or RankReport()
    if report.diagnosis.problems or ranks.suspects:
        return CAUSES
    if ranks.could_not:
        return COULD_NOT
    needed = frozenset((SAVED_STATE,)) if report.recognised else _NEEDED
    if report.recognised and report.unexplained:
        return COULD_NOT
    return COULD_NOT if any(unchecked.kind in needed for unchecked in report.diagnosis.unseen) else 0
