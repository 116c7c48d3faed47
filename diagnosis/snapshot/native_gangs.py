"""Kubernetes' own gangs: groups of pods that the default scheduler places together (KEP-4671).

A pod of Kubernetes 1.35 names a group within a Workload by `workloadRef`, a newer one a PodGroup by `schedulingGroup`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import field

from diagnosis.snapshot.meta import ApiObject
from diagnosis.snapshot.pods import Conditions
from healthcheck.text.boundary import At, entries, text, value_at, whole

_API = "scheduling.k8s.io"
_SHAPES = {"PodGroup": ("schedulingPolicy",), "Workload": ("podGroups", "podGroupTemplates")}
"""Fields by which a list without API versions distinguishes these kinds from those of Volcano and Kueue."""


def kind_of(kind: str) -> str:
    """Return the name of the kind here, because Volcano and Kueue have kinds of the same names."""
    return f"{kind}.{_API}"


POD_GROUP, WORKLOAD = map(kind_of, _SHAPES)


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
    native = str(value_at(raw, "apiVersion")).startswith(f"{_API}/") or any(value_at(raw, "spec", key) for key in keys)
    return kind_of(kind) if keys and native else kind
