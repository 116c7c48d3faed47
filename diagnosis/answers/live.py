"""Read the state of a cluster: only near one pod, or as much as a question needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_healthcheck.diagnosis.answers.allocation import Allocation, allocation
from gpu_healthcheck.diagnosis.answers.target import Target, concerned, narrowed
from gpu_healthcheck.diagnosis.causes.diagnose import Problem, diagnose
from gpu_healthcheck.diagnosis.causes.faulty_gpus import is_gang
from gpu_healthcheck.diagnosis.causes.runtime_handlers import SEARCHES as HANDLERS
from gpu_healthcheck.diagnosis.causes.stalled_jobs import gang_of, gangs
from gpu_healthcheck.diagnosis.causes.unscheduled import WITHOUT_HOLDERS
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import group_of
from gpu_healthcheck.diagnosis.facts.components import role_of
from gpu_healthcheck.diagnosis.facts.dra_drivers import domain_of
from gpu_healthcheck.diagnosis.facts.efa import is_rank
from gpu_healthcheck.diagnosis.facts.gpu_nodes import MIG
from gpu_healthcheck.diagnosis.facts.placement import asked_by
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.diagnosis.sources.collect import Collector, Keep, ReadLog
from gpu_healthcheck.diagnosis.sources.kinds import KINDS, POD, ApiKind, selectors_for

if TYPE_CHECKING:
    from gpu_healthcheck.healthcheck.cluster.pods import Listings

_OF_ALLOCATION = frozenset(("Node", "Pod", "ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"))


_ACROSS_NODES = frozenset(cause for search in HANDLERS for cause in search.causes)
"""Causes that may be reported for one node, or once for many nodes."""


def read_cluster(
    listings: Listings, namespace: str, near: Target | None, keep: Keep | None, listed: Callable[[ApiKind], None]
) -> Snapshot:
    """Return the state of the cluster, or of the dependencies of the pod `near`. Raises ClusterError.

    `namespace`: the namespace to list if listing all namespaces is forbidden.
    """
    collector = Collector(listings.objects, keep, listed)
    if near is not None:
        return read_near_pod(collector, listings.read_log, near)
    return collector.with_logs(collector.collect(namespace=namespace), listings.read_log)


def read_allocation(listings: Listings, prometheus: str = "") -> Allocation:
    """Return the allocation, with utilization from a Prometheus. Raises ClusterError if nothing can be listed."""
    kinds = (kind for kind in KINDS if kind.kind in _OF_ALLOCATION)
    snapshot = Collector(listings.objects, kinds=kinds).collect()
    if prometheus:
        from gpu_healthcheck.diagnosis.sources.measured_use import with_use  # noqa: PLC0415 - where a Prometheus is to be asked

        snapshot = with_use(snapshot, prometheus)
    return allocation(snapshot)


def read_near_pod(collector: Collector, read: ReadLog, target: Target) -> Snapshot:
    """Return the snapshot for the pod with the logs it needs. Raises ClusterError.

    These are the objects near the pod; the answer is the same as that of a complete listing. Everything is listed if
    other objects may change it, such as the pods that own the GPUs it waits for.

    If the pod does not exist, only the pods of its namespace are listed.
    """
    pod = collector.pod(target.namespace, target.name)
    if pod is None:
        return collector.collect(lambda kind: [(target.namespace, {})] if kind is POD else [])
    # A component is judged by all its pods.
    if role_of(pod.meta, {}, pod.spec) is None:
        where = selectors_for(target.namespace, pod.spec.node)
        near = collector.with_logs(collector.collect(where, target.namespace), read, target.subject)
        if is_settled(near, target, pod):
            return near
    return collector.with_logs(collector.collect(namespace=target.namespace), read, target.subject)


def is_settled(near: Snapshot, target: Target, pod: Pod) -> bool:
    """Whether no object outside the near snapshot can change the answer for the pod."""
    problems = narrowed(diagnose(near), concerned(near, target)).problems
    if pod.spec.node:
        own = all(_is_own(problem, pod) and problem.found.cause not in _ACROSS_NODES for problem in problems)
        # A ComputeDomain is judged by its nodes and its daemons there.
        return own and _sees_its_ranks(near, pod) and domain_of(near, pod) is None
    # Judging why a node's MIG profiles do not change needs the MIG manager's pods on that node.
    cut = pod.nominated or any(name.startswith(MIG) for name in asked_by(pod.spec))
    return bool(problems) and not cut and all(_stands_alone(problem, pod) for problem in problems)


def _sees_its_ranks(near: Snapshot, pod: Pod) -> bool:
    """Whether the nodes of all ranks of the pod's job are known: a rank on a faulty GPU keeps the others waiting."""
    workload = near.line(pod.meta)[-1]
    under = near.pods_under.get(workload, ()) if is_gang(workload) or is_rank(pod) else ()
    ranks = (*under, *gangs(near).get(gang_of(near, pod), ()))
    if group := group_of(pod):
        ranks = (*ranks, *(each for each in near.pods if group_of(each) == group))
    return all(rank.spec.node in near.by_node for rank in ranks if rank.spec.node and not rank.over)


def _stands_alone(problem: Problem, pod: Pod) -> bool:
    return problem.found.cause in WITHOUT_HOLDERS and not problem.found.because_of and _is_own(problem, pod)


def _is_own(problem: Problem, pod: Pod) -> bool:
    """Whether the problem concerns the pod, its namespace or its node, without an origin elsewhere."""
    node = f"node/{pod.spec.node}"
    subjects = (problem.found.subject, *(subject for _, subject in problem.found.because_of))
    return not problem.consequences and all(
        subject == node or subject.split("/")[1:-1] == [pod.meta.namespace] for subject in subjects
    )
