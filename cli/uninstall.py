"""`gpu-healthcheck uninstall`: remove all labels, taints, annotations and conditions of this project from all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.cli.options import Context, Kubeconfig, RequestTimeout
from gpu_healthcheck.cli.words import confirmed, end, explained
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, NotFound
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.host.program import COULD_NOT
from gpu_healthcheck.healthcheck.host.streams import complain, say
from gpu_healthcheck.healthcheck.model import PREFIX, Severity, counted
from gpu_healthcheck.healthcheck.node.device_rules import DeviceRule
from gpu_healthcheck.healthcheck.node.state import CORDONED_BY, ENABLED, STARTUP
from gpu_healthcheck.healthcheck.operations.uninstall import (
    DELETE_FILES,
    DELETE_REST,
    SELECTOR,
    SHOW_RULES,
    STOP,
    STOP_GATE,
    Removal,
    patch,
    removal,
)
from gpu_healthcheck.healthcheck.text.naming import named
from gpu_healthcheck.healthcheck.text.printable import printable

if TYPE_CHECKING:
    from gpu_healthcheck.healthcheck.cluster.client import Cluster
    from gpu_healthcheck.healthcheck.cluster.dra import DeviceTaints
    from gpu_healthcheck.healthcheck.cluster.jobs import PodOwner

LEFT = 1
_MOST_NAMED = 5
_BAD = tuple(severity.name for severity in Severity if severity >= Severity.RESET)


def uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be removed; write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Remove our labels, taints, annotations and conditions from all nodes and GPUs.

    Other tools' values stay, and so does a person's cordon.

    Remove the gate's policy, our agents, Deployments and CronJobs first, because they would write again; the command
    prints how.

    Exit code: 0 no node has anything of ours; 1 a node has, or our programs still run; 2 could not; 130 no
    answer.
    """
    try:
        cluster = cluster_of(Access(kubeconfig, context, request_timeout))
        code = _uninstall(cluster, Screen(soft_wrap=True), dry_run=dry_run, yes=yes)
    except ClusterError as error:
        end("uninstall", explained(error), COULD_NOT)
    raise typer.Exit(code)


def _uninstall(cluster: Cluster, console: Screen, *, dry_run: bool, yes: bool) -> int:
    from gpu_healthcheck.healthcheck.cluster.dra import DeviceTaints  # noqa: PLC0415 - the help does not need the client

    gate = _gate(cluster, console)
    running = list(cluster.jobs.list_workloads(SELECTOR))
    taints = DeviceTaints(cluster.connection)
    gone = _look(cluster)
    rules = _rules(taints, gone, console)
    _show_all(gone, rules, console)
    if gate:
        complain("uninstall", f"the gate is still added to new pods: {named(gate, _MOST_NAMED)}")
        say(f"Delete it first, because these pods need our image:\n  {STOP_GATE}")
    if running:
        _say_what_runs(running)
    if dry_run:
        return 0
    if gate or running:
        return LEFT
    if (gone or rules) and not (yes or confirmed("uninstall", "Remove all this?")):
        console.print("nothing was changed")
        return LEFT
    failed = [removal.node for removal in gone if not take_off(cluster, removal.node, console)]
    for rule in rules:
        taints.delete_rule(rule)
    remain = taints.list_all_rules() if rules else ()
    if left := [*(removal.node for removal in _look(cluster)), *(device_rule.name for device_rule in remain)]:
        why = "" if failed else ": a program of this project wrote it again; find out which one still runs"
        complain("uninstall", f"still there on {named(left, _MOST_NAMED)}{why}")
        return COULD_NOT if failed else LEFT
    _say_what_remains(gone, console)
    return 0


def _gate(cluster: Cluster, console: Screen) -> tuple[str, ...]:
    """Return the policies and bindings that add the gate to pods. Raises ClusterError."""
    try:
        return cluster.policies.list_gate()
    except Forbidden as error:
        console.print(f"The policies of the gate can't be listed: {error}")
        console.print(f"If the gate was enabled, a user with permission to delete them must run:\n  {STOP_GATE}")
        return ()


