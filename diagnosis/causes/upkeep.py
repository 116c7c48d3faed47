"""Find obstacles to setting up or emptying GPU nodes: operator policy, budgets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta

from gpu_healthcheck.diagnosis.causes.components import NOT_READY, VALIDATION
from gpu_healthcheck.diagnosis.causes.device_plugins import GEOMETRY, MIG_FAILED, MISSING, NOT_OFFERED
from gpu_healthcheck.diagnosis.causes.runtime_handlers import CLASS_MISSING, missing_class
from gpu_healthcheck.diagnosis.causes.unscheduled.refused import NOT_READY as NODE_NOT_READY
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl
from gpu_healthcheck.diagnosis.facts.components import Role, components
from gpu_healthcheck.diagnosis.facts.gpu_nodes import has_nvidia, is_changed
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods
from gpu_healthcheck.diagnosis.facts.moving_pods import steps_to_move
from gpu_healthcheck.diagnosis.model import CauseSeverity, Family, FoundCause, Origin, Search, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import ClusterPolicy, DisruptionBudget
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Condition, Pod
from gpu_healthcheck.healthcheck.text.naming import named

_PATIENCE, _STARTS = timedelta(minutes=15), timedelta(minutes=10)
_CORDONED = "it is cordoned"
_OWN_FAULTS = frozenset(("ReconcileFailed", "PrerequisiteNotMet", "NFDLabelsMissing"))
"""Reasons of the operator that do not show in an operand's state."""
_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_EMPTIED = frozenset(("wait-for-jobs-required", "pod-deletion-required", "drain-required"))
_DISRUPTED = ("karpenter.sh/disrupted", "karpenter.sh/disruption", "ToBeDeletedByClusterAutoscaler")
_BAD_CONDITIONS = (("Ready", "False"), ("Error", "True"))
"""Conditions of a ClusterPolicy or GPUCluster."""
_MOST_PODS, _MOST_PAIRS = 3, 1_000_000
_DRA_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-intro-install.html"
_fault = Family(None, severity=CauseSeverity.MEDIUM)
POLICY = _fault(
    "ClusterPolicyNotReady",
    "The GPU operator reports that its ClusterPolicy is not applied completely.",
    "Read its conditions and the operator's log; its pods that are not ready are reported separately.",
    source="https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/troubleshooting.html",
)
GPU_CLUSTER = _fault(
    "GpuClusterNotReady",
    "The GPU operator reports that its GPUCluster, the DRA stack, is not applied completely.",
    POLICY.remedy,
    source=_DRA_GUIDE,
)
BOTH_STACKS = _fault(
    "ClusterPolicyBesideGpuCluster",
    "The cluster has a ClusterPolicy and a GPUCluster: the GPU operator supports only one of them.",
    "Keep one of them: set clusterPolicy.deployCR or gpuCluster.deployCR to false in the operator's Helm values.",
    severity=CauseSeverity.HIGH,
    source=_DRA_GUIDE,
)
BLOCKED = _fault(
    "BudgetBlocksDrain",
    "A PodDisruptionBudget allows no eviction of its pods, so their GPU node can't be drained.",
    "Make more of the budget's pods ready elsewhere, allow one disruption, or delete them after asking their owner.",
    source="https://kubernetes.io/docs/tasks/run-application/configure-pdb/",
)


