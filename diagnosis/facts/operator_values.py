"""Command that sets variables of the GPU operator's toolkit, in the way in which the operator was installed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from diagnosis.facts.commands import command
from diagnosis.facts.components import Role, components
from diagnosis.snapshot import Snapshot
from healthcheck.checks.runtime_fixes import helm_values

_RELEASE, _NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"
"""Annotations that Helm sets on all objects of a release. OLM and Argo CD do not set them."""
_CHART, _CHART_NAME = "helm.sh/chart", "gpu-operator-"


def set_toolkit_env(snapshot: Snapshot, namespace: str, values: Mapping[str, str]) -> str:
    """Return the command for the operator in the namespace: of Helm for its release, else on its ClusterPolicy.

    Helm's command has the chart's present version: without one, it would upgrade the operator and the drivers, too.
    """
    operators = [one for one in components(snapshot) if one.role is Role.OPERATOR]
    operator = next((one for one in operators if one.meta.namespace == namespace), next(iter(operators), None))
    if operator is None:
        return f"`{helm_values(values, namespace)}`"
    marks = operator.meta.annotations
    if marks.get(_RELEASE):
        chart = operator.meta.labels.get(_CHART, "")
        version = chart.removeprefix(_CHART_NAME) if chart.startswith(_CHART_NAME) else ""
        return f"`{helm_values(values, marks.get(_NAMESPACE, namespace), marks[_RELEASE], version)}`"
    policy = next((one.meta.name for one in snapshot.cluster_policies), "cluster-policy")
    env = [{"name": name, "value": value} for name, value in values.items()]
    patch = json.dumps({"spec": {"toolkit": {"env": env}}}, separators=(",", ":"))
    return command("kubectl", "patch", "clusterpolicy", policy, "--type=merge", "-p", patch)
