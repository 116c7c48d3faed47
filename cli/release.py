"""`gpu-healthcheck release`: write a person's release of event findings, and wait for the agent's answer."""

from __future__ import annotations

import getpass
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text

from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.cli.options import (
    Context,
    Kubeconfig,
    RequestTimeout,
    Selector,
    complete_nodes,
    node_names,
    positive_seconds,
)
from gpu_healthcheck.cli.output.lines import print_line
from gpu_healthcheck.cli.words import SEVERITY_STYLES, confirmed, explained
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, NotFound, Refused
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access, context_and_user
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, USAGE
from gpu_healthcheck.healthcheck.host.streams import complain
from gpu_healthcheck.healthcheck.memory.findings import Release
from gpu_healthcheck.healthcheck.model import Severity, Status, counted
from gpu_healthcheck.healthcheck.node.state import RELEASE, RESULTS, NodeState, annotated
from gpu_healthcheck.healthcheck.operations.drain import cordoned_by, lift, why_kept
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import Fault, dump_release, faults_on, release_of
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord

if TYPE_CHECKING:
    from gpu_healthcheck.healthcheck.cluster.client import Cluster

STILL_STANDS = 1
Findings = frozenset[tuple[str, str, datetime]]
"""Reason, subject, and last observation."""


class CouldNotRelease(Exception):
    """A node can't be released, with the reason."""


class ReleaseOptions(Struct, frozen=True):
    """A release of several nodes, as the user requested it."""

    by: str
    """Name of the person; '' for the local user."""
    reason: str
    keep_cordoned: bool
    dry_run: bool
    wait_seconds: float
    shown: frozenset[tuple[str, str, datetime]] | None = None
    """Findings that the user saw and confirmed; None: all active ones."""


def _reason(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("the reason is empty; state how the findings were dealt with")
    return text


Reason = Annotated[
    str,
    typer.Option(
        "--reason",
        metavar="TEXT",
        callback=_reason,
        help="Reason, shown in the record and in an Event. Required.",
    ),
]
MaybeNodes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NODE...]", help="Their names.", callback=node_names, autocompletion=complete_nodes),
]
By = Annotated[
    str, typer.Option("--by", metavar="NAME", help="Your name; default: the kubeconfig's user, else the local user.")
]
KeepCordoned = Annotated[bool, typer.Option("--keep-cordoned", help="Do not remove the cordon of a quarantine run.")]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", show_default=False, help="Wait until the node's agent has applied it (the default)."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="TIME", parser=positive_seconds, show_default=False, help="Longest wait; default: 2m."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With -l: do not ask for confirmation.")]
Local = Annotated[
    bool, typer.Option("--local", help="Release this machine without a cluster: for `check` in a prolog.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the findings that would be released; write nothing.")]


