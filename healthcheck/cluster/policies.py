"""Admission policies of this project, which the API server enforces for its accounts."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from healthcheck.cluster.connection import Requests
from healthcheck.cluster.errors import NotFound
from healthcheck.cluster.names import COMPONENT

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