def find_policies(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield each ClusterPolicy that is not ready for a while, as a consequence of its missing parts."""
    return _not_ready(snapshot, snapshot.cluster_policies)


def find_gpu_clusters(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield each GPUCluster that is not ready for a while.

    If there are several, the operator ignores all but one, and reports that itself.
    """
    return _not_ready(snapshot, snapshot.gpu_clusters)


def find_both(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield a result if the cluster has a ClusterPolicy and a GPUCluster."""
    both = [
        [policy for policy in some if policy.meta.deleted is None and policy.state != "ignored"]
        for some in (snapshot.cluster_policies, snapshot.gpu_clusters)
    ]
    if all(both):
        every = [policy for some in both for policy in some]
        evidence = tuple(f"{policy.meta.subject}: state {policy.state or 'not reported'}" for policy in every)
        compare = f"Compare both: {command('kubectl', 'get', 'clusterpolicies.nvidia.com,gpuclusters.nvidia.com')}"
        affected = tuple(policy.meta.subject for policy in every)
        yield FoundCause(BOTH_STACKS, both[1][0].meta.subject, evidence, (compare, BOTH_STACKS.remedy), affected)


def _not_ready(snapshot: Snapshot, policies: Iterable[ClusterPolicy]) -> Iterator[FoundCause]:
    nodes = [node for node in snapshot.nodes if has_nvidia(node)]
    is_changing = any(is_changed(node) or snapshot.is_new(node.meta, _PATIENCE) for node in nodes)
    for policy in policies:
        conditions = [
            each
            for each in policy.conditions
            if (each.type, each.status) in _BAD_CONDITIONS and each.reason != "NoGPUNodes"
        ]
        waits = policy.state == "notReady" or bool(conditions)
        is_own_fault = any(condition.reason in _OWN_FAULTS for condition in conditions)
        if policy.meta.deleted is not None or not waits or not nodes or (is_changing and not is_own_fault):
            continue
        since = max((each.since for each in conditions if each.since is not None), default=policy.meta.created)
        if is_own_fault or since is None or snapshot.now - since > _PATIENCE:
            yield _policy(policy, conditions, tuple(_waited_for(nodes, snapshot)))


def find_classes(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield missing RuntimeClasses that a component's pods name: its next pod can't be created."""
    existing = {runtime_class.meta.name for runtime_class in snapshot.runtime_classes}
    for component in components(snapshot):
        name = component.spec.runtime_class
        if name and name not in existing and component.wanted and component.meta.kind == "DaemonSet":
            yield missing_class(snapshot, name, f"{component.subject} names it", component.subject)


def find_budgets(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield budgets that block the eviction of GPU pods from nodes that are being drained."""
    emptied = {node.name: node for node in snapshot.nodes if _why_emptied(node)}
    if not emptied or not snapshot.sees_all_pods:
        return
    full = [disruption_budget for disruption_budget in snapshot.budgets if disruption_budget.allowed == 0]
    of_budgets = _covered(snapshot, full)
    covered = {pod.subject for _, pods in of_budgets for pod in pods}
    drained = {name: node for name, node in emptied.items() if _is_drained(snapshot, node, covered)}
    gpus = {pod.subject for pod in gpu_pods(snapshot) if pod.spec.node in drained and _is_evicted(pod)}
    for budget, pods in of_budgets:
        held = [pod for pod in pods if pod.subject in gpus]
        if held and not any(_is_coming(snapshot, pod) for pod in pods):
            yield _blocked(snapshot, budget, held, {pod.spec.node: emptied[pod.spec.node] for pod in held})


def _covered(snapshot: Snapshot, budgets: Iterable[DisruptionBudget]) -> list[tuple[DisruptionBudget, list[Pod]]]:
    """Return the pods that each budget covers."""
    spaces = grouped((pod.meta.namespace, pod) for pod in snapshot.pods)
    labelled = grouped(
        ((pod.meta.namespace, *label), pod) for pod in snapshot.pods for label in pod.meta.labels.items()
    )
    found, left = [], _MOST_PAIRS
    for budget in budgets:
        labels = budget.selector.labels.items() if budget.selector is not None else ()
        space = budget.meta.namespace
        some = [labelled.get((space, *label), []) for label in labels] or [spaces.get(space, [])]
        pods = min(some, key=len)
        left -= len(pods)
        if left >= 0:
            found.append(
                (
                    budget,
                    [pod for pod in pods if budget.selector is not None and budget.selector.takes(pod.meta.labels)],
                )
            )
    return found


def _policy(policy: ClusterPolicy, conditions: list[Condition], because: tuple[Origin, ...]) -> FoundCause:
    evidence = [f"{policy.meta.subject}: state {policy.state}"] if policy.state else []
    evidence += [f"condition {condition}" for condition in conditions]
    pods = command("kubectl", "get", "pods", "-A", "-l", "app.kubernetes.io/managed-by=gpu-operator", "-o", "wide")
    remedy = (f"Read why it waits: {kubectl('describe', policy.meta)}", f"Check the GPU operator's pods: {pods}")
    cause = GPU_CLUSTER if policy.meta.kind == "GPUCluster" else POLICY
    return FoundCause(cause, policy.meta.subject, tuple(evidence), remedy, because_of=because)


def _waited_for(nodes: list[Node], snapshot: Snapshot) -> Iterator[Origin]:
    yield from origins((BOTH_STACKS,), *(cluster.meta.subject for cluster in snapshot.gpu_clusters))
    for component in components(snapshot):
        if component.role in NOT_READY:
            yield NOT_READY[component.role].name, component.subject
    own = (VALIDATION, MISSING, NOT_OFFERED, GEOMETRY, MIG_FAILED, NODE_NOT_READY)
    components_first = (*(NOT_READY[role] for role in Role if role in NOT_READY), *own)
    yield from origins(components_first, *(node.subject for node in nodes))


def _is_drained(snapshot: Snapshot, node: Node, covered: Collection[str]) -> bool:
    """Whether the node is to be emptied, not only closed to new pods.

    A drain evicts all pods at once; a cordon evicts none.
    """
    if _why_emptied(node) != [_CORDONED]:
        return True
    evicted = [one for one in snapshot.pods_on.get(node.name, ()) if _is_evicted(one)]
    return all(pod.subject in covered for pod in evicted)


def _is_coming(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod is young and not ready yet; when it is ready, the budget may allow an eviction."""
    young = snapshot.is_new(pod.meta, _STARTS)
    return young and not pod.over and not any(state.ready for state in pod.states)


def _is_evicted(pod: Pod) -> bool:
    """Whether a drain would evict the pod.

    Pods of DaemonSets and of the node itself stay. Pods that have ended or are being deleted do not matter.
    """
    stays = pod.meta.owner is not None and pod.meta.owner.kind in ("DaemonSet", "Node")
    return not pod.over and not stays and pod.meta.deleted is None


def _blocked(snapshot: Snapshot, budget: DisruptionBudget, held: list[Pod], nodes: Mapping[str, Node]) -> FoundCause:
    count = f"{budget.healthy} healthy of {budget.wanted} required" if budget.wanted is not None else "none to spare"
    evidence = (
        f"{budget.meta.subject}: 0 disruptions allowed, {count}",
        f"it covers {named((f'{pod.subject} on node/{pod.spec.node}' for pod in held), _MOST_PODS)}",
        *(f"{node.subject} is being drained: {', '.join(_why_emptied(node))}" for node in nodes.values()),
    )
    prefix = ("kubectl", "-n", budget.meta.namespace)
    remedy = (
        f"Find out why its pods are not ready: {command(*prefix, 'describe', 'pdb', budget.meta.name)}",
        "If its pods can't be ready elsewhere, let the budget allow one disruption: maxUnavailable: 1.",
        "Or, after asking their owner, move them, which no budget keeps from being deleted:",
        *steps_to_move(snapshot, held, "other nodes"),
    )
    return FoundCause(BLOCKED, budget.meta.subject, evidence, remedy, tuple(node.subject for node in nodes.values()))


def _why_emptied(node: Node) -> list[str]:
    upgrade = node.meta.labels.get(_UPGRADE, "")
    reasons = [_CORDONED] if node.cordoned else []
    reasons += [f"{_UPGRADE}={upgrade}"] if upgrade in _EMPTIED else []
    reasons += [f"taint {taint}" for taint in node.taints if taint.key in _DISRUPTED]
    reasons += ["it was evicted on request"] if node.meta.deleted is not None else []
    return reasons


SEARCHES = (
    Search((POLICY,), ("ClusterPolicy",), find_policies),
    Search((GPU_CLUSTER,), ("GPUCluster",), find_gpu_clusters),
    Search((BOTH_STACKS,), ("ClusterPolicy", "GPUCluster"), find_both),
    Search((CLASS_MISSING,), ("RuntimeClass",), find_classes),
    Search((BLOCKED,), ("PodDisruptionBudget", "Node", "Pod"), find_budgets),
)
