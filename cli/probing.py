"""`--probe-nodes`: the choice of nodes to probe, and the entry of their answers in the snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import typer
from msgspec.structs import replace
from rich.progress import BarColumn, Progress, TextColumn

from cli.access import cluster_of
from cli.diagnose import ALL_SUSPECTS, ProbeOptions
from cli.node_probes import NodeProbeAnswer, NodeProbeError, NodeProbes, must_have_rights, template_for
from diagnosis.answers.suspects import answers, suspects
from diagnosis.answers.target import TargetError
from diagnosis.causes.diagnose import diagnose
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node
from healthcheck.cluster.errors import ClusterError
from healthcheck.cluster.kubeconfig import Access
from healthcheck.host.console import Screen
from healthcheck.host.program import INTERRUPTED
from healthcheck.host.streams import complain, say


def with_probes(snapshot: Snapshot, access: Access, wanted: ProbeOptions) -> Snapshot:
    """Return the snapshot with the records of probed nodes; failures are reported. Raises TargetError."""
    chosen = _chosen(snapshot, wanted)
    if not chosen:
        say("no suspect node lacks an agent's record")
    for node in chosen:
        if not answers(node):
            say(f"node {node.name} was not checked: its kubelet does not answer")
    nodes = [node for node in chosen if answers(node)]
    if not nodes:
        return snapshot
    try:
        fields = _answers(nodes, access, wanted)
    except (NodeProbeError, ClusterError) as error:
        complain("diagnose", f"--probe-nodes: {error}")
        return snapshot
    for name, answer in fields.items():
        if answer.why_not:
            say(f"node {name} was not checked: {answer.why_not}")
    return _with_records(snapshot, fields)


def _chosen(snapshot: Snapshot, wanted: ProbeOptions) -> tuple[Node, ...]:
    if not snapshot.sees("Node"):
        raise TargetError(f"--probe-nodes: nodes can't be read: {snapshot.missing['Node']}")
    named = [name for name in wanted.nodes if name != ALL_SUSPECTS]
    if unknown := [name for name in named if name not in snapshot.by_node]:
        raise TargetError(f"--probe-nodes: there is no node/{unknown[0]}")
    chosen = {name: snapshot.by_node[name] for name in named}
    if ALL_SUSPECTS in wanted.nodes:
        chosen |= {suspect.name: suspect for suspect in suspects(snapshot, diagnose(snapshot))}
    return tuple(chosen.values())


def _answers(nodes: Iterable[Node], access: Access, wanted: ProbeOptions) -> Mapping[str, NodeProbeAnswer]:
    """Return the answers of the nodes.

    Raises ProbeError, ClusterError; an interrupted command reports leftover pods.
    """
    cluster = cluster_of(access)
    must_have_rights(cluster, wanted.namespace)
    probes = NodeProbes(cluster, template_for(cluster, wanted.image), wanted.namespace, say)
    probes.remove_leftovers()
    pairs = [(node.name, node.meta.uid) for node in nodes]
    screen = Screen(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn()
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("Probing", total=len(pairs))
        fields = probes.run(pairs, wanted.max_workers, lambda: bar.advance(task))
    for answer in fields.values():
        if answer.left:
            say(f"left: `kubectl -n {wanted.namespace} delete pod {answer.left}` removes it; it also ends on its own")
    if probes.interrupted:
        complain("diagnose", "interrupted")
        raise typer.Exit(INTERRUPTED)
    return fields


def _with_records(snapshot: Snapshot, fields: Mapping[str, NodeProbeAnswer]) -> Snapshot:
    records = {name: answer.record for name, answer in fields.items() if answer.record is not None}
    nodes = (replace(node, record=records.get(node.name, node.record)) for node in snapshot.nodes)
    return replace(snapshot, nodes=tuple(nodes))
