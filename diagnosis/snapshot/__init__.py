"""Typed facts of a cluster at one moment, and the parts that were not visible."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, TypeVar

from msgspec import Struct, field

from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import (
    ClusterPolicy,
    ConfigMap,
    DisruptionBudget,
    Endpoints,
    Lease,
    LimitRange,
    Quota,
    RuntimeClass,
    Volume,
    VolumeClaim,
    Webhook,
    read_endpoints,
    read_webhooks,
)
from gpu_healthcheck.diagnosis.snapshot.dra import (
    ComputeDomain,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
    read_claim,
)
from gpu_healthcheck.diagnosis.snapshot.gpu_use import GpuUse
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.hami_use import ShareUse
from gpu_healthcheck.diagnosis.snapshot.meta import ApiObject, Meta, read_object, subject
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, RecordFinding
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.diagnosis.snapshot.queues import (
    POD_GROUP,
    WORKLOAD,
    GroupQueue,
    NativeGang,
    PodGroup,
    Queue,
    Queued,
    native_kind,
    read_volcano,
)
from gpu_healthcheck.diagnosis.snapshot.workloads import KINDS as WORKLOADS
from gpu_healthcheck.diagnosis.snapshot.workloads import Workload, read_workload
from gpu_healthcheck.healthcheck.node.device_pools import newest
from gpu_healthcheck.healthcheck.text.boundary import LONGEST_NAME, read, value_at
from gpu_healthcheck.healthcheck.text.moments import EARLIEST
from gpu_healthcheck.healthcheck.text.printable import printable

_STRUCTS: Mapping[str, tuple[str, type[ApiObject]]] = {
    "Node": ("nodes", Node),
    "Pod": ("pods", Pod),
    "ResourceQuota": ("quotas", Quota),
    "LimitRange": ("limit_ranges", LimitRange),
    "PodDisruptionBudget": ("budgets", DisruptionBudget),
    "RuntimeClass": ("runtime_classes", RuntimeClass),
    "ConfigMap": ("config_maps", ConfigMap),
    "PersistentVolumeClaim": ("volume_claims", VolumeClaim),
    "PersistentVolume": ("volumes", Volume),
    "Lease": ("leases", Lease),
    "ClusterPolicy": ("cluster_policies", ClusterPolicy),
    "GPUCluster": ("gpu_clusters", ClusterPolicy),
    "ResourceSlice": ("slices", ResourceSlice),
    "DeviceClass": ("device_classes", DeviceClass),
    "DeviceTaintRule": ("device_rules", DeviceTaintRule),
    "ComputeDomain": ("domains", ComputeDomain),
    "Workload": ("queued", Queued),
    "LocalQueue": ("queues", Queue),
    "ClusterQueue": ("queues", Queue),
}
"""Field in a snapshot, and its type, by kind."""
_READERS: Mapping[str, tuple[str, Callable[[str, Any], Any]]] = {
    **{kind: (field, partial(read_object, struct)) for kind, (field, struct) in _STRUCTS.items()},
    "Event": ("events", lambda _, raw: read(Event, raw)),
    "Namespace": ("namespaces", lambda kind, raw: read_object(ApiObject, kind, raw).meta),
    **dict.fromkeys(WORKLOADS, ("workloads", read_workload)),
    "EndpointSlice": ("endpoints", read_endpoints),
    "Endpoints": ("endpoints", read_endpoints),
    "ResourceClaim": ("claims", read_claim),
    "ResourceClaimTemplate": ("claims", read_claim),
    POD_GROUP: ("gangs", lambda _, raw: read_object(NativeGang, "PodGroup", raw)),
    WORKLOAD: ("gangs", lambda _, raw: read_object(NativeGang, "Workload", raw)),
    "PodGroup": ("pod_groups", partial(read_volcano, PodGroup)),
    "Queue": ("group_queues", partial(read_volcano, GroupQueue)),
}
"""Field in a snapshot, and reader, by kind."""
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
KINDS = (*_READERS, *_WEBHOOKS)
_MOST_INVALID = 20
_NAMES = "namespace", "name"
_MOST_OWNERS = 8
"""Maximum depth of owners: pod, ReplicaSet, Deployment, and its owner."""


class InvalidObject(Struct, frozen=True):
    """An object that was left out, because it lacks its name or has a value of the wrong type."""

    kind: str
    subject: str
    reason: str


class Snapshot(Struct, frozen=True, eq=False, dict=True):
    """State of a cluster as far as it was visible. Build it with `Builder`. It equals only itself.

    Because of this, results that many searches derive from a snapshot are cached for it (`lru_cache`). `now` is the
    time of collection. `missing` holds each kind that could not be listed, with the reason; its empty tuple then means
    nothing. `denied` are those of them that the API server denied to `user`. `only_in` is the namespace whose objects
    were listed because those of all namespaces are denied. `invalid` are objects
    that were left out.
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
    domains: tuple[ComputeDomain, ...] = ()
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
    invalid: tuple[InvalidObject, ...] = ()
    unread: tuple[str, ...] = ()
    """Damaged parts of a saved state, with unknown content."""
    recognised: Mapping[str, int] = field(default_factory=dict)
    """Numbers of objects and lines that were recognised in a text; empty if no part of the state is from a text."""
    other_logs: Mapping[str, str] = field(default_factory=dict)
    """Logs of a text that belong to no known pod, by the subject that a result names."""
    kernel_findings: Mapping[str, tuple[RecordFinding, ...]] = field(default_factory=dict)
    """Findings in kernel logs of a text, by node."""

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
        hashed = f"-{meta.labels.get('pod-template-hash', '')}"
        while owner is not None and len(line) < _MOST_OWNERS:
            line.append(subject(owner.kind, meta.namespace, owner.name))
            above = self.owners.get(line[-1])
            if above is None and owner.kind == "ReplicaSet" and owner.name.endswith(hashed) and len(hashed) > 1:
                # A Deployment names its ReplicaSets so; the ReplicaSet itself is not in the text or dump.
                line.append(subject("Deployment", meta.namespace, owner.name.removesuffix(hashed)))
            owner = above.owner if above is not None else None
        return tuple(line)

    def sees(self, *kinds: str) -> bool:
        """Whether all of these kinds were listed, at least in one namespace."""
        return not any(kind in self.missing for kind in kinds)

    @property
    def sees_all_pods(self) -> bool:
        """Whether the pods of all namespaces were listed; otherwise free resources are unknown."""
        return self.sees("Pod") and not self.only_in


