"""What says why one pod is stuck: what lies around it, and the rest of the cluster only where that may say otherwise.

The answer is the one that a look at everything gives. Where others may change it, as those who hold the GPUs that a pod
waits for, everything is listed.
"""

from __future__ import annotations

from diagnosis.causes.faulty_gpus import is_gang
from diagnosis.causes.runtime_handlers import SEARCHES as HANDLERS
from diagnosis.causes.unscheduled import WITHOUT_HOLDERS
from diagnosis.collect import Collector, ReadLog
from diagnosis.components import role_of
from diagnosis.diagnose import Problem, diagnose
from diagnosis.gpu_nodes import MIG
from diagnosis.kinds import POD, around
from diagnosis.placement import asked_by
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.pods import Pod
from diagnosis.target import Target, concerned, narrowed

_ACROSS_NODES = frozenset(cause for search in HANDLERS for cause in search.causes)
"""Told of one node or of many at once."""


def look_at_pod(collector: Collector, read: ReadLog, target: Target) -> Snapshot:
    """With the logs that it takes; of a pod that is not there nothing but that. Raises ClusterError."""
    pod = collector.pod(target.namespace, target.name)
    if pod is None:
        return collector.collect(lambda kind: [(target.namespace, {})] if kind is POD else [])
    # A component is judged by all its pods.
    if role_of(pod.meta, {}, pod.spec) is None:
        where = around(target.namespace, pod.spec.node)
        near = collector.with_logs(collector.collect(where, target.namespace), read, target.subject)
        if is_settled(near, target, pod):
            return near
    return collector.with_logs(collector.collect(namespace=target.namespace), read, target.subject)


def is_settled(near: Snapshot, target: Target, pod: Pod) -> bool:
    """Whether nothing that lies further away can change what is said of the pod."""
    problems = narrowed(diagnose(near), concerned(near, target)).problems
    if pod.spec.node:
        own = all(_is_own(one, pod) and one.found.cause not in _ACROSS_NODES for one in problems)
        return own and _sees_its_ranks(near, pod)
    # What keeps a node from being cut anew is judged by the MIG manager's pods on it.
    cut = pod.nominated or any(name.startswith(MIG) for name in asked_by(pod.spec))
    return bool(problems) and not cut and all(_stands_alone(one, pod) for one in problems)


def _sees_its_ranks(near: Snapshot, pod: Pod) -> bool:
    """Whether the nodes of all ranks of its job are known: one on a faulty GPU keeps the others waiting."""
    workload = near.line(pod.meta)[-1]
    ranks = near.pods_under.get(workload, ()) if is_gang(workload) else ()
    return all(one.spec.node in near.by_node for one in ranks if one.spec.node and not one.over)


def _stands_alone(one: Problem, pod: Pod) -> bool:
    return one.found.cause in WITHOUT_HOLDERS and not one.found.because_of and _is_own(one, pod)


def _is_own(one: Problem, pod: Pod) -> bool:
    """Whether it lies with the pod, its namespace or its node, and follows from nothing elsewhere."""
    node = f"node/{pod.spec.node}"
    subjects = (one.found.subject, *(subject for _, subject in one.found.because_of))
    return not one.consequences and all(
        subject == node or subject.split("/")[1:-1] == [pod.meta.namespace] for subject in subjects
    )
