"""ComputeDomains of NVIDIA's DRA driver: the pods that use one, its daemons and its nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from diagnosis.facts.components import DOMAIN_LABEL
from diagnosis.facts.efa import claim_of
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.dra import ComputeDomain, DomainNode
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.pods import Pod

CLIQUE_LABEL = "nvidia.com/gpu.clique"
_CHANNEL = re.compile(r"compute-?domain|\bimex\b", re.IGNORECASE)
"""DeviceClass, driver and usual names of claims of an IMEX channel: `compute-domain-default-channel.nvidia.com`."""


class DomainView(Struct, frozen=True):
    """ComputeDomain with the pods that use it and have a node, and its daemons and registered nodes by node name."""

    domain: ComputeDomain
    users: Sequence[Pod]
    daemons: Mapping[str, Pod]
    registered: Mapping[str, DomainNode]

    @property
    def nodes(self) -> Sequence[str]:
        return sorted({pod.spec.node for pod in self.users})

    def users_on(self, node: str) -> Iterator[Pod]:
        return (pod for pod in self.users if pod.spec.node == node)

    def has_ready(self, node: str) -> bool:
        return node in self.registered and self.registered[node].status == "Ready"

    def clique(self, snapshot: Snapshot, node: str) -> str:
        """Return the node's NVLink clique, as registered, else by its label; '' without one."""
        clique = self.registered[node].clique if node in self.registered else ""
        known = snapshot.by_node.get(node)
        return clique or (known.meta.labels.get(CLIQUE_LABEL, "") if known is not None else "")

    def objects_missing(self, snapshot: Snapshot) -> bool:
        """Whether there is neither a DaemonSet for the domain nor the template of its claims."""
        meta, template = self.domain.meta, self.domain.template
        if not snapshot.sees("DaemonSet", "ResourceClaimTemplate") or not template:
            return False
        made = any(each.meta.labels.get(DOMAIN_LABEL) == meta.uid for each in snapshot.daemon_sets)
        return not made and (meta.namespace, template) not in snapshot.claim


def claims_channel(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a claim of the pod is for an IMEX channel: by its class or device, or by name if it is not visible."""
    for name, source in pod.spec.claims.items():
        claim = claim_of(snapshot, pod, name)
        texts = (name, source) if claim is None else (*claim.devices, *(each.device_class for each in claim.requests))
        if any(map(_CHANNEL.search, texts)):
            return True
    return False


def domain_of(snapshot: Snapshot, pod: Pod) -> ComputeDomain | None:
    """Return the domain whose template, or claim of that name, the pod uses; None without one."""
    keys = ((pod.meta.namespace, source) for source in pod.spec.claims.values())
    return next((_by_template(snapshot)[key] for key in keys if key in _by_template(snapshot)), None)


def domain_views(snapshot: Snapshot) -> list[DomainView]:
    """Return the domains that are not being deleted."""
    domains, daemons = [each for each in snapshot.domains if each.meta.deleted is None], daemon_pods(snapshot)
    pods = snapshot.pods if domains else ()
    users = grouped((one.subject, pod) for pod in pods if _is_placed(pod) and (one := domain_of(snapshot, pod)))
    return [
        DomainView(
            domain,
            users.get(domain.subject, ()),
            {pod.spec.node: pod for pod in daemons.get(domain.meta.uid, ())},
            {each.name: each for each in domain.nodes},
        )
        for domain in domains
    ]


@lru_cache(maxsize=1)
def daemon_pods(snapshot: Snapshot) -> Mapping[str, Sequence[Pod]]:
    """Return the pods of IMEX daemons on nodes, by the UID of their domain."""
    labelled = ((pod.meta.labels.get(DOMAIN_LABEL, ""), pod) for pod in snapshot.pods if _is_placed(pod))
    return grouped((uid, pod) for uid, pod in labelled if uid)


@lru_cache(maxsize=1)
def _by_template(snapshot: Snapshot) -> Mapping[tuple[str, str], ComputeDomain]:
    return {(each.meta.namespace, each.template): each for each in snapshot.domains if each.template}


def _is_placed(pod: Pod) -> bool:
    return bool(pod.spec.node) and not pod.over and pod.meta.deleted is None
