"""`gpu-healthcheck diagnose`: why a GPU pod or node is stuck, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeGuard

import typer
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from cli import probing, would_fit
from cli.access import Context, Kubeconfig
from cli.acyclic import acyclic
from cli.utilization import Prometheus, with_idle
from diagnosis.allocation import allocation
from diagnosis.bundle import Bundle
from diagnosis.chain import chains_of
from diagnosis.collect import Collector
from diagnosis.components import component_table
from diagnosis.diagnose import Diagnosis
from diagnosis.diagnose import diagnose as judge
from diagnosis.drift import changes
from diagnosis.hami_chain import hami_chains
from diagnosis.hami_parts import installation_tables
from diagnosis.kinds import KINDS
from diagnosis.node_inventory import inventory
from diagnosis.one_pod import look_at_pod
from diagnosis.report import html, markdown, terminal
from diagnosis.report.document import document
from diagnosis.report.whole import Report
from diagnosis.saved import SavedStateError, read_saved
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.gpu_use import USE
from diagnosis.target import Target, TargetError, concerned, in_namespace, is_there, narrowed, parse_target, pods_of
from diagnosis.wanted_pods import NoPodError
from healthcheck.cluster.connection import connect
from healthcheck.cluster.errors import ClusterError
from healthcheck.cluster.kubeconfig import Access
from healthcheck.cluster.listings import Listings
from healthcheck.cluster.names import NAMESPACE
from healthcheck.host.console import Screen
from healthcheck.host.program import USAGE
from healthcheck.host.streams import complain, write_document, write_json

NOTHING, CAUSES, COULD_NOT = 0, 1, 2
_NEEDED = frozenset(("Node", "Pod", USE))
"""Whoever does not see these, the last where he asked for it, can't say that nothing is wrong."""
_WORDS = typer.Argument(
    metavar="[KIND NAME]", help="pod NS/NAME, node NAME, job NS/NAME …; default: the whole cluster."
)


class Output(StrEnum):
    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the state comes from: files, or a cluster of which it is saved where somebody asked for that."""

    saved: list[Path]
    access: Access
    namespace: str
    save: Path | None
    since: Path | None
    prometheus: str
    probes: probing.Wish

    def is_near(self, target: Target | None) -> TypeGuard[Target]:
        """Whether what lies around one pod may be enough: not to keep it, compare it, or choose other nodes from it."""
        one = target is not None and target.kind == "Pod"
        return one and self.save is None and self.since is None and not self.probes.nodes


@acyclic()
def diagnose(  # noqa: PLR0913, PLR0917 - each is an option of the command
    words: Annotated[list[str] | None, _WORDS] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Only what lies in it, or keeps it from work.")
    ] = "",
    saved: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="PATH", help="Saved state: kubectl's JSON, a cluster-info dump, an archive of --save."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Keep what was seen, without secrets, as FILE (tar.gz)."),
    ] = None,
    since: Annotated[
        Path | None, typer.Option("--since", metavar="OLD", help="Also say what changed since this saved state.")
    ] = None,
    wanted: Annotated[
        Path | None,
        typer.Option(
            "--would-fit", metavar="FILE", help="Say where the pods of this manifest would find room, and make none."
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="terminal, markdown, json or html.")
    ] = Output.TERMINAL,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    prometheus: Prometheus = "",
    probe_nodes: probing.Nodes = None,
    probe_image: probing.Image = "",
    probe_namespace: probing.Namespace = NAMESPACE,
    max_workers: probing.MaxWorkers = 8,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Say why GPU pods and nodes are stuck. Exit code: 0 nothing found, 1 causes found, 2 could not look."""
    if prometheus and saved:
        _end("--prometheus tells of now, and --from of then", USAGE)
    probes = probing.wish(probe_nodes, probe_image, probe_namespace, max_workers)
    if probes.nodes and saved:
        _end("--probe-nodes looks now, and --from tells of then", USAGE)
    output = Output.JSON if as_json else output
    others = words or since or prometheus or probes.nodes
    if wanted is not None and (others or output not in (Output.TERMINAL, Output.JSON)):
        _end("--would-fit asks of the whole cluster, and answers on a terminal or in JSON", USAGE)
    pods = _read_wanted(wanted, namespace) if wanted is not None else ()
    try:
        target = parse_target(words or (), namespace)
        old = read_saved([since]) if since is not None else None
        place = _Place(saved or [], Access(kubeconfig, context), namespace, save, since, prometheus, probes)
        snapshot = _look(place, target)
    except (TargetError, SavedStateError) as error:
        _end(str(error), USAGE)
    except OSError as error:
        _end(f"{save}: {error.strerror}", USAGE)
    except ClusterError as error:
        _end(str(error), COULD_NOT)
    if pods:
        _answer(snapshot, pods, place, output)
    _must_exist(snapshot, target)
    report = _report(snapshot, target, namespace, old)
    if target is None:
        report = replace(report, hami=installation_tables(snapshot))
    if output is not Output.TERMINAL and (target is None or target.kind != "Pod"):
        # Of one pod only what it depends on was looked at: that is no picture of the cluster.
        report = replace(report, cluster=allocation(snapshot), components=component_table(snapshot))
    _print(report, output)
    raise typer.Exit(_exit_code(report.diagnosis))


