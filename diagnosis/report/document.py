"""The diagnosis as one JSON document."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from diagnosis.allocation import Allocation, NodeAllocation, Pool, Total, totals
from diagnosis.chain import Chain, Step
from diagnosis.components import ComponentRow
from diagnosis.diagnose import Problem
from diagnosis.hami.holding import CardUsage
from diagnosis.hami_parts import InstallationTable
from diagnosis.report.whole import Report
from healthcheck.text.moments import timestamp

_MOST_AFFECTED = 200


def document(report: Report) -> dict[str, Any]:
    """Plain values, to be written as JSON."""
    diagnosis = report.diagnosis
    told: dict[str, Any] = {
        "at": timestamp(diagnosis.at),
        "cluster": cluster_document(report.cluster) if report.cluster is not None else {},
        "components": [_component(one) for one in report.components],
        "causes": [_problem(one) for one in diagnosis.problems],
        "unobserved": [{"kind": one.kind, "why": one.why, "hides": one.hides} for one in diagnosis.unseen],
    }
    if report.hami:
        told["hami"] = [_installation(one) for one in report.hami]
    if report.chains:
        told["chains"] = [_chain(one) for one in report.chains]
    if report.node:
        told["node"] = [to_builtins(one) for one in report.node]
    if report.changes is not None:
        told["changes"] = [to_builtins(one) for one in report.changes]
    return told


def cluster_document(told: Allocation) -> dict[str, Any]:
    """Return the document of the cluster.

    Amounts in use are null if pods are not visible, because they are unknown then.
    """
    known = [one.gpus for one in told.nodes if one.gpus is not None]
    return {
        "gpu_nodes": len(told.nodes),
        "gpu_nodes_usable": sum(one.usable for one in told.nodes),
        "gpus": sum(known),
        "gpu_nodes_uncounted": len(told.nodes) - len(known),
        "resources": [_amounts(one, told.pods_seen) for one in totals(told)],
        "hami_memory_scaling": dict(told.memory_scaling),
        "namespaces": [to_builtins(one) for one in told.namespaces],
        "nodes": [_node(one, told.pods_seen) for one in told.nodes],
    }


def _amounts(one: Total | Pool, pods_seen: bool) -> dict[str, Any]:
    return {
        "resource": one.resource,
        "kind": one.kind,
        "capacity": one.capacity,
        "allocatable": one.total,
        "held": one.held if pods_seen else None,
        "free": one.free if pods_seen else None,
    }


def _node(one: NodeAllocation, pods_seen: bool) -> dict[str, Any]:
    return {
        "node": one.node,
        "product": one.product,
        "gpus": one.gpus,
        "usable": one.usable,
        "closed": one.closed,
        "resources": [
            _amounts(pool, pods_seen) | {"holders": [to_builtins(holder) for holder in pool.holders[:_MOST_AFFECTED]]}
            for pool in one.pools
        ],
        "cards": [_card(each, pods_seen) | _used(one, each) for each in one.cards],
        "utilization_percent": one.percent,
        "utilization": [to_builtins(load) for load in one.loads[:_MOST_AFFECTED]],
        "cpu_free": float(one.cpu_free) if pods_seen else None,
        "memory_free_bytes": int(one.memory_free) if pods_seen else None,
    }


def _used(node: NodeAllocation, card: CardUsage) -> dict[str, Any]:
    """Return the use by pod, if Prometheus was queried for HAMi's own metrics."""
    if not node.used:
        return {}
    told = {pod: node.used[pod, card.card.uuid] for pod, _ in card.pods if (pod, card.card.uuid) in node.used}
    return {"in_use": {pod: {"memory_mib": one.memory, "cores_percent": one.cores} for pod, one in told.items()}}


def _card(one: CardUsage, pods_seen: bool) -> dict[str, Any]:
    card, amounts = one.card, {"slots": "slots", "memory": "memory_mib", "cores": "cores_percent"}
    told: dict[str, Any] = {
        "uuid": card.uuid,
        "index": card.index,
        "type": card.kind,
        "mode": card.mode,
        "numa": card.numa,
        "healthy": card.healthy,
        "cordoned": one.cordoned,
    }
    for name, key in amounts.items():
        told[key] = getattr(card, name)
        told[f"{key}_held"] = getattr(one.part, name) if pods_seen else None
        told[f"{key}_free"] = getattr(one.free, name) if pods_seen else None
    told["pods"] = [
        {"pod": pod} | {key: getattr(part, name) for name, key in amounts.items()}
        for pod, part in one.pods[:_MOST_AFFECTED]
    ]
    return told


def _component(row: ComponentRow) -> dict[str, Any]:
    one = row.component
    return {
        "component": one.role.value,
        "workload": one.subject,
        "namespace": one.meta.namespace,
        "version": one.version,
        "wanted": one.wanted,
        "ready": one.ready,
        "health": one.health.value,
        "lacking": list(row.lacking[:_MOST_AFFECTED]),
        "lacking_count": len(row.lacking),
    }


def _installation(one: InstallationTable) -> dict[str, Any]:
    parts = [
        {
            "part": part.what,
            "health": part.health.value if part.health is not None else None,
            "status": part.status,
            "version": part.version,
            "detail": part.told,
        }
        for part in one.parts
    ]
    return {"installation": one.name, "scheduler": one.scheduler_name, "parts": parts}


def _chain(one: Chain) -> dict[str, Any]:
    return {"pod": one.pod, "links": [_step(step) for step in one.steps]}


def _step(step: Step) -> dict[str, Any]:
    causes = [problem.found.cause.name for problem in step.problems]
    return {"link": step.link.value, "state": step.state.value, "seen": step.seen, "causes": causes}


def _problem(one: Problem) -> dict[str, Any]:
    found = one.found
    return {
        "cause": found.cause.name,
        "severity": found.cause.severity.name.lower(),
        "certainty": found.certainty.name.lower(),
        "subject": found.subject,
        "evidence": list(found.evidence),
        "evidence_left_out": one.evidence_left_out,
        "remedy": list(found.remedy or (found.cause.remedy,)),
        "affected": list(found.affected[:_MOST_AFFECTED]),
        "affected_count": len(found.affected),
        "consequences": [_problem(child) for child in one.consequences],
    }
