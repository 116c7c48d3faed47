"""Typed facts of a cluster at one moment, and the parts that were not visible."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field

from diagnosis.snapshot.cluster_events import Event, read_event
from diagnosis.snapshot.cluster_objects import (
    ClusterPolicy,
    ConfigMap,
    Endpoints,
    Lease,
    Volume,
    VolumeClaim,
    read_cluster_policy,
    read_config_map,
    read_endpoints,
    read_lease,
    read_volume,
    read_volume_claim,
)
from diagnosis.snapshot.dra import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
    read_claim,
    read_device_class,
    read_device_rule,
    read_slice,
)
from diagnosis.snapshot.gpu_use import GpuUse
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.hami_use import ShareUse
from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.kueue import Queue, Queued, read_queue, read_queued
from diagnosis.snapshot.meta import Meta, read_meta, subject
from diagnosis.snapshot.native_gangs import (
    POD_GROUP,
    WORKLOAD,
    NativeGang,
    native_kind,
    read_gang_workload,
)
from diagnosis.snapshot.native_gangs import read_pod_group as read_native_group
from diagnosis.snapshot.nodes import Node, read_node
from diagnosis.snapshot.pods import Pod, read_pod
from diagnosis.snapshot.policy_objects import (
    DisruptionBudget,
    LimitRange,
    Quota,
    RuntimeClass,
    Webhook,
    read_budget,
    read_limit_range,
    read_quota,
    read_runtime_class,
    read_webhooks,
)
from diagnosis.snapshot.volcano import GroupQueue, PodGroup, read_group_queue, read_pod_group
from diagnosis.snapshot.workloads import KINDS as WORKLOADS
from diagnosis.snapshot.workloads import Workload, read_workload
from healthcheck.node.device_pools import newest
from healthcheck.text.moments import EARLIEST

_READERS: Mapping[str, tuple[str, Any]] = {
    "Node": ("nodes", read_node),
    "Pod": ("pods", read_pod),
    "Event": ("events", read_event),
    **{kind: ("workloads", partial(read_workload, kind)) for kind in WORKLOADS},
    "ResourceQuota": ("quotas", read_quota),
    "LimitRange": ("limit_ranges", read_limit_range),
    "PodDisruptionBudget": ("budgets", read_budget),
    "RuntimeClass": ("runtime_classes", read_runtime_class),
    "EndpointSlice": ("endpoints", read_endpoints),
    "Endpoints": ("endpoints", read_endpoints),
    "ConfigMap": ("config_maps", read_config_map),
    "Namespace": ("namespaces", partial(read_meta, "Namespace")),
    "PersistentVolumeClaim": ("volume_claims", read_volume_claim),
    "PersistentVolume": ("volumes", read_volume),
    "Lease": ("leases", read_lease),
    "ClusterPolicy": ("cluster_policies", partial(read_cluster_policy, "ClusterPolicy")),
    "GPUCluster": ("gpu_clusters", partial(read_cluster_policy, "GPUCluster")),
    "ResourceSlice": ("slices", read_slice),
    "ResourceClaim": ("claims", read_claim),
    "ResourceClaimTemplate": ("claims", read_claim),
    "DeviceClass": ("device_classes", read_device_class),
    "DeviceTaintRule": ("device_rules", read_device_rule),
    "Workload": ("queued", read_queued),
    "LocalQueue": ("queues", partial(read_queue, "LocalQueue")),
    "PodGroup": ("pod_groups", read_pod_group),
    "Queue": ("group_queues", read_group_queue),
    POD_GROUP: ("gangs", read_native_group),
    WORKLOAD: ("gangs", read_gang_workload),
    "ClusterQueue": ("queues", partial(read_queue, "ClusterQueue")),
}
"""Field in a snapshot, and reader, by kind."""
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
KINDS = (*_READERS, *_WEBHOOKS)
_MOST_ODD = 100
_MOST_OWNERS = 8
"""Maximum depth of owners: pod, ReplicaSet, Deployment, and its owner."""


class Snapshot(Struct, frozen=True, eq=False, dict=True):
    """State of a cluster as far as it was visible. Build it with `Builder`. It equals only itself.

    Because of this, results that many searches derive from a snapshot are cached for it (`lru_cache`). `now` is the
    time of collection. `missing` holds each kind that could not be listed, with the reason; its empty tuple then means
    nothing. `denied` are those of them that the API server denied to `user`. `only_in` is the namespace whose objects
    were listed because those of all namespaces are denied. `odd` are objects that could not be parsed.
    """

    now: datetime
    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    events: tuple[Event, ...] = ()
    workloads: tuple[Workload, ...] = ()
    quotas: tuple[Quota, ...] = ()
    limit_ranges: tuple[LimitRange, ...] = ()
    budgets: tuple[DisruptionBudget, ...] = ()
    runtime_classes: tuple[RuntimeClass, ...] = ()
    webhooks: tuple[Webhook, ...] = ()
    endpoints: tuple[Endpoints, ...] = ()
    config_maps: tuple[ConfigMap, ...] = ()
    namespaces: tuple[Meta, ...] = ()
    volume_claims: tuple[VolumeClaim, ...] = ()
    volumes: tuple[Volume, ...] = ()
    leases: tuple[Lease, ...] = ()
    cluster_policies: tuple[ClusterPolicy, ...] = ()
    gpu_clusters: tuple[ClusterPolicy, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    device_classes: tuple[DeviceClass, ...] = ()
    device_rules: tuple[DeviceTaintRule, ...] = ()
    queued: tuple[Queued, ...] = ()
    queues: tuple[Queue, ...] = ()
    pod_groups: tuple[PodGroup, ...] = ()
    group_queues: tuple[GroupQueue, ...] = ()
    gangs: tuple[NativeGang, ...] = ()
    logs: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Last log lines by pod subject and container name, of the last ended run or the current one."""
    gpu_use: tuple[GpuUse, ...] = ()
    """Current load; `idle_gpus`: GPUs at 0 for an hour. Both only if Prometheus was queried."""
    idle_gpus: tuple[GpuUse, ...] = ()
    share_use: tuple[ShareUse, ...] = ()
    """Memory and cores in use of HAMi's shares, if Prometheus was queried."""
    missing: Mapping[str, str] = field(default_factory=dict)
    denied: frozenset[str] = frozenset()
    user: str = ""
    only_in: str = ""
    odd: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """Damaged parts of a saved state, with unknown content."""

    @cached_property
    def owners(self) -> Mapping[str, Meta]:
        """Return the objects that make pods, by subject."""
        return {workload.subject: workload.meta for workload in self.workloads}

    @cached_property
    def pod(self) -> Mapping[str, Pod]:
        """Return the pods by subject."""
        return {pod.subject: pod for pod in self.pods}

    @cached_property
    def namespace(self) -> Mapping[str, Meta]:
        """Return the namespaces by name."""
        return {meta.name: meta for meta in self.namespaces}

    @cached_property
    def quotas_in(self) -> Mapping[str, Mapping[str, Quota]]:
        """Return the quotas by namespace and name."""
        return _by_name(self.quotas)

    @cached_property
    def limit_ranges_in(self) -> Mapping[str, Mapping[str, LimitRange]]:
        """Return the limit ranges by namespace and name."""
        return _by_name(self.limit_ranges)

    @cached_property
    def ready_addresses(self) -> Mapping[str, int]:
        """Return the number of ready addresses by namespace and name of the Service."""
        ready: Counter[str] = Counter()
        for each in self.endpoints:
            ready[f"{each.meta.namespace}/{each.service}"] += each.ready
        return ready

    @cached_property
    def volume_claims_in(self) -> Mapping[str, Mapping[str, VolumeClaim]]:
        """Return the volume claims by namespace and name."""
        return _by_name(self.volume_claims)

    @cached_property
    def local_queues_in(self) -> Mapping[str, Mapping[str, Queue]]:
        """Return Kueue's LocalQueues by namespace and name."""
        return _by_name(queue for queue in self.queues if queue.meta.kind == "LocalQueue")

    @cached_property
    def cluster_queues(self) -> Mapping[str, Queue]:
        """Return Kueue's ClusterQueues by name."""
        return {queue.meta.name: queue for queue in self.queues if queue.meta.kind == "ClusterQueue"}

    @cached_property
    def volume(self) -> Mapping[str, Volume]:
        """Return the volumes by name."""
        return {one.meta.name: one for one in self.volumes}

    @cached_property
    def claim(self) -> Mapping[tuple[str, str], ResourceClaim]:
        """Return ResourceClaims, and their templates, by namespace and name."""
        return {(one.meta.namespace, one.meta.name): one for one in self.claims}

    @cached_property
    def pools(self) -> Mapping[tuple[str, str], Sequence[ResourceSlice]]:
        """Return the DRA slices of the newest generation, by driver and pool.

        While a generation is being published, some of its slices are missing.
        """
        return newest(self.slices)

    @cached_property
    def by_node(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def events_about(self) -> Mapping[str, Sequence[Event]]:
        """Return the events by subject, the newest last."""
        in_time = sorted(self.events, key=lambda event: event.last or EARLIEST)
        return grouped((event.about, event) for event in in_time)

    def events_of(self, pod: Pod) -> list[Event]:
        """Return the events about this pod, not about an earlier one of its name; the newest last."""
        return [event for event in self.events_about.get(pod.subject, ()) if event.uid in ("", pod.meta.uid)]

    def is_new(self, meta: Meta, period: timedelta) -> bool:
        """Whether the object was created less than `period` ago; an unknown time counts as longer ago."""
        return meta.created is not None and self.now - meta.created < period

    @cached_property
    def pods_under(self) -> Mapping[str, Sequence[Pod]]:
        """Return pods by the subject of the object that a person wrote, the last of their owners.

        Pods without an owner are left out.
        """
        return grouped((self.line(pod.meta)[-1], pod) for pod in self.pods if pod.meta.owner is not None)

    @cached_property
    def pods_on(self) -> Mapping[str, Sequence[Pod]]:
        """Return the pods by the name of their node."""
        return grouped((pod.spec.node, pod) for pod in self.pods if pod.spec.node)

    @cached_property
    def spans_namespaces(self) -> bool:
        """Whether pods of several namespaces were listed."""
        return len({pod.meta.namespace for pod in self.pods}) > 1

    @cached_property
    def daemon_sets(self) -> tuple[Workload, ...]:
        return tuple(workload for workload in self.workloads if workload.meta.kind == "DaemonSet")

    @cached_property
    def workload(self) -> Mapping[str, Workload]:
        """Return the workloads by subject."""
        return {one.subject: one for one in self.workloads}

    def line(self, meta: Meta) -> tuple[str, ...]:
        """Return the object and its owners in order; the last one is the object that a person wrote."""
        line, owner = [meta.subject], meta.owner
        while owner is not None and len(line) < _MOST_OWNERS:
            line.append(subject(owner.kind, meta.namespace, owner.name))
            above = self.owners.get(line[-1])
            owner = above.owner if above is not None else None
        return tuple(line)

    def sees(self, *kinds: str) -> bool:
        """Whether all of these kinds were listed."""
        return not any(kind in self.missing for kind in kinds)


class _Namespaced(Protocol):
    @property
    def meta(self) -> Meta: ...


_AnyNamespaced = TypeVar("_AnyNamespaced", bound=_Namespaced)


def _by_name(objects: Iterable[_AnyNamespaced]) -> dict[str, dict[str, _AnyNamespaced]]:
    """Return the objects by namespace and name, the names in order."""
    in_order = sorted(objects, key=lambda one: one.meta.name)
    spaces = grouped((one.meta.namespace, one) for one in in_order)
    return {namespace: {one.meta.name: one for one in some} for namespace, some in spaces.items()}


class Builder:
    """Build a snapshot: extract the facts of each added object, then drop the object."""

    def __init__(self) -> None:
        self._facts: defaultdict[str, list[Any]] = defaultdict(list)
        self._seen: set[str] = set()
        self._missing: dict[str, str] = {}
        self._odd: list[str] = []
        self._identities: set[tuple[str, str]] = set()

    def add(self, kind: str, raw: object) -> None:
        """Add one object. Duplicates from two files or pages count once. Kinds that are not used are left out."""
        fields = Fields(raw)
        kind = native_kind(kind, fields)
        self._seen.add(kind)
        identity = (kind, fields.text("metadata", "uid"))
        if identity[1] and identity in self._identities:
            return
        self._identities.add(identity)
        try:
            for place, fact in _facts_of(kind, fields):
                self._facts[place].append(fact)
        except ValueError as error:
            if len(self._odd) < _MOST_ODD:
                self._odd.append(f"{kind} {fields.text('metadata', 'name')}: {error}")

    def listed(self, kind: str) -> None:
        """Record that the kind was listed completely, even if there was no object."""
        self._seen.add(kind)

    def lacks(self, kind: str, why: str) -> None:
        self._missing[kind] = why

    def build(self, now: datetime, unseen: str = "", logs: Mapping[tuple[str, str], str] | None = None) -> Snapshot:
        """Build the snapshot. `unseen` is the reason for kinds that no file or listing mentions."""
        missing = {kind: unseen for kind in KINDS if unseen and kind not in self._seen} | self._missing
        facts: dict[str, Any] = {place: tuple(found) for place, found in self._facts.items()}
        return Snapshot(now, **facts, logs=dict(logs or {}), missing=missing, odd=tuple(self._odd))


def _facts_of(kind: str, fields: Fields) -> Iterator[tuple[str, object]]:
    if kind in _WEBHOOKS:
        yield from (("webhooks", webhook) for webhook in read_webhooks(kind, fields))
    elif kind in _READERS:
        place, read = _READERS[kind]
        yield place, read(fields)
