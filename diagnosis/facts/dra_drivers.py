"""Pods of DRA drivers, and ComputeDomains of NVIDIA's: the pods that use one, its daemons and its nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.commands import kubectl, pods_on
from gpu_healthcheck.diagnosis.facts.components import DOMAIN_LABEL, Role, components
from gpu_healthcheck.diagnosis.facts.efa import claim_of
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.dra import ComputeDomain, DomainNode
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.pods import Pod

CLAIM_EVENT, DRIVER_CALL = "FailedPrepareDynamicResources", "NodePrepareResources"
"""Event about a claim, and the words in it if the kubelet has called the driver."""
_CHANNEL = re.compile(r"compute-?domain|\bimex\b|(?:driver|plugin name) \S{1,80}\.nvidia\.com", re.IGNORECASE)
"""DeviceClass, driver and usual names of claims of an IMEX channel, and the kubelet's words about a driver."""


class DomainView(Struct, frozen=True):
    """ComputeDomain with the pods that use it, and its daemons and registered nodes by node name.

    `users` have a node, `unplaced` have none yet.
    """

    domain: ComputeDomain
    users: Sequence[Pod]
    unplaced: Sequence[Pod]
    daemons: Mapping[str, Pod]
    registered: Mapping[str, DomainNode]

    def has_ready(self, node: str) -> bool:
        return node in self.registered and self.registered[node].status == "Ready"


def claims_channel(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a claim of the pod is for an IMEX channel: by its class or device, or by name if it is not visible.

    A claim that is not visible counts, too, if the kubelet's event names it so, or a driver of NVIDIA's.
    """
    texts: list[str] = []
    is_seen = bool(pod.spec.claims)  # not in the text of `kubectl describe`
    for name, source in pod.spec.claims.items():
        claim = claim_of(snapshot, pod, name)
        is_seen &= claim is not None
        classes = (each.device_class for each in claim.requests) if claim is not None else ()
        texts += (*claim.devices, *classes) if claim is not None else (name, source)
    if not is_seen:
        texts += (each.message for each in snapshot.events_of(pod) if each.reason == CLAIM_EVENT)
    return any(map(_CHANNEL.search, texts))


def domain_of(snapshot: Snapshot, pod: Pod) -> ComputeDomain | None:
    """Return the domain whose template, or claim of that name, the pod uses; None without one."""
    keys = ((pod.meta.namespace, source) for source in pod.spec.claims.values())
    return next((_by_template(snapshot)[key] for key in keys if key in _by_template(snapshot)), None)


def domain_views(snapshot: Snapshot) -> list[DomainView]:
    """Return the domains that are not being deleted."""
    domains, daemons = [each for each in snapshot.domains if each.meta.deleted is None], daemon_pods(snapshot)
    pods = (pod for pod in snapshot.pods if domains and not pod.over and pod.meta.deleted is None)
    users = grouped((one.subject, pod) for pod in pods if (one := domain_of(snapshot, pod)))
    return [
        DomainView(
            domain,
            [pod for pod in users.get(domain.subject, ()) if pod.spec.node],
            [pod for pod in users.get(domain.subject, ()) if not pod.spec.node],
            {pod.spec.node: pod for pod in daemons.get(domain.meta.uid, ())},
            {each.name: each for each in domain.nodes},
        )
        for domain in domains
    ]


@lru_cache(maxsize=1)
def daemon_pods(snapshot: Snapshot) -> Mapping[str, Sequence[Pod]]:
    """Return the pods of IMEX daemons on nodes, by the UID of their domain."""
    pods = (pod for pod in snapshot.pods if pod.meta.labels.get(DOMAIN_LABEL) and is_placed(pod))
    return grouped((pod.meta.labels[DOMAIN_LABEL], pod) for pod in pods)


def daemons_on(snapshot: Snapshot, node: str) -> Iterator[Pod]:
    """Yield the pods of IMEX daemons on the node, of any domain."""
    yield from (pod for some in daemon_pods(snapshot).values() for pod in some if pod.spec.node == node)


@lru_cache(maxsize=1)
def _by_template(snapshot: Snapshot) -> Mapping[tuple[str, str], ComputeDomain]:
    return {(each.meta.namespace, each.template): each for each in snapshot.domains if each.template}


def is_placed(pod: Pod) -> bool:
    """Whether the pod has a node, has not ended, and is not being deleted."""
    return bool(pod.spec.node) and not pod.over and pod.meta.deleted is None


def plugin_on(snapshot: Snapshot, node: str, role: Role = Role.DRA_DRIVER) -> Pod | None:
    """Return the pod of the driver's kubelet plugin on the node."""
    there = (each.pod_on(node) for each in components(snapshot) if each.role is role and each.meta.kind == "DaemonSet")
    return next(filter(None, there), None)


def no_driver(snapshot: Snapshot, node: str, role: Role = Role.DRA_DRIVER) -> str:
    """Return the step that shows why no ready pod of the driver's kubelet plugin is on the node."""
    sets = (each.meta for each in components(snapshot) if each.role is role and each.meta.kind == "DaemonSet")
    plugin = plugin_on(snapshot, node, role)
    meta = plugin.meta if plugin is not None else next(sets, None)
    if meta is not None:
        return f"Find out why the driver has no ready pod on {node}: {kubectl('describe', meta)}"
    return f"No {role.value} is visible: install it if it is missing, or find its pod on {node}: {pods_on(node)}"
