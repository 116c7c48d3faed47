"""Evict the pods of a node that gets no new ones, and print a line for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gpu_healthcheck.cli.node_requests import CouldNot, NodeRequests
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Conflict, Forbidden, NotFound, Refused, Unavailable
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.cluster.pods import JOB_LABEL
from gpu_healthcheck.healthcheck.cluster.retries import TookTooLong
from gpu_healthcheck.healthcheck.node.evictions import EvictionState, evictions_on
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.operations.drain import (
    DrainPermissions,
    DrainPlan,
    EvictedPod,
    has_ended,
    plan_drain,
    what_holds,
)
from gpu_healthcheck.healthcheck.operations.pod_removal import (
    MOST_RULES,
    OwnerRef,
    Removal,
    RemovalEffect,
    RemovedPod,
    Retries,
    controller_of,
    read_retries,
    removal_effect,
)
from gpu_healthcheck.healthcheck.text.moments import timestamp


def must_be_allowed(plan: DrainPlan) -> None:
    """Raise CouldNot if some of the pods are evicted only with a person's permission."""
    if plan.refused:
        raise CouldNot(
            "some pods on it are evicted only with your permission", *(f"{title}: {why}" for title, why in plan.refused)
        )


def must_not_be_refused(requests: NodeRequests, node: NodeState) -> None:
    """Raise CouldNot if the evict program waits to evict a pod of the node: a drain would be refused like it."""
    refused = partial(refused_evictions, requests.cluster, node, datetime.now(UTC))
    if why := requests.retries.ask(lambda: list(refused())):
        end = "to end the evictions instead: gpu-healthcheck release {}, or an empty EVICT_SEVERITY for its node group"
        raise CouldNot("evictions on it are refused, and nothing was changed", *why, end.format(node.name))


def refused_evictions(cluster: Cluster, node: NodeState, now: datetime) -> Iterator[str]:
    """Yield a line for each pod whose eviction by the evict program is refused.

    Pods that end now or have ended are left out: the annotation may be older.
    """
    refused = {pod.uid: pod for pod in evictions_on(node, now).in_state(EvictionState.REFUSED)}
    for pod in cluster.pods.list_on(node.name) if refused else ():
        if (found := refused.get(pod["metadata"]["uid"])) and not has_ended(pod):
            since = f" since {timestamp(found.at)}" if found.at else ""
            delete = f"kubectl delete pod -n {found.namespace} {found.name}"
            yield f"{found.title}: announced{since}, refused by {found.obstacle}: change it, or {delete}"


def eviction_effects(cluster: Cluster, pods: Iterable[Mapping[str, Any]]) -> dict[str, RemovalEffect]:
    """Return, by UID of each pod, the effect on its workload if all these pods are evicted.

    Jobs of gpu-healthcheck are left out: a drain ends them on purpose.
    """
    groups: dict[tuple[str, OwnerRef], list[Mapping[str, Any]]] = {}
    for pod in pods:
        owner, namespace = controller_of(pod), str(pod["metadata"]["namespace"])
        if owner is not None and namespace != NAMESPACE and not has_ended(pod):
            groups.setdefault((namespace, owner), []).append(pod)
    effects: dict[str, RemovalEffect] = {}
    for (namespace, owner), some in groups.items():
        chain, unread = _chain(cluster, namespace, owner)
        removed = [RemovedPod(*(pod["metadata"].get(key) or {} for key in ("labels", "annotations"))) for pod in some]
        effect = removal_effect(Removal.EVICTION, removed, owner, chain, unread)
        effects |= {str(pod["metadata"]["uid"]): effect for pod in some}
    return effects


def _chain(cluster: Cluster, namespace: str, owner: OwnerRef) -> tuple[list[Retries | None], str]:
    """Read the controllers with rules, from the pods' one upwards; None for an unreadable one, with the reason."""
    chain: list[Retries | None] = []
    above: OwnerRef | None = owner
    # Owner references can form a circle.
    while above is not None and len(chain) < MOST_RULES and cluster.workloads.is_known(above.group, above.kind):
        try:
            raw = cluster.workloads.read(above.group, above.kind, namespace, above.name)
        except Unavailable:
            raise
        except ClusterError as error:
            return [*chain, None], str(error)
        retries = read_retries(above.kind, raw)
        if retries is None or retries.uid != above.uid:
            return [*chain, None], f"another {above.kind} has its name"
        chain.append(retries)
        above = controller_of(raw)
    return chain, ""


