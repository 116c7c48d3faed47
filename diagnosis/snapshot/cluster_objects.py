"""Kinds with few facts: namespaces, Services' endpoints, ConfigMaps, volumes, Leases, operators."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field

from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import Meta, read_meta
from diagnosis.snapshot.pods import Condition, Expression, read_conditions, read_term

_LONGEST_DOCUMENT = 256 * 1024
_ZONES = (
    *("topology.kubernetes.io/zone", "topology.kubernetes.io/region"),
    *("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"),
)
"""Zone labels that restrict a volume; several zones in one value are separated by `__`."""


class Endpoints(Struct, frozen=True):
    """Number of ready addresses of a Service, from one EndpointSlice or its Endpoints."""

    meta: Meta
    service: str
    ready: int


class ConfigMap(Struct, frozen=True):
    """ConfigMap with unchanged documents. Only ConfigMaps that were queried by name are kept."""

    meta: Meta
    data: Mapping[str, str] = field(default_factory=dict)


class VolumeClaim(Struct, frozen=True):
    """A PersistentVolumeClaim. `volume` is '' until a volume is bound to it."""

    meta: Meta
    phase: str = ""
    volume: str = ""
    storage_class: str = ""


class Volume(Struct, frozen=True):
    """PersistentVolume. A node can mount it if it meets one of `terms` (None: any node) and all of `zones`."""

    meta: Meta
    terms: tuple[tuple[Expression, ...], ...] | None = None
    zones: tuple[Expression, ...] = ()


class Lease(Struct, frozen=True):
    """Lease with the time of its last renewal."""

    meta: Meta
    renewed: datetime | None = None


class ClusterPolicy(Struct, frozen=True):
    """Configuration and state of the GPU operator: a ClusterPolicy, or a GPUCluster, its stack for DRA.

    `parts`: by operand, whether it is enabled, if the policy sets that.
    """

    meta: Meta
    state: str = ""
    conditions: tuple[Condition, ...] = ()
    parts: Mapping[str, bool] = field(default_factory=dict)
    toolkit_env: Mapping[str, str] = field(default_factory=dict)
    cdi: bool | None = None
    runtime_class: str = ""


def read_endpoints(raw: Fields) -> Endpoints:
    """Read the facts of an EndpointSlice, or of Endpoints."""
    if raw.text("kind") == "Endpoints" or raw.has("subsets"):
        meta = read_meta("Endpoints", raw)
        ready = sum(len(list(fields.each("addresses"))) for fields in raw.each("subsets"))
        return Endpoints(meta, meta.name, ready)
    meta = read_meta("EndpointSlice", raw)
    answering = [
        fields
        for fields in raw.each("endpoints")
        if fields.flag("conditions", "ready") or not fields.has("conditions", "ready")
    ]
    return Endpoints(meta, meta.labels.get("kubernetes.io/service-name", ""), len(answering))


def read_config_map(raw: Fields) -> ConfigMap:
    data = raw.at("data")
    documents = {key: data.document(key, longest=_LONGEST_DOCUMENT) for key in data.names()}
    return ConfigMap(read_meta("ConfigMap", raw), documents)


def read_volume_claim(raw: Fields) -> VolumeClaim:
    return VolumeClaim(
        read_meta("PersistentVolumeClaim", raw),
        raw.text("status", "phase"),
        raw.text("spec", "volumeName"),
        raw.text("spec", "storageClassName"),
    )


def read_volume(raw: Fields) -> Volume:
    meta, required = read_meta("PersistentVolume", raw), raw.at("spec", "nodeAffinity", "required")
    terms = tuple(map(read_term, required.each("nodeSelectorTerms"))) if required.has("nodeSelectorTerms") else None
    zones = (Expression(key, "In", tuple(meta.labels[key].split("__"))) for key in _ZONES if key in meta.labels)
    return Volume(meta, terms, tuple(zones))


def read_lease(raw: Fields) -> Lease:
    return Lease(read_meta("Lease", raw), raw.moment("spec", "renewTime"))


def read_cluster_policy(kind: str, raw: Fields) -> ClusterPolicy:
    spec = raw.at("spec")
    parts = {key: spec.flag(key, "enabled") for key in spec.names() if spec.has(key, "enabled")}
    env = {fields.text("name"): fields.text("value", longest=1024) for fields in spec.each("toolkit", "env")}
    return ClusterPolicy(
        read_meta(kind, raw),
        raw.text("status", "state"),
        read_conditions(raw),
        parts,
        env,
        spec.flag("cdi", "enabled") if spec.has("cdi", "enabled") else None,
        spec.text("operator", "runtimeClass"),
    )
