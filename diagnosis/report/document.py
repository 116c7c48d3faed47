"""Render the diagnosis as one JSON document."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from gpu_healthcheck.diagnosis.answers.allocation import Allocation, NodeAllocation, Pool, Total, totals
from gpu_healthcheck.diagnosis.answers.chain import Step
from gpu_healthcheck.diagnosis.answers.hami_parts import InstallationTable
from gpu_healthcheck.diagnosis.causes.diagnose import Problem
from gpu_healthcheck.diagnosis.facts.components import ComponentRow
from gpu_healthcheck.diagnosis.hami.cards import CardUsage
from gpu_healthcheck.diagnosis.report.content import Report
from gpu_healthcheck.healthcheck.text.moments import timestamp

_MOST_AFFECTED = 200


def document(report: Report) -> dict[str, Any]:
    """Return the report as plain values for JSON."""
    diagnosis = report.diagnosis
    fields: dict[str, Any] = {
        "at": timestamp(diagnosis.at),
        "cluster": cluster_document(report.cluster) if report.cluster is not None else {},
        "components": [_component(component) for component in report.components],
        "causes": [_problem(problem) for problem in diagnosis.problems],
        "unobserved": [{"kind": each.kind, "why": each.why, "hides": each.hides} for each in diagnosis.unseen],
    }
    if report.recognised:
        fields["recognised"] = dict(report.recognised)
    if report.hami:
        fields["hami"] = [_installation(table) for table in report.hami]
    if report.chains:
        fields["chains"] = [
            {"pod": chain.pod, "links": [_step(step) for step in chain.steps]} for chain in report.chains
        ]
    if report.node:
        fields["node"] = [to_builtins(row) for row in report.node]
    if report.ranks is not None:
        fields["ranks"] = to_builtins(report.ranks)
    if report.changes is not None:
        fields["changes"] = [to_builtins(change) for change in report.changes]
    if report.timeline:
        rows = report.timeline
        fields["timeline"] = [{"at": timestamp(one.at), "what": one.what, "source": one.source} for one in rows]
    return fields


def cluster_document(allocation: Allocation) -> dict[str, Any]:
    """Return the document of the cluster.

    Amounts in use are null if pods are not visible, because they are unknown then.
    """
    known = [node.gpus for node in allocation.nodes if node.gpus is not None]
    return {
        "gpu_nodes": len(allocation.nodes),
        "gpu_nodes_usable": sum(node.usable for node in allocation.nodes),
        "gpus": sum(known),
        "gpu_nodes_uncounted": len(allocation.nodes) - len(known),
        "resources": [_amounts(total, allocation.pods_seen) for total in totals(allocation)],
        "hami_memory_scaling": dict(allocation.memory_scaling),
        "namespaces": [to_builtins(namespace) for namespace in allocation.namespaces],
        "nodes": [_node(node, allocation.pods_seen) for node in allocation.nodes],
    }


def _amounts(total: Total | Pool, pods_seen: bool) -> dict[str, Any]:
    return {
        "resource": total.resource,
        "kind": total.kind,
        "capacity": total.capacity,
        "allocatable": total.total,
        "held": total.held if pods_seen else None,
        "free": total.free if pods_seen else None,
    }


def _node(allocation: NodeAllocation, pods_seen: bool) -> dict[str, Any]:
    return {
        "node": allocation.node,
        "product": allocation.product,
        "gpus": allocation.gpus,
        "usable": allocation.usable,
        "closed": allocation.closed,
        "resources": [
            _amounts(pool, pods_seen) | {"holders": [to_builtins(holder) for holder in pool.holders[:_MOST_AFFECTED]]}
            for pool in allocation.pools
        ],
        "cards": [_card(each, pods_seen) | _used(allocation, each) for each in allocation.cards],
        "utilization_percent": allocation.percent,
        "utilization": [to_builtins(load) for load in allocation.loads[:_MOST_AFFECTED]],
        "cpu_free": float(allocation.cpu_free) if pods_seen else None,
        "memory_free_bytes": int(allocation.memory_free) if pods_seen else None,
    }


def _used(node: NodeAllocation, card: CardUsage) -> dict[str, Any]:
    """Return the use by pod, if Prometheus was queried for HAMi's own metrics."""
    if not node.used:
        return {}
    fields = {pod: node.used[pod, card.card.uuid] for pod, _ in card.pods if (pod, card.card.uuid) in node.used}
    return {"in_use": {pod: {"memory_mib": use.memory, "cores_percent": use.cores} for pod, use in fields.items()}}


def _card(usage: CardUsage, pods_seen: bool) -> dict[str, Any]:
    card, amounts = usage.card, {"slots": "slots", "memory": "memory_mib", "cores": "cores_percent"}
    fields: dict[str, Any] = {
        "uuid": card.uuid,
        "index": card.index,
        "type": card.model,
        "mode": card.mode,
        "numa": card.numa,
        "healthy": card.healthy,
        "cordoned": usage.cordoned,
    }
    for name, key in amounts.items():
        fields[key] = getattr(card, name)
        fields[f"{key}_held"] = getattr(usage.part, name) if pods_seen else None
        fields[f"{key}_free"] = getattr(usage.free, name) if pods_seen else None
    fields["pods"] = [
        {"pod": pod} | {key: getattr(part, name) for name, key in amounts.items()}
        for pod, part in usage.pods[:_MOST_AFFECTED]
    ]
    return fields


def _component(row: ComponentRow) -> dict[str, Any]:
    component = row.component
    return {
        "component": component.role.value,
        "workload": component.subject,
        "namespace": component.meta.namespace,
        "version": component.version,
        "wanted": component.wanted,
        "ready": component.ready,
        "health": component.health.value,
        "lacking": list(row.lacking[:_MOST_AFFECTED]),
        "lacking_count": len(row.lacking),
    }


def _installation(table: InstallationTable) -> dict[str, Any]:
    parts = [
        {
            "part": part.what,
            "health": part.health.value if part.health is not None else None,
            "status": part.status,
            "version": part.version,
            "detail": part.detail,
        }
        for part in table.parts
    ]
    return {"installation": table.name, "scheduler": table.scheduler_name, "parts": parts}


def _step(step: Step) -> dict[str, Any]:
    causes = [problem.found.cause.name for problem in step.problems]
    return {"link": step.link.value, "state": step.state.value, "seen": step.seen, "causes": causes}


def _problem(problem: Problem) -> dict[str, Any]:
    found = problem.found
    return {
        "cause": found.cause.name,
        "severity": found.cause.severity.name.lower(),
        "certainty": found.certainty.name.lower(),
        "subject": found.subject,
        "evidence": list(found.evidence),
        "evidence_left_out": problem.evidence_left_out,
        "remedy": list(found.steps),
        "affected": list(found.affected[:_MOST_AFFECTED]),
        "affected_count": len(found.affected),
        "consequences": [_problem(child) for child in problem.consequences],
    }
