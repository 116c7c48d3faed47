"""Metadata that every object of the API has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, TypeVar

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.text.boundary import At, Moment, entries, read, text, texts, value_at

_KEPT = re.compile(
    r"(?:[a-z0-9.-]{0,200}\.)?"
    r"(?:aws-samples\.io|amazonaws\.com|hami\.io|nvidia\.com|(?:x-)?k8s\.io|kubernetes\.io|karpenter\.sh|helm\.sh|volcano\.sh"
    r"|k8s\.aws)/",
    re.ASCII,
)
_OF_A_CORDON = re.compile(
    r"(?:weave\.works|kured\.dev|(?:machineconfiguration|sriovnetwork)\.openshift\.io)/"
    r"|(?:[a-z0-9.-]{1,200}/)?[\w.-]{0,63}cordon",
    re.ASCII | re.IGNORECASE,
)
"""Annotations of programs that cordon nodes."""
_SHARES = frozenset(("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"))
"""Annotations by which a pod requests a share of a GPU from KAI or run:ai."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_LONGEST_ANNOTATION = 64 * 1024
"""Longest annotation: more than our records, and HAMi's registration of a node full of cards."""


def object_name(value: object) -> str:
    """Return the name of an object. The API has none with a hyphen in front, which would be an option of a command."""
    return text(value).lstrip("-")


class Owner(Struct, frozen=True):
    """The controller of an object."""

    kind: str = ""
    name: Annotated[str, At("name"), object_name] = ""
    uid: str = ""


def _controller(value: object) -> Owner | None:
    """Return the owner that controls the object, else the first one."""
    references = [entry for entry in entries(value) if value_at(entry, "name")]
    references.sort(key=lambda entry: entry.get("controller") is not True)
    return read(Owner, references[0]) if references else None


def is_kept(annotation: str) -> bool:
    """Whether an annotation is kept, by its domain.

    Writers in the known domains record an object's state. Other annotations may have any content.
    """
    if annotation in _SHARES:
        return True
    known = _KEPT.match(annotation) or _OF_A_CORDON.match(annotation)
    return annotation != _LAST_APPLIED and known is not None


class Meta(Struct, frozen=True):
    """Metadata of an object. `kind` is as in the API: `Pod`. `namespace` is '' for cluster-scoped objects."""

    kind: str = ""
    namespace: Annotated[str, At("namespace"), object_name] = ""
    name: Annotated[str, At("name"), object_name] = ""
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Annotated[Mapping[str, str], partial(texts, keep=is_kept, longest=_LONGEST_ANNOTATION)] = field(
        default_factory=dict
    )
    created: Annotated[Moment, At("creationTimestamp")] = None
    deleted: Annotated[Moment, At("deletionTimestamp")] = None
    """Time of the deletion request; None without one."""
    finalizers: tuple[str, ...] = ()
    owner: Annotated[Owner | None, At("ownerReferences"), _controller] = None

    @property
    def subject(self) -> str:
        """Return the name in a diagnosis, as `node/a` or `pod/team/trainer-0`."""
        return subject(self.kind, self.namespace, self.name)


def subject(kind: str, namespace: str, name: str) -> str:
    """Return the name of an object in a diagnosis."""
    if kind and namespace and name:  # the usual case
        return f"{kind.lower()}/{namespace}/{name}"
    return "/".join(word for word in (kind.lower(), namespace, name) if word)


class ApiObject(Struct, frozen=True):
    """Object of the API."""

    meta: Annotated[Meta, At("metadata")]

    @property
    def subject(self) -> str:
        """Return the name in a diagnosis, as `node/a` or `pod/team/trainer-0`."""
        return self.meta.subject


S = TypeVar("S", bound=ApiObject)


def read_object(struct: type[S], kind: str, raw: object) -> S:
    """Read an object of the API. Raises ValueError for an object without a name, which could not be reported."""
    metadata = value_at(raw, "metadata")
    if not isinstance(raw, dict) or not isinstance(metadata, dict) or not metadata.get("name"):
        raise ValueError(f"a {kind} without a name")
    return read(struct, raw | {"metadata": metadata | {"kind": kind}})
