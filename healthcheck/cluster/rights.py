"""Permissions of the current account."""

from __future__ import annotations

from msgspec import Struct

from healthcheck.cluster.connection import Requests


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
