"""Queues and gangs: objects of Kueue and Volcano, and Kubernetes' own groups of pods that start together (KEP-4671).

A pod of Kubernetes 1.35 names a group within a Workload by `workloadRef`, a newer one a PodGroup by `schedulingGroup`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import field

from gpu_healthcheck.diagnosis.snapshot.meta import ApiObject, S, read_object
from gpu_healthcheck.diagnosis.snapshot.pods import Conditions, PodSpec, condition_in
from gpu_healthcheck.healthcheck.text.boundary import At, entries, read, text, text_or_none, value_at, whole

_VOLCANO, _NATIVE = "scheduling.volcano.sh/", "scheduling.k8s.io"
_SHAPES = {"PodGroup": ("schedulingPolicy",), "Workload": ("podGroups", "podGroupTemplates")}
"""Fields by which a list without API versions distinguishes these kinds from those of Volcano and Kueue."""


def kind_of(kind: str) -> str:
    """Return the name of the kind here, because Volcano and Kueue have kinds of the same names."""
    return f"{kind}.{_NATIVE}"


POD_GROUP, WORKLOAD = map(kind_of, _SHAPES)


def _specs(pod_sets: object) -> tuple[PodSpec, ...]:
    return tuple(read(PodSpec, value_at(entry, "template", "spec") or {}) for entry in entries(pod_sets))


class Queued(ApiObject, frozen=True):
    """Workload of Kueue: its owner waits until a queue has admitted it.

    A Workload of another API with the same name has no pods.
    """

    queue: Annotated[str, At("spec.queueName")] = ""
    specs: Annotated[tuple[PodSpec, ...], At("spec.podSets"), _specs] = ()
    conditions: Conditions = ()
    active: Annotated[bool, At("spec.active")] = True

    def is_true(self, kind: str) -> bool:
        return condition_in(self.conditions, kind, "True") is not None


class Queue(ApiObject, frozen=True):
    """A LocalQueue, or a ClusterQueue; `above` is the ClusterQueue of a LocalQueue."""

    above: Annotated[str, At("spec.clusterQueue")] = ""
    conditions: Conditions = ()


class PodGroup(ApiObject, frozen=True):
    """Group of Volcano. `phase` is '' for a group of another API.

    `least`: the total request, by resource, of all pods that must start together.
    """

    phase: Annotated[str, At("status.phase")] = ""
    queue: Annotated[str, At("spec.queue"), text_or_none] = "default"
    least: Annotated[Mapping[str, str], At("spec.minResources")] = field(default_factory=dict)
    conditions: Conditions = ()


class GroupQueue(ApiObject, frozen=True):
    """Queue of Volcano.

    `most`: the total limit of its groups by resource, if there is one. `given`: the amounts that they have.
    """

    state: Annotated[str, At("status.state")] = ""
    most: Annotated[Mapping[str, str], At("spec.capability")] = field(default_factory=dict)
    given: Annotated[Mapping[str, str], At("status.allocated")] = field(default_factory=dict)


def read_volcano(struct: type[S], kind: str, raw: object) -> S:
    """Read a PodGroup or Queue. Other schedulers have the same kinds with other phases: only their names are read.

    Objects in a list have no API version, and only Volcano's are listed.
    """
    version = value_at(raw, "apiVersion")
    is_volcanos = version is None or str(version).startswith(_VOLCANO)
    return read_object(struct, kind, raw if is_volcanos else {"metadata": value_at(raw, "metadata")})


def _least(spec: object) -> dict[str, int | None]:
    groups = [
        (text(value_at(group, "name") or ""), value_at(group, "policy"))
        for group in entries(value_at(spec, "podGroups"))
    ]
    policies = dict(groups or [("", value_at(spec, "schedulingPolicy"))])
    counts = {name: value_at(policy, "gang", "minCount") for name, policy in policies.items()}
    return {name: None if count is None else whole(count) for name, count in counts.items()}


class NativeGang(ApiObject, frozen=True):
    """PodGroup, or Workload with the groups of pods that it defines.

    `least`: the minimum number of pods by name of the group within a Workload, '' for a PodGroup. It is None if the
    pods are placed one by one.
    """

    least: Annotated[Mapping[str, int | None], At("spec"), _least] = field(default_factory=dict)
    conditions: Conditions = ()


def native_kind(kind: str, raw: object) -> str:
    """Return the name under which objects of this kind are kept: another one for kinds of `scheduling.k8s.io`."""
    keys = _SHAPES.get(kind, ())
    native = str(value_at(raw, "apiVersion")).startswith(f"{_NATIVE}/") or any(
        value_at(raw, "spec", key) for key in keys
    )
    return kind_of(kind) if keys and native else kind
