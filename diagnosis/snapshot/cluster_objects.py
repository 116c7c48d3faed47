"""Kinds with few facts: Services' endpoints, ConfigMaps, volumes, Leases, operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct, field

from diagnosis.snapshot.meta import ApiObject, Meta, read_object
from diagnosis.snapshot.pods import Conditions, Expression, read_terms
from healthcheck.text.boundary import At, Moment, by_name, document, entries, flag, items, value_at

_LONGEST_DOCUMENT = 256 * 1024
_ZONES = (
    *("topology.kubernetes.io/zone", "topology.kubernetes.io/region"),
    *("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"),
)
"""Zone labels that restrict a volume; several zones in one value are separated by `__`."""


def _documents(value: object) -> dict[str, str]:
    return {name: document(entry, _LONGEST_DOCUMENT) for name, entry in items(value)}


class ConfigMap(ApiObject, frozen=True):
    """ConfigMap with unchanged documents. Only ConfigMaps that were queried by name are kept."""

    data: Annotated[Mapping[str, str], _documents] = field(default_factory=dict)


class VolumeClaim(ApiObject, frozen=True):
    """A PersistentVolumeClaim. `volume` is '' until a volume is bound to it."""

    phase: Annotated[str, At("status.phase")] = ""
    volume: Annotated[str, At("spec.volumeName")] = ""
    storage_class: Annotated[str, At("spec.storageClassName")] = ""


class Volume(ApiObject, frozen=True):
    """PersistentVolume. A node can mount it if it meets one of `terms` (None: any node) and all of `zones`."""

    terms: Annotated[
        tuple[tuple[Expression, ...], ...] | None, At("spec.nodeAffinity.required.nodeSelectorTerms"), read_terms
    ] = None

    @property
    def zones(self) -> tuple[Expression, ...]:
        labels = self.meta.labels
        return tuple(Expression(key, "In", tuple(labels[key].split("__"))) for key in _ZONES if key in labels)


class Lease(ApiObject, frozen=True):
    """Lease with the time of its last renewal."""

    renewed: Annotated[Moment, At("spec.renewTime")] = None


def _enabled(spec: object) -> dict[str, bool]:
    found = ((name, value_at(part, "enabled")) for name, part in items(spec))
    return {name: flag(enabled) for name, enabled in found if enabled is not None}


class ClusterPolicy(ApiObject, frozen=True):
    """Configuration and state of the GPU operator: a ClusterPolicy, or a GPUCluster, its stack for DRA.

    `parts`: by operand, whether it is enabled, if the policy sets that.
    """

    state: Annotated[str, At("status.state")] = ""
    conditions: Conditions = ()
    parts: Annotated[Mapping[str, bool], At("spec"), _enabled] = field(default_factory=dict)
    toolkit_env: Annotated[Mapping[str, str], At("spec.toolkit.env"), by_name("name", "value", longest=1024)] = field(
        default_factory=dict
    )
    cdi: Annotated[bool | None, At("spec.cdi.enabled")] = None
    runtime_class: Annotated[str, At("spec.operator.runtimeClass")] = ""


class Endpoints(Struct, frozen=True):
    """Number of ready addresses of a Service, from one EndpointSlice or its Endpoints."""

    meta: Meta
    service: str
    ready: int


def read_endpoints(kind: str, raw: Any) -> Endpoints:
    """Read the facts of an EndpointSlice, or of Endpoints."""
    meta = read_object(ApiObject, kind, raw).meta
    if kind == "Endpoints":
        addresses = (entries(value_at(subset, "addresses")) for subset in entries(raw.get("subsets")))
        return Endpoints(meta, meta.name, sum(1 for each in addresses for _ in each))
    ready = (value_at(entry, "conditions", "ready") is not False for entry in entries(raw.get("endpoints")))
    return Endpoints(meta, meta.labels.get("kubernetes.io/service-name", ""), sum(ready))
