"""Work of `gpu-healthcheck diagnose`: read the state of a cluster, judge it, and print the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import typer
from msgspec.structs import replace
from rich.text import Text

from cli import would_fit
from cli.acyclic import acyclic
from cli.diagnose import DiagnoseFormat, DiagnoseOptions
from cli.json_documents import write_as
from diagnosis.answers.allocation import allocation
from diagnosis.answers.chain import chains_of
from diagnosis.answers.drift import changes
from diagnosis.answers.hami_chain import hami_chains
from diagnosis.answers.hami_parts import installation_tables
from diagnosis.answers.node_inventory import inventory
from diagnosis.answers.one_pod import look_at_pod
from diagnosis.answers.target import (
    Target,
    TargetError,
    concerned,
    in_namespace,
    is_there,
    narrowed,
    parse_target,
    pods_of,
)
from diagnosis.causes.diagnose import SAVED_STATE, Diagnosis
from diagnosis.causes.diagnose import diagnose as judge
from diagnosis.facts.components import component_table
from diagnosis.facts.wanted_pods import NoPodError
from diagnosis.report import markdown, terminal
from diagnosis.report.content import Report
from diagnosis.report.document import document
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.gpu_use import USE
from diagnosis.sources.bundle import Bundle
from diagnosis.sources.collect import Collector
from diagnosis.sources.kinds import KINDS
from diagnosis.sources.saved import NoSavedStateError, SavedStateError, read_saved
from healthcheck.cluster.errors import ClusterError
from healthcheck.host.console import Screen
from healthcheck.host.program import USAGE
from healthcheck.host.streams import complain, write_document

if TYPE_CHECKING:
    from healthcheck.cluster.listings import Listings

NOTHING, CAUSES, COULD_NOT = 0, 1, 2
_NEEDED = frozenset(("Node", "Pod", USE, SAVED_STATE))
"""Inputs without which "no cause found" is not certain; `USE` only if it was requested."""
_WOULD_FIT_FORMS = (DiagnoseFormat.TERMINAL, DiagnoseFormat.JSON, DiagnoseFormat.YAML)


@acyclic()
def answer(options: DiagnoseOptions) -> int:
    """Returns the exit code."""
    if options.prometheus and options.saved:
        _end("--prometheus reads current values and --from reads a saved state: use one of them", USAGE)
    if options.probes.nodes and options.saved:
        _end("--probe-nodes checks nodes now and --from reads a saved state: use one of them", USAGE)
    others = options.words or options.since or options.prometheus or options.probes.nodes
    if options.wanted is not None and (others or options.output not in _WOULD_FIT_FORMS):
        _end(
            "--would-fit allows no KIND NAME, --since, --prometheus or --probe-nodes, and prints text, JSON or YAML",
            USAGE,
        )
    pods = _read_wanted(options.wanted, options.namespace) if options.wanted is not None else ()
    try:
        target = parse_target(options.words, options.namespace)
        old = _read_old(options.since) if options.since is not None else None
        snapshot = _look(options, target)
    except (TargetError, NoSavedStateError) as error:
        _end(str(error), USAGE)
    except SavedStateError as error:
        _end(str(error), COULD_NOT)
    except OSError as error:
        _end(f"{options.save}: {error.strerror}", USAGE)
    except ClusterError as error:
        _end(str(error), COULD_NOT)
    if pods:
        _answer(snapshot, pods, options)
    _must_exist(snapshot, target)
    return _print_report(_report(snapshot, target, options.namespace, old), snapshot, target, options.output)


def _print_report(report: Report, snapshot: Snapshot, target: Target | None, output: DiagnoseFormat) -> int:
    if target is None:
        report = replace(report, hami=installation_tables(snapshot))
    if output is not DiagnoseFormat.TERMINAL and (target is None or target.kind != "Pod"):
        # For one pod only its dependencies are read, which is no overview of the cluster.
        report = replace(report, cluster=allocation(snapshot), components=component_table(snapshot))
    _print(report, output)
    return _exit_code(report.diagnosis)


def _is_near(target: Target | None, options: DiagnoseOptions) -> TypeGuard[Target]:
    """Whether the dependencies of one pod are enough: not to save or compare the state, or to choose other nodes."""
    is_pod = target is not None and target.kind == "Pod"
    return is_pod and options.save is None and options.since is None and not options.probes.nodes


def _read_old(path: Path) -> Snapshot:
    """Read a saved state. Raises SavedStateError for an incomplete one, because its missing part would count as new."""
    old = read_saved([path])
    if old.unread:
        raise SavedStateError(old.unread[0])
    return old


def _read_wanted(file: Path, namespace: str) -> tuple[dict[str, Any], ...]:
    try:
        return would_fit.read_pods(file, namespace)
    except (NoPodError, OSError) as error:
        _end(would_fit.shown_error(file, error), USAGE)


def _answer(snapshot: Snapshot, pods: Iterable[Mapping[str, Any]], options: DiagnoseOptions) -> NoReturn:
    """Exit with NOTHING if each pod fits on a node, CAUSES if one does not, COULD_NOT if that is unknown."""
    try:
        ask = None if options.saved else _listings(options).try_pod
        answers = list(would_fit.answers(snapshot, pods, ask))
    except NoPodError as error:
        _end(str(error), USAGE)
    except ClusterError as error:
        _end(str(error), COULD_NOT)
    if options.output in (DiagnoseFormat.JSON, DiagnoseFormat.YAML):
        write_as(options.output, would_fit.document(answers))
    else:
        screen = Screen.of_rows()
        for part in would_fit.page(answers):
            screen.print(part, soft_wrap=True)
    if snapshot.unread:
        _end(f"{snapshot.unread[0]}: free resources are unknown", COULD_NOT)
    if not snapshot.sees("Node", "Pod"):
        _end("nodes or pods can't be listed: free resources are unknown", COULD_NOT)
    raise typer.Exit(NOTHING if all(answer.fits for answer in answers) else CAUSES)


def _print(report: Report, output: DiagnoseFormat) -> None:
    match output:
        case DiagnoseFormat.JSON | DiagnoseFormat.YAML:
            write_as(output, document(report))
        case DiagnoseFormat.MARKDOWN:
            write_document(markdown.text(report))
        case DiagnoseFormat.HTML:
            from diagnosis.report import html  # noqa: PLC0415 - no other form needs its templates

            write_document(html.text(report))
        case DiagnoseFormat.TERMINAL:
            screen = Screen.of_rows()
            for part in terminal.page(report, screen.width):
                screen.print(part, soft_wrap=isinstance(part, Text))


def _look(options: DiagnoseOptions, target: Target | None) -> Snapshot:
    """Read the state. Raises SavedStateError, ClusterError, and OSError if it can't be saved."""
    if options.saved:
        return read_saved(options.saved)
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - where there is something to wait for

    bundle = Bundle() if options.save is not None else None
    screen = Screen(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn()
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        # For one pod, the number of steps is unknown in advance.
        task = bar.add_task("Listing", total=None if _is_near(target, options) else len(KINDS))
        cluster = _listings(options)
        collector = Collector(cluster.objects, bundle.keep if bundle else None, lambda _: bar.advance(task))
        if _is_near(target, options):
            snapshot = look_at_pod(collector, cluster.read_log, target)
        else:
            text = options.namespace or (target.namespace if target is not None else "")
            snapshot = collector.with_logs(collector.collect(namespace=text), cluster.read_log)
    if bundle is not None and options.save is not None:
        listed = [kind.kind for kind in KINDS if snapshot.sees(kind.kind)]
        bundle.write(options.save, snapshot.now, snapshot.missing, listed)
    if options.probes.nodes:
        from cli import probing  # noqa: PLC0415 - few ask for it

        snapshot = probing.with_probes(snapshot, options.access, options.probes)
    if not options.prometheus:
        return snapshot
    from cli.utilization_table import with_idle  # noqa: PLC0415 - where a Prometheus is to be asked

    return with_idle(snapshot, options.prometheus)


def _listings(options: DiagnoseOptions) -> Listings:
    from cli.access import listings_of  # noqa: PLC0415 - a saved state needs no client of a cluster

    return listings_of(options.access)


def _report(snapshot: Snapshot, target: Target | None, namespace: str, old: Snapshot | None) -> Report:
    diagnosis = judge(snapshot)
    changed = changes(old, snapshot) if old is not None else None
    if target is None:
        return Report(in_namespace(diagnosis, namespace) if namespace else diagnosis, changes=changed)
    diagnosis = narrowed(diagnosis, concerned(snapshot, target))
    if target.kind == "Node":
        return Report(diagnosis, node=inventory(snapshot, snapshot.by_node[target.name]), changes=changed)
    pods = pods_of(snapshot, target)
    chains = (*chains_of(snapshot, pods, diagnosis.problems), *hami_chains(snapshot, pods, diagnosis.problems))
    return Report(diagnosis, chains, changes=changed)


def _must_exist(snapshot: Snapshot, target: Target | None) -> None:
    if target is None or is_there(snapshot, target):
        return
    if snapshot.sees(target.kind):
        _end(f"there is no {target.subject}", USAGE)
    _end(f"{target.subject} can't be read: {snapshot.missing[target.kind]}", COULD_NOT)


def _end(message: str, code: int) -> NoReturn:
    complain("diagnose", message)
    raise typer.Exit(code)


def _exit_code(diagnosis: Diagnosis) -> int:
    if diagnosis.problems:
        return CAUSES
    return COULD_NOT if any(unchecked.kind in _NEEDED for unchecked in diagnosis.unseen) else NOTHING
