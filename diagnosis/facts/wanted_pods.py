"""Return the pods that a manifest file would create, one of each kind. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_healthcheck.healthcheck.text.documents import MalformedError, yaml_object

LONGEST = 1 << 20
_MOST = 64
_BETWEEN = re.compile(r"^---(?:[ \t].{0,200})?$", re.MULTILINE)
_TEMPLATES = {
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"), ("spec", "template")),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}


class NoPodError(ValueError):
    """File has no valid pod. The message describes the fault."""


def pods_in(text: str, namespace: str) -> tuple[dict[str, Any], ...]:
    """Return the pods in their order in the text, in the form that the API accepts. Raises NoPodError.

    `namespace`: for pods that name none.
    """
    if len(text) > LONGEST:
        raise NoPodError(f"{len(text)} characters; the limit is {LONGEST}")
    found = [pod for document in _documents(text) for pod in _pods(document, namespace)]
    if not found:
        raise NoPodError(f"no pod found: expected a Pod, {', '.join(_TEMPLATES)} or a List of these")
    return tuple(found[:_MOST])


def _documents(text: str) -> Iterator[Mapping[str, Any]]:
    for number, part in enumerate(_BETWEEN.split(text), start=1):
        try:
            yield yaml_object(part.encode("utf-8", "replace"))
        except MalformedError as error:
            place = f", line {error.line}" if error.line else ""
            raise NoPodError(f"document {number}{place}: {error.message}") from error


def _pods(raw: Mapping[str, Any], namespace: str) -> Iterator[dict[str, Any]]:
    kind = raw.get("kind")
    if kind == "List":
        items = raw.get("items")
        for entry in items if isinstance(items, list) else ():
            if isinstance(entry, dict) and entry.get("kind") != "List":
                yield from _pods(entry, namespace)
    elif kind == "Pod":
        yield _pod(raw, raw, namespace)
    elif kind in _TEMPLATES:
        template: Any = raw
        for key in _TEMPLATES[str(kind)]:
            template = template.get(key) if isinstance(template, dict) else None
        if isinstance(template, dict):
            yield _pod(template, raw, namespace)


def _pod(template: Mapping[str, Any], owner: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    own, above = (_object(entry.get("metadata")) for entry in (template, owner))
    metadata = {key: own[key] for key in ("labels", "annotations") if isinstance(own.get(key), dict)}
    metadata["name"] = str(above.get("name") or above.get("generateName") or "pod").rstrip("-")
    metadata["namespace"] = str(above.get("namespace") or namespace or "default")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _object(template.get("spec"))}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
