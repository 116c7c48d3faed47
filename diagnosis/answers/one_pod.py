"""Collect enough objects to explain why one pod is stuck.

These are the objects near the pod. The answer is the same as that of a complete listing. Everything is listed if other
objects may change it, such as the pods that own the GPUs it waits for.
"""

from __future__ import annotations

from diagnosis.answers.target import Target, concerned, narrowed
from diagnosis.causes.diagnose import Problem, diagnose
from diagnosis.causes.faulty_gpus import is_gang
from diagnosis.causes.runtime_handlers import SEARCHES as HANDLERS
from diagnosis.causes.unscheduled import WITHOUT_HOLDERS
from diagnosis.causes.unscheduled.waiting import group_of
from diagnosis.facts.components import role_of
from diagnosis.facts.efa import is_rank
from diagnosis.facts.gpu_nodes import MIG
from diagnosis.facts.placement import asked_by
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.pods import Pod
from diagnosis.sources.collect import Collector, ReadLog
from diagnosis.sources.kinds import POD, selectors_for

_ACROSS_NODES = frozenset(cause for search in HANDLERS for cause in search.causes)
"""Causes that may be reported for one node, or once for many nodes."""


def look_at_pod(collector: Collector, read: ReadLog, target: Target) -> Snapshot:
    """Return the snapshot for the pod with the logs it needs. Raises ClusterError.

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
        return own and _sees_its_ranks(near, pod)
    # Judging why a node's MIG profiles do not change needs the MIG manager's pods on that node.
    cut = pod.nominated or any(name.startswith(MIG) for name in asked_by(pod.spec))
    return bool(problems) and not cut and all(_stands_alone(problem, pod) for problem in problems)


def _sees_its_ranks(near: Snapshot, pod: Pod) -> bool:
    """Whether the nodes of all ranks of the pod's job are known: a rank on a faulty GPU keeps the others waiting."""
    workload = near.line(pod.meta)[-1]
    ranks = near.pods_under.get(workload, ()) if is_gang(workload) or is_rank(pod) else ()
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
