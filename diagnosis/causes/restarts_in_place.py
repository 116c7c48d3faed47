"""Find pods that the kubelet restarts on a faulty node, because their restart policy keeps them there."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.causes.faulty_gpus import AffectedPod, is_gang, struck_on
from diagnosis.facts.commands import command
from diagnosis.facts.components import role_of
from diagnosis.facts.gpu_requests import gpu_pods, is_deep_test
from diagnosis.facts.moving_pods import steps_to_move
from diagnosis.facts.symptoms import ended_of, older, shortened
from diagnosis.model import Family, FoundCause, Link, Search
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import ContainerState, Pod

_running = Family(Link.RUNNING)
IN_PLACE = _running(
    "RestartsOnFaultyNode",
    "A container fails on a node with an active fault, and the pod's restartPolicy starts it there again and again: a "
    "taint keeps new pods off, but does not move this one.",
    "Move the pod to a healthy node in a way that does not fail its job. For a Job, `restartPolicy: Never` makes each "
    "retry a new pod.",
    source="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy",
    urgent=True,
)
_POLICIES = ("OnFailure", "Always")
_TIMES = 2
_LATELY = 10.0
"""Minutes after a failure in which a running container may fail again."""
_MOST = 4
_BOUND = "DaemonSet"
"""Kind whose pods belong to their node."""


def find_in_place(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield workloads with pods that fail again and again on a faulty node."""
    failing = []
    for pod in gpu_pods(snapshot):
        node, state = snapshot.by_node.get(pod.spec.node), _failing(snapshot, pod)
        if node is not None and state is not None and _can_move(pod) and (struck := struck_on(snapshot, pod, node)):
            failing.append((snapshot.line(pod.meta)[-1], (struck, state, node)))
    for workload, some in grouped(failing).items():
        yield _found(snapshot, workload, some)


def _can_move(pod: Pod) -> bool:
    """Whether the owner creates another pod, for any node, in place of this one."""
    owner = pod.meta.owner
    if pod.over or pod.meta.deleted is not None or pod.spec.restart_policy not in _POLICIES:
        return False
    owned = owner is not None and owner.kind != _BOUND
    return owned and not is_deep_test(pod) and role_of(pod.meta, {}, pod.spec) is None


def _failing(snapshot: Snapshot, pod: Pod) -> ContainerState | None:
    """Return the container that has failed repeatedly and does not work since."""
    for state in pod.states:
        ended = ended_of(state)
        if state.restarts < _TIMES or ended is None or not ended.exit_code:
            continue
        if state.waiting == "CrashLoopBackOff" or state.ended is not None or not older(snapshot, ended.at, _LATELY):
            return state
    return None


def _found(snapshot: Snapshot, workload: str, some: list[tuple[AffectedPod, ContainerState, Node]]) -> FoundCause:
    evidence = []
    for struck, state, node in some[:_MOST]:
        ended, pod = ended_of(state), struck.pod
        code = ended.exit_code if ended is not None else None
        why = f"exit code {code}" + (f": {shortened(ended.message)}" if ended is not None and ended.message else "")
        policy = f"restartPolicy {pod.spec.restart_policy}"
        evidence.append(
            f"{pod.subject}: {policy}, container {state.name} restarted {state.restarts} times on {node.subject}, {why}"
        )
        evidence += (f"{node.subject}: {each.reason} {each.severity} on {each.subject}" for each in struck.findings[:2])
        evidence += (f"the kubelet reports {each.name} of {pod.subject} as Unhealthy" for each in struck.unhealthy[:2])
    first, node = some[0][0].pod, some[0][2]
    there = [struck.pod for struck, _, _ in some if struck.pod.spec.node == node.name]
    remedy = [*steps_to_move(snapshot, there, "healthy nodes")]
    if not node.withheld and not node.cordoned:
        remedy.insert(0, f"Keep new pods off the node first: {command('kubectl', 'cordon', node.name)}")
    if is_gang(workload) and first.spec.restart_policy == "OnFailure":
        remedy.append(f"In the manifest of {workload}, set `restartPolicy: Never`: then each retry is a new pod.")
    affected = tuple(struck.pod.subject for struck, _, _ in some)
    return FoundCause(IN_PLACE, workload, tuple(dict.fromkeys(evidence)), tuple(remedy), affected)


SEARCHES = (Search((IN_PLACE,), ("Node", "Pod"), find_in_place),)
