"""Command that sets variables of the GPU operator's toolkit, in the way in which the operator was installed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.commands import command
from gpu_healthcheck.diagnosis.facts.components import Role, components
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.meta import Meta
from gpu_healthcheck.healthcheck.checks.runtime_fixes import helm_values

_RELEASE, _NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"
"""Annotations that Helm sets on all objects of a release. OLM and Argo CD do not set them."""
_CHART, _CHART_NAME = "helm.sh/chart", "gpu-operator-"


class Release(Struct, frozen=True):
    """Release of Helm to which an object belongs."""

    name: str
    namespace: str


def release_of(meta: Meta) -> Release | None:
    """Return the object's release; None if Helm has not created it."""
    name = meta.annotations.get(_RELEASE, "")
    return Release(name, meta.annotations.get(_NAMESPACE, meta.namespace)) if name else None


def set_toolkit_env(snapshot: Snapshot, namespace: str, values: Mapping[str, str]) -> str:
    """Return the command for the operator in the namespace: of Helm for its release, else on its ClusterPolicy.

    Helm's command has the chart's present version: without one, it would upgrade the operator and the drivers, too.
    """
    operators = [one for one in components(snapshot) if one.role is Role.OPERATOR]
    operator = next((one for one in operators if one.meta.namespace == namespace), next(iter(operators), None))
    if operator is None:
        return f"`{helm_values(values, namespace)}`"
    if (release := release_of(operator.meta)) is not None:
        chart = operator.meta.labels.get(_CHART, "")
        version = chart.removeprefix(_CHART_NAME) if chart.startswith(_CHART_NAME) else ""
        return f"`{helm_values(values, release.namespace, release.name, version)}`"
    policy = next((one.meta.name for one in snapshot.cluster_policies), "cluster-policy")
    env = [{"name": name, "value": value} for name, value in values.items()]
    patch = json.dumps({"spec": {"toolkit": {"env": env}}}, separators=(",", ":"))
    return command("kubectl", "patch", "clusterpolicy", policy, "--type=merge", "-p", patch)
