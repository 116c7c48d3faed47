"""Kubernetes' own gangs: groups of pods that the default scheduler places together (KEP-4671).

A pod of Kubernetes 1.35 names a group within a Workload by `workloadRef`, a newer one a PodGroup by `schedulingGroup`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import Meta, read_meta
from diagnosis.snapshot.pods import Condition, read_conditions

_API = "scheduling.k8s.io"
_SHAPES = {"PodGroup": ("schedulingPolicy",), "Workload": ("podGroups", "podGroupTemplates")}
"""Fields by which a list without API versions distinguishes these kinds from those of Volcano and Kueue."""


def kind_of(kind: str) -> str:
    """Return the name of the kind here, because Volcano and Kueue have kinds of the same names."""
    return f"{kind}.{_API}"


POD_GROUP, WORKLOAD = map(kind_of, _SHAPES)


class NativeGang(Struct, frozen=True):
    """PodGroup, or Workload with the groups of pods that it defines.

    `least`: the minimum number of pods by name of the group within a Workload, '' for a PodGroup. It is None if the
    pods are placed one by one.
    """

    meta: Meta
    least: Mapping[str, int | None] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


def native_kind(kind: str, raw: Fields) -> str:
    """Return the name under which objects of this kind are kept: another one for kinds of `scheduling.k8s.io`."""
    keys = _SHAPES.get(kind, ())
    native = raw.text("apiVersion").startswith(f"{_API}/") or any(raw.has("spec", key) for key in keys)
    return kind_of(kind) if keys and native else kind


def read_pod_group(raw: Fields) -> NativeGang:
    least = {"": _least(raw.at("spec", "schedulingPolicy"))}
    return NativeGang(read_meta("PodGroup", raw), least, read_conditions(raw))


def read_gang_workload(raw: Fields) -> NativeGang:
    least = {fields.text("name"): _least(fields.at("policy")) for fields in raw.each("spec", "podGroups")}
    return NativeGang(read_meta("Workload", raw), least)


def _least(policy: Fields) -> int | None:
    return policy.number("gang", "minCount") if policy.has("gang") else None