def _read_wanted(file: Path, namespace: str) -> tuple[dict[str, Any], ...]:
    try:
        return would_fit.read_pods(file, namespace)
    except (NoPodError, OSError) as error:
        _end(would_fit.shown_error(file, error), USAGE)


def _answer(snapshot: Snapshot, pods: Iterable[Mapping[str, Any]], place: _Place, output: Output) -> NoReturn:
    """Ends with NOTHING where each pod fits on some node, CAUSES where one does not, COULD_NOT where nobody knows."""
    try:
        ask = None if place.saved else Listings(partial(connect, place.access)).try_pod
        told = list(would_fit.answers(snapshot, pods, ask))
    except NoPodError as error:
        _end(str(error), USAGE)
    except ClusterError as error:
        _end(str(error), COULD_NOT)
    if output is Output.JSON:
        write_json(would_fit.document(told), indent=2)
    else:
        screen = Screen.of_rows()
        for part in would_fit.page(told):
            screen.print(part, soft_wrap=True)
    if not snapshot.sees("Node", "Pod"):
        _end("nodes or pods are not visible: what is free is not known", COULD_NOT)
    raise typer.Exit(NOTHING if all(one.fits for one in told) else CAUSES)


def _print(report: Report, output: Output) -> None:
    match output:
        case Output.JSON:
            write_json(document(report), indent=2)
        case Output.MARKDOWN:
            write_document(markdown.text(report))
        case Output.HTML:
            write_document(html.text(report))
        case Output.TERMINAL:
            screen = Screen.of_rows()
            for part in terminal.page(report, screen.width):
                screen.print(part, soft_wrap=isinstance(part, Text))


def _look(place: _Place, target: Target | None) -> Snapshot:
    """Raises SavedStateError, ClusterError; OSError where it can't be saved."""
    if place.saved:
        return read_saved(place.saved)
    bundle = Bundle() if place.save is not None else None
    screen = Screen(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn()
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        # Nobody knows beforehand how far a look at one pod goes.
        task = bar.add_task("Listing", total=None if place.is_near(target) else len(KINDS))
        cluster = Listings(partial(connect, place.access))
        collector = Collector(cluster.objects, bundle.keep if bundle else None, lambda _: bar.advance(task))
        if place.is_near(target):
            snapshot = look_at_pod(collector, cluster.read_log, target)
        else:
            one = place.namespace or (target.namespace if target is not None else "")
            snapshot = collector.with_logs(collector.collect(namespace=one), cluster.read_log)
    if bundle is not None and place.save is not None:
        listed = [one.kind for one in KINDS if snapshot.sees(one.kind)]
        bundle.write(place.save, snapshot.now, snapshot.missing, listed)
    if place.probes.nodes:
        snapshot = probing.with_probes(snapshot, place.access, place.probes)
    return with_idle(snapshot, place.prometheus) if place.prometheus else snapshot


def _report(snapshot: Snapshot, target: Target | None, namespace: str, old: Snapshot | None) -> Report:
    diagnosis = judge(snapshot)
    told = changes(old, snapshot) if old is not None else None
    if target is None:
        return Report(in_namespace(diagnosis, namespace) if namespace else diagnosis, changes=told)
    diagnosis = narrowed(diagnosis, concerned(snapshot, target))
    if target.kind == "Node":
        return Report(diagnosis, node=inventory(snapshot, snapshot.by_node[target.name]), changes=told)
    pods = pods_of(snapshot, target)
    chains = (*chains_of(snapshot, pods, diagnosis.problems), *hami_chains(snapshot, pods, diagnosis.problems))
    return Report(diagnosis, chains, changes=told)


def _must_exist(snapshot: Snapshot, target: Target | None) -> None:
    if target is None or is_there(snapshot, target):
        return
    if snapshot.sees(target.kind):
        _end(f"there is no {target.subject}", USAGE)
    _end(f"{target.subject} can't be seen: {snapshot.missing[target.kind]}", COULD_NOT)


def _end(message: str, code: int) -> NoReturn:
    complain("diagnose", message)
    raise typer.Exit(code)


def _exit_code(diagnosis: Diagnosis) -> int:
    if diagnosis.problems:
        return CAUSES
    return COULD_NOT if any(one.kind in _NEEDED for one in diagnosis.unseen) else NOTHING
