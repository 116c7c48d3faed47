"""Metadata that every object of the API has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field

from diagnosis.snapshot.json_fields import Fields

_KEPT = re.compile(
    r"(?:[a-z0-9.-]{0,200}\.)?"
    r"(?:aws-samples\.io|amazonaws\.com|hami\.io|nvidia\.com|(?:x-)?k8s\.io|kubernetes\.io|karpenter\.sh|volcano\.sh|k8s\.aws)/",
    re.ASCII,
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_LONGEST_ANNOTATION = 64 * 1024
"""Longest annotation: more than our records, and HAMi's registration of a node full of cards."""


class Owner(Struct, frozen=True):
    """The controller of an object."""

    kind: str
    name: str
    uid: str


class Meta(Struct, frozen=True):
    """Metadata of an object. `kind` is as in the API: `Pod`. `namespace` is '' for cluster-scoped objects."""

    kind: str
    namespace: str
    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    created: datetime | None = None
    deleted: datetime | None = None
    """Time of the deletion request; None without one."""
    finalizers: tuple[str, ...] = ()
    owner: Owner | None = None

    @property
    def subject(self) -> str:
        """Return the name in a diagnosis, as `node/a` or `pod/team/trainer-0`."""
        return subject(self.kind, self.namespace, self.name)


def subject(kind: str, namespace: str, name: str) -> str:
    """Return the name of an object in a diagnosis."""
    if kind and namespace and name:  # the usual case
        return f"{kind.lower()}/{namespace}/{name}"
    return "/".join(word for word in (kind.lower(), namespace, name) if word)


def is_kept(annotation: str) -> bool:
    """Whether an annotation is kept, by its domain.

    Writers in the known domains record an object's state. Other annotations may have any content.
    """
    return annotation != _LAST_APPLIED and _KEPT.match(annotation) is not None


def read_meta(kind: str, raw: Fields) -> Meta:
    """Read the metadata. Raises ValueError for an object without a name, which could not be reported."""
    name = raw.text("metadata", "name")
    if not name:
        raise ValueError(f"a {kind} without a name")
    return Meta(
        kind,
        raw.text("metadata", "namespace"),
        name,
        raw.text("metadata", "uid"),
        raw.words("metadata", "labels"),
        raw.words("metadata", "annotations", keep=is_kept, longest=_LONGEST_ANNOTATION),
        raw.moment("metadata", "creationTimestamp"),
        raw.moment("metadata", "deletionTimestamp"),
        raw.texts("metadata", "finalizers"),
        _controller(raw),
    )


def _controller(raw: Fields) -> Owner | None:
    owners = [fields for fields in raw.each("metadata", "ownerReferences") if fields.text("name")]
    owners.sort(key=lambda fields: not fields.flag("controller"))
    return next((Owner(owner.text("kind"), owner.text("name"), owner.text("uid")) for owner in owners), None)
