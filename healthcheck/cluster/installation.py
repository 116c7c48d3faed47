"""The installation in the cluster: ConfigMap and RuntimeClasses, admission policies, permissions of the account."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.cluster.connection import Requests
from gpu_healthcheck.healthcheck.cluster.errors import NotFound
from gpu_healthcheck.healthcheck.cluster.names import COMPONENT, NAMESPACE
from gpu_healthcheck.healthcheck.node.state import SelectiveClass

CONFIG_MAP = "gpu-healthcheck-config"
_MOST_CLASSES = 1000


class ClusterSettings(Requests):
    """Reads the ConfigMap of this project and the RuntimeClasses of the cluster."""

    def read_config(self) -> dict[str, str]:
        """Return the keys and values of the ConfigMap that the agents read."""
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}"
        return self._json("get", path, "configmaps").get("data") or {}

    def list_runtime_classes(self) -> list[SelectiveClass]:
        """Return all RuntimeClasses, read in pages.

        A cluster has only a few; beyond 1,000 the rest is left out.
        """
        classes = self._pages("/apis/node.k8s.io/v1/runtimeclasses", "runtimeclasses", {})
        return [
            SelectiveClass(
                runtime_class["metadata"]["name"],
                runtime_class["handler"],
                (runtime_class.get("scheduling") or {}).get("nodeSelector") or {},
            )
            for runtime_class in islice(classes, _MOST_CLASSES)
        ]


_GROUP = "/apis/admissionregistration.k8s.io/v1"
_GATE = "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"
_GATE_VERSIONS = "", "beta1"
"""Kubernetes 1.36 and newer serve v1; older ones at most v1beta1."""
_OURS = {"labelSelector": f"app.kubernetes.io/name={COMPONENT}"}


class Policies(Requests):
    """Reads the admission policies of this project."""

    def list_in_force(self) -> set[str]:
        """Return this project's policies that exist and are enforced.

        A policy is enforced by a binding for all requests with the action Deny.
        """
        there = self._named("validatingadmissionpolicies", _name)
        return there & self._named("validatingadmissionpolicybindings", _denies_by)

    def list_gate(self) -> tuple[str, ...]:
        """Return the policies and bindings that add the gate to pods, as text; () if the API server serves none."""
        for version in _GATE_VERSIONS:
            with suppress(NotFound):
                return tuple(
                    f"{resource} {name}"
                    for resource in _GATE
                    for name in sorted(self._named(resource, _any_name, f"{_GROUP}{version}"))
                )
        return ()

    def _named(self, resource: str, read: Any, group: str = _GROUP) -> set[str]:
        return set(self._each(resource, self._pages(f"{group}/{resource}", resource, _OURS), read))


def _any_name(entry: dict[str, Any]) -> str:
    return str(entry["metadata"]["name"])


def _name(policy: dict[str, Any]) -> str:
    """Return the name of the policy, or an empty string if it admits requests that it cannot evaluate."""
    return str(policy["metadata"]["name"]) if policy["spec"].get("failurePolicy", "Fail") == "Fail" else ""


def _denies_by(binding: dict[str, Any]) -> str:
    spec = binding["spec"]
    narrowed = {key for key, value in (spec.get("matchResources") or {}).items() if key != "matchPolicy" and value}
    return str(spec["policyName"]) if "Deny" in spec.get("validationActions", ()) and not narrowed else ""


class Right(Struct, frozen=True):
    """A permission of a person or program.

    `resource` includes the subresource after a slash; an empty namespace or name means all.
    """

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group} in {self.namespace or 'the whole cluster'}"


class Rights(Requests):
    """Checks permissions of the current user."""

    def is_allowed(self, right: Right) -> bool:
        """Whether the current account has this permission."""
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": right.namespace,
            "name": right.name,
        }
        body = {"spec": {"resourceAttributes": attributes}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self._json("create", path, "selfsubjectaccessreviews", body)
        return (answer.get("status") or {}).get("allowed") is True
