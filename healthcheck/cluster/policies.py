"""Which of our admission policies the API server holds our accounts by."""

from __future__ import annotations

from typing import Any

from healthcheck.cluster.connection import Connection
from healthcheck.cluster.names import COMPONENT

_GROUP = "/apis/admissionregistration.k8s.io/v1"
_OURS = {"labelSelector": f"app.kubernetes.io/name={COMPONENT}"}


class Policies(Connection):
    def list_policies_in_force(self) -> set[str]:
        """Those of ours that are there, and that a binding over everything has deny what breaks them."""
        there = set(self._named("validatingadmissionpolicies", _name))
        return there & set(self._named("validatingadmissionpolicybindings", _denies_by))

    def _named(self, resource: str, read: Any) -> list[str]:
        return list(self._each(resource, self._pages(f"{_GROUP}/{resource}", resource, _OURS), read))


def _name(policy: dict[str, Any]) -> str:
    """'' of one that lets through what it could not judge."""
    return str(policy["metadata"]["name"]) if policy["spec"].get("failurePolicy", "Fail") == "Fail" else ""


def _denies_by(binding: dict[str, Any]) -> str:
    spec = binding["spec"]
    narrowed = {key for key, value in (spec.get("matchResources") or {}).items() if key != "matchPolicy" and value}
    return str(spec["policyName"]) if "Deny" in spec.get("validationActions", ()) and not narrowed else ""