def warnings_of(plan: DrainPlan) -> Iterator[str]:
    """Yield the losses that the evictions of a plan cause or may cause, for each pod."""
    return (f"will evict {pod.title} ({pod.warning})" for pod in plan.leaving if pod.warning)


class Eviction:
    """Evictions of one node: each is repeated until the API server accepts it, then awaited."""

    def __init__(self, requests: NodeRequests) -> None:
        self._requests = requests
        self._pods = requests.cluster.pods
        self._progress = requests.progress
        self._left: dict[str, EvictedPod] = {}
        self._sent: set[str] = set()
        self._refusals: dict[str, str] = {}

    def run(self, leaving: Iterable[EvictedPod], seconds: float) -> None:
        """Evict all pods, and wait until they are gone. Raises CouldNot, Interrupted."""
        self._left = {pod.uid: pod for pod in leaving}
        self._sent = {pod.uid for pod in self._left.values() if pod.terminating}
        try:
            self._requests.retries.until(self._round, seconds)
        except TookTooLong:
            raise CouldNot(f"its pods were not gone within {seconds:g} s", *self._stuck()) from None

    def _round(self) -> bool | None:
        self._progress.stage(f"waiting for its pods to end: {len(self._left)}")
        for pod in self._left.values():
            if pod.uid not in self._sent and not self._requests.retries.is_over:
                self._evict(pod)
        there = {str(pod["metadata"]["uid"]) for pod in self._pods.list_on(self._requests.name)}
        for uid in self._left.keys() - there:
            self._progress.say(f"gone: {self._left.pop(uid).title}")
        return None if self._left else True

    def _evict(self, pod: EvictedPod) -> None:
        try:
            self._pods.evict(pod.namespace, pod.name, pod.uid)
        except (NotFound, Conflict):
            pass  # the pod is already gone; another pod may have its name by now
        except (Unavailable, Forbidden, Refused) as error:
            # A disruption budget, a terminating namespace or a webhook: each may allow the eviction later.
            why = str(error)
            if self._refusals.get(pod.uid) != why:
                self._progress.say(f"not yet: {pod.title}: {why}")
            self._refusals[pod.uid] = why
            return
        else:
            self._progress.say(f"evicting: {pod.title}{(f' ({pod.warning})' if pod.warning else '')}")
        self._sent.add(pod.uid)

    def _stuck(self) -> list[str]:
        """Return each remaining pod with the reason why it is still there."""
        pods = {str(pod["metadata"]["uid"]): pod for pod in self._pods.list_on(self._requests.name)}
        return [
            f"{pod.title}: {what_holds(pods[uid]) if uid in self._sent else self._refusals.get(uid, 'not evicted')}"
            for uid, pod in self._left.items()
            if uid in pods
        ]


class NodeDrain:
    """Drain of one node, except for the pods of this Job, which end with it."""

    def __init__(self, requests: NodeRequests, job_name: str, allowed: DrainPermissions) -> None:
        self._requests = requests
        self._job = job_name
        self._allowed = allowed

    def plan(self) -> DrainPlan:
        cluster, ask = self._requests.cluster, self._requests.retries.ask
        pods = ask(partial(cluster.pods.list_on, self._requests.name))
        others = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(JOB_LABEL) != self._job]
        return plan_drain(others, self._allowed, ask(partial(eviction_effects, cluster, others)))

    def must_be_permitted(self, plan: DrainPlan) -> None:
        """Raise CouldNot if the user lacks a permission to evict these pods, in the cluster or by an option."""
        must_be_allowed(plan)
        self._requests.must_evict(pod.namespace for pod in plan.leaving)

    def run(self, seconds: float) -> DrainPlan:
        """Drain the node, including pods that arrived since the plan. Raises CouldNot, Interrupted."""
        plan = self.plan()
        must_be_allowed(plan)
        for title, why in plan.left:
            self._requests.progress.say(f"stays: {title}: {why}")
        if plan.leaving:
            Eviction(self._requests).run(plan.leaving, seconds)
        self._requests.progress.say("drained")
        return plan