_Object = TypeVar("_Object", bound=ApiObject)


def _by_name(objects: Iterable[_Object]) -> dict[str, dict[str, _Object]]:
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
        self._invalid: list[InvalidObject] = []
        self._identities: set[tuple[str, str]] = set()

    def add(self, kind: str, raw: object) -> None:
        """Add one object. Duplicates from two files or pages count once. Kinds that are not used are left out."""
        kind = native_kind(kind, raw)
        self._seen.add(kind)
        identity = (kind, str(value_at(raw, "metadata", "uid") or ""))
        if identity[1] and identity in self._identities:
            return
        self._identities.add(identity)
        try:
            for name, fact in _facts_of(kind, raw):
                self._facts[name].append(fact)
        except ValueError as error:
            if len(self._invalid) < _MOST_INVALID:
                metadata = [printable(str(value_at(raw, "metadata", key) or ""), LONGEST_NAME) for key in _NAMES]
                self._invalid.append(InvalidObject(kind, subject(kind, *metadata), str(error)))

    def listed(self, kind: str) -> None:
        """Record that the kind was listed completely, even if there was no object."""
        self._seen.add(kind)

    def lacks(self, kind: str, why: str) -> None:
        self._missing[kind] = why

    def build(self, now: datetime, unseen: str = "", logs: Mapping[tuple[str, str], str] | None = None) -> Snapshot:
        """Build the snapshot. `unseen` is the reason for kinds that no file or listing mentions."""
        missing = {kind: unseen for kind in KINDS if unseen and kind not in self._seen} | self._missing
        facts: dict[str, Any] = {place: tuple(found) for place, found in self._facts.items()}
        return Snapshot(now, **facts, logs=dict(logs or {}), missing=missing, invalid=tuple(self._invalid))


def _facts_of(kind: str, raw: object) -> Iterator[tuple[str, object]]:
    """Yield the facts of an object, each with its field in a snapshot."""
    if kind in _WEBHOOKS:
        yield from (("webhooks", webhook) for webhook in read_webhooks(kind, raw))
    elif kind in _READERS:
        name, read_facts = _READERS[kind]
        yield name, read_facts(kind, raw)
