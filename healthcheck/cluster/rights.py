"""What whoever asks may do."""

from __future__ import annotations

from msgspec import Struct

from healthcheck.cluster.connection import Connection


class Right(Struct, frozen=True):
    """What a person or program may do. `resource` has its subresource behind a slash; namespace '' is all of them."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group} in {self.namespace or 'the whole cluster'}"


class Rights(Connection):
    def is_allowed(self, right: Right) -> bool:
        """Whether whoever asks has this right."""
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": right.namespace,
        }
        body = {"spec": {"resourceAttributes": attributes}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self._json("create", path, "selfsubjectaccessreviews", body)
        return (answer.get("status") or {}).get("allowed") is True