def release(  # noqa: PLR0913, PLR0917 - each is an option of the command
    reason: Reason,
    nodes: MaybeNodes = None,
    selector: Selector = "",
    local: Local = False,
    by: By = "",
    keep_cordoned: KeepCordoned = False,
    wait: Wait = True,
    timeout: Timeout = 120.0,
    dry_run: DryRun = False,
    yes: Yes = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Release nodes: their present findings of logged errors (Xids) no longer count.

    A fault that persists is found again.

    With -l, it lists all nodes with these labels that have something to release, and asks for confirmation. A
    node that a quarantine run cordoned is uncordoned; a person's own cordon stays.

    With --local no cluster is used: the events of this machine's kernel log are released, for `check` here.

    Exit code: 0 released, or nothing to release; 1 a finding of RESET or worse, or a released one, is active; 2 could
    not, or no agent answered in time.
    """
    if local:
        if nodes or selector:
            raise typer.BadParameter("--local releases this machine: give no node name and no -l")
        from gpu_healthcheck.cli.local_release import release_here  # noqa: PLC0415 - only this form reads the local machine

        raise typer.Exit(release_here(by, reason, dry_run=dry_run))
    if bool(nodes) == bool(selector):
        raise typer.BadParameter("give node names or -l SELECTOR; --local is for this machine")
    options = ReleaseOptions(by, reason, keep_cordoned, dry_run, timeout if wait else 0.0)
    access = Access(kubeconfig, context, request_timeout)
    raise typer.Exit(
        release_nodes(nodes, options, access) if nodes else release_selected(selector, options, access, yes=yes)
    )


def release_nodes(nodes: Sequence[str], options: ReleaseOptions, access: Access) -> int:
    """Release the nodes. Returns the exit code; with several nodes, the worst."""
    try:
        return _release_each(cluster_of(access), nodes, _signed(options, access))
    except ClusterError as error:
        complain("release", explained(error))
        return COULD_NOT


def release_selected(selector: str, options: ReleaseOptions, access: Access, *, yes: bool) -> int:
    """Release the nodes with these labels that have something to release, after confirmation. Returns the exit code."""
    try:
        cluster = cluster_of(access)
        nodes = list(cluster.nodes.select(selector))
    except Refused as error:
        complain("release", f"-l {selector!r}: {error}")
        return USAGE
    except ClusterError as error:
        complain("release", explained(error))
        return COULD_NOT
    if not nodes:
        complain("release", f"-l {selector!r}: no node has these labels")
        return COULD_NOT
    now = datetime.now(UTC)
    shown = {
        node.name: _meant(new_release)
        for node in nodes
        if (new_release := release_of(node, "", "", now)).findings or cordoned_by(node) or node.tainted()
    }
    return _release_shown(cluster, shown, len(nodes), _signed(options, access), yes=yes)


def _signed(options: ReleaseOptions, access: Access) -> ReleaseOptions:
    return options if options.by else replace(options, by=context_and_user(access)[1] or getpass.getuser())


def _release_each(cluster: Cluster, nodes: Iterable[str], options: ReleaseOptions) -> int:
    console = Screen(soft_wrap=True)
    codes = []
    for name in nodes:
        try:
            codes.append(_release(cluster, name, options, console))
        except (ClusterError, CouldNotRelease) as error:
            complain("release", f"{name}: {explained(error)}")
            codes.append(COULD_NOT)
    return max(codes)


def _release_shown(
    cluster: Cluster, shown: Mapping[str, Findings], among: int, options: ReleaseOptions, *, yes: bool
) -> int:
    console = Screen(soft_wrap=True)
    if not shown:
        console.print(f"{counted(among, 'node')}, none has anything to release")
        return 0
    code = _release_each(cluster, shown, replace(options, dry_run=True))
    if options.dry_run or code:
        return code
    if not (yes or confirmed("release", f"Release {len(shown)} of {counted(among, 'node')}?")):
        console.print("nothing was changed")
        return STILL_STANDS
    return max(_release_each(cluster, (name,), replace(options, shown=meant)) for name, meant in shown.items())


def _meant(new_release: Release) -> Findings:
    return frozenset((finding.reason, finding.subject, finding.last_seen) for finding in new_release.findings)


def _release(cluster: Cluster, name: str, options: ReleaseOptions, console: Screen) -> int:
    node = _read(cluster, name)
    new_release = release_of(node, options.by, options.reason, datetime.now(UTC))
    if new_release.findings:
        console.print(f"{name}: {'would release' if options.dry_run else 'releasing'}")
        _show([fault for fault in faults_on(node) if fault.is_covered(new_release.findings)], console)
    elif node.tainted():
        console.print(
            f"{name}: no finding needs a release; its agent lifts the taint, unless a check still shows a fault"
        )
    else:
        console.print(f"{name}: nothing to release: no finding needs one, and the node has no taint of gpu-healthcheck")
    if not options.dry_run:
        node, new_release = _write(cluster, name, options)
    _show_cordon(node, options, console)
    if options.dry_run or not (new_release.findings or node.tainted()):
        code = _show_rest(node, new_release, console)
        return 0 if options.dry_run else code
    if not options.wait_seconds:
        console.print(f"{name}: written; the node's agent will apply it")
        return _show_active(node, new_release, console)
    after = _wait(cluster, name, dump_release(new_release), options.wait_seconds)
    console.print(f"{name}: released by {printable(options.by)}: {printable(options.reason)}")
    code = _show_rest(after, new_release, console)
    if after.tainted():
        console.print(f"{name}: its taint stays")
    return code


def _read(cluster: Cluster, name: str) -> NodeState:
    try:
        node = cluster.nodes.read(name)
    except NotFound:
        raise CouldNotRelease("the node does not exist") from None
    return _with_record(node)


def _with_record(node: NodeState) -> NodeState:
    if RESULTS not in node.annotations and not cordoned_by(node):
        raise CouldNotRelease("no agent has written a record of this node, so there is nothing to release")
    return node


def _write(cluster: Cluster, name: str, options: ReleaseOptions) -> tuple[NodeState, Release]:
    """Write the release of the events that the Node's records list at this moment; later ones are not covered.

    Returns the Node of that moment. The same patch lifts our cordon.
    """
    meant: list[tuple[NodeState, Release]] = []

    def releasing(latest: NodeState) -> dict[str, Any] | None:
        new_release = release_of(_with_record(latest), options.by, options.reason, datetime.now(UTC))
        if options.shown is not None and not _meant(new_release) <= options.shown:
            raise CouldNotRelease("it has new findings that were not shown; nothing was written, run the command again")
        meant.append((latest, new_release))
        return _patch(latest, new_release, options)

    try:
        cluster.nodes.update(name, releasing)
    except NotFound:
        raise CouldNotRelease("the node does not exist") from None
    return meant[-1]


def _patch(node: NodeState, new_release: Release, options: ReleaseOptions) -> dict[str, Any] | None:
    """Return the patch; None if there is nothing to write."""
    patch = None if options.keep_cordoned else lift(node, new_release.at)
    is_needed = new_release.findings or node.tainted()
    return annotated(node, {RELEASE: dump_release(new_release)}, patch) if is_needed else patch


def _wait(cluster: Cluster, name: str, text: str, seconds: float) -> NodeState:
    """Wait until the agent's record has the release, and return the Node."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for node in cluster.nodes.watch(name, math.ceil(left)):
            if node is None:
                raise CouldNotRelease("the node is gone")
            if node.annotations.get(RELEASE) != text:
                return node
            if time.monotonic() >= deadline:
                break
    raise CouldNotRelease(
        f"no agent of this node answered within {seconds:g} s; the release stays on the node (is its agent running?)"
    )


def _show_rest(node: NodeState, new_release: Release, console: Screen) -> int:
    """Print the remaining findings, and the agent's status. Returns the exit code."""
    code = _show_active(node, new_release, console)
    status = records.on_node(AgentRecord, node, RESULTS).status or Status.UNKNOWN.value
    console.print(f"{node.name}: its agent reports {status}")
    return STILL_STANDS if node.tainted() or status == Status.FAIL else code


def _show_active(node: NodeState, new_release: Release, console: Screen) -> int:
    """Print the findings that the release does not cover; a level fault ends only when a check cycle finds it gone.

    Return the exit code: a MONITOR finding of something else keeps no work away.
    """
    rest = [fault for fault in faults_on(node) if not fault.is_covered(new_release.findings)]
    if rest:
        console.print(f"{node.name}: still active")
        _show(rest, console)
    released = {(one.reason, one.subject) for one in new_release.findings}
    is_active = any(fault.severity >= Severity.RESET or (fault.reason, fault.subject) in released for fault in rest)
    return STILL_STANDS if is_active else 0


def _show_cordon(node: NodeState, options: ReleaseOptions, console: Screen) -> None:
    """Print the effect on the cordon of a cordoned node."""
    if not node.cordoned:
        return
    why = "as requested" if options.keep_cordoned else why_kept(node, datetime.now(UTC))
    by = printable(cordoned_by(node))
    if why:
        words = f"stays cordoned: {printable(why)}" + ("" if by else f" (kubectl uncordon {node.name})")
    else:
        words = f"{'would be uncordoned' if options.dry_run else 'uncordoned'}: it was cordoned by {by}"
    console.print(f"{node.name}: {words}")


def _show(faults: Sequence[Fault], console: Screen) -> None:
    for fault in faults:
        severity = Text(f"  {fault.severity.name:8}", SEVERITY_STYLES[fault.severity])
        seen = f", last seen {timestamp(fault.seen)}" if fault.seen else ""
        what = printable(f"{fault.reason} on {fault.subject} ({fault.nature.value}{seen})")
        print_line(console, severity, Text(what))
