"""Admission policies of this project, which the API server enforces for its accounts."""

from __future__ import annotations

from typing import Any

from healthcheck.cluster.connection import Requests
from healthcheck.cluster.names import COMPONENT

_GROUP = "/apis/admissionregistration.k8s.io/v1"
_OURS = {"labelSelector": f"app.kubernetes.io/name={COMPONENT}"}


class Policies(Requests):
    """Reads the admission policies of this project."""

    def list_in_force(self) -> set[str]:
        """Return this project's policies that exist and are enforced.

        A policy is enforced by a binding for all requests with the action Deny.
        """
        there = self._named("validatingadmissionpolicies", _name)
        return there & self._named("validatingadmissionpolicybindings", _denies_by)

    def _named(self, resource: str, read: Any) -> set[str]:
        return set(self._each(resource, self._pages(f"{_GROUP}/{resource}", resource, _OURS), read))


def _name(policy: dict[str, Any]) -> str:
    """Return the name of the policy, or an empty string if it admits requests that it cannot evaluate."""
    return str(policy["metadata"]["name"]) if policy["spec"].get("failurePolicy", "Fail") == "Fail" else ""


def _denies_by(binding: dict[str, Any]) -> str:
    spec = binding["spec"]
    narrowed = {key for key, value in (spec.get("matchResources") or {}).items() if key != "matchPolicy" and value}
    return str(spec["policyName"]) if "Deny" in spec.get("validationActions", ()) and not narrowed else ""