def _rules(taints: DeviceTaints, gone: Sequence[Removal], console: Screen) -> tuple[DeviceRule, ...]:
    """Return our DeviceTaintRules. Raises ClusterError.

    Without permission to list them, return none if no node's record has one.
    """
    try:
        return taints.list_all_rules()
    except Forbidden as error:
        if any(removal.has_rules for removal in gone):
            raise
        console.print(f"DeviceTaintRules can't be listed, and no node's record has one of ours: {error}")
        console.print(f"A user with permission to list them can check for leftovers:\n  {SHOW_RULES}")
        return ()


def _show_all(gone: Sequence[Removal], rules: Sequence[DeviceRule], console: Screen) -> None:
    for planned in gone:
        _show(planned, console)
    for rule in rules:
        console.print(
            f"DeviceTaintRule {printable(rule.name)}: a GPU accepts work again, although its verdict is "
            f"{rule.taint.tier}"
        )
    many = f"{counted(len(gone), 'node')} {'carry' if len(gone) > 1 else 'carries'} labels, taints or other data"
    console.print(f"{many} of gpu-healthcheck" if gone else "no node carries anything of gpu-healthcheck")


def _look(cluster: Cluster) -> list[Removal]:
    """Return the planned removals by node. Only a Node that is read individually shows the owner of its cordon."""
    nodes = (
        cluster.nodes.read(node.name) if node.cordoned and CORDONED_BY in node.annotations else node
        for node in cluster.nodes.select()
    )
    return [one for one in map(removal, nodes) if one]


def take_off(cluster: Cluster, name: str, console: Screen) -> bool:
    """Remove our fields, and return whether none is left. Raises Forbidden, which applies to the other Nodes too."""
    try:
        node = cluster.nodes.update(name, patch) or cluster.nodes.read(name)
        if conditions := removal(node).conditions:
            cluster.nodes.remove_conditions(name, conditions)
    except NotFound:
        console.print(f"{name}: the node is gone")
        return True
    except Forbidden:
        raise
    except ClusterError as error:
        complain("uninstall", f"{name}: {error}")
        return False
    console.print(f"{name}: done")
    return True


def _show(removal: Removal, console: Screen) -> None:
    parts = [
        _listed("label", removal.labels),
        _listed("annotation", removal.annotations),
        _listed("taint", removal.taints),
        _listed("HAMi cordon", removal.cordons),
        _listed("condition", removal.conditions),
    ]
    console.print(f"{removal.node}: {'; '.join(filter(None, parts))}")
    if removal.field_managers:
        console.print(f"  clears {removal.field_managers} field managers, more than a Node usually has")
    if removal.uncordoned:
        console.print(f"  is uncordoned: {printable(removal.uncordoned)} had cordoned it")
    if removal.switched_on:
        console.print(f"  switches on again what a reset has switched off: {', '.join(removal.switched_on)}")
    if removal.verdict in _BAD:
        console.print(f"  accepts work again, although its verdict is {removal.verdict}")
    for what in removal.kept:
        console.print(f"  keeps {printable(what)}: set by another owner")


def _listed(noun: str, keys: Sequence[str]) -> str:
    """Return the names without our common prefix."""
    names = ", ".join(printable(key.removeprefix(f"{PREFIX}/")) for key in keys)
    return f"{noun}{'s' if len(keys) > 1 else ''} {names}" if keys else ""


def _say_what_runs(running: Sequence[PodOwner]) -> None:
    complain(
        "uninstall",
        "programs of gpu-healthcheck still run, and would write again: "
        + named([str(owner) for owner in running], _MOST_NAMED),
    )
    say(f"End them, wait until their pods are gone, and run this again:\n  {STOP}")


def _say_what_remains(gone: Sequence[Removal], console: Screen) -> None:
    console.print(f"No node has anything of gpu-healthcheck any more. This deletes the rest:\n  {DELETE_REST}")
    console.print(
        f"The nodes' disks keep the agents' files and NVIDIA's reports. Delete them on each node:\n  {DELETE_FILES}"
    )
    if any(taint.startswith(STARTUP) for removal in gone for taint in removal.taints):
        console.print(f"Remove {STARTUP} from the configuration that creates nodes: new nodes would keep it.")
    if any(what.startswith(f"label {ENABLED}=") for removal in gone for what in removal.kept):
        console.print(
            "The label that a person set is kept for the next installation. To remove it:\n"
            f"  kubectl label nodes -l {ENABLED} {ENABLED}-"
        )
