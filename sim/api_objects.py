"""Kubernetes objects of the API stand-in: patches, selectors, Status answers. Pure."""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

Object = dict[str, Any]

_BETWEEN_TERMS = re.compile(r",(?![^(]*\))")
_ONE_OF = re.compile(r"(?P<key>\S+) in \((?P<values>[^()]*)\)")

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
# Lists that a strategic merge patch merges, and their keys; any other list, such as spec.taints, is replaced.
MERGE_KEYS = {"conditions": "type", "addresses": "type", "ownerReferences": "uid"}


@dataclass(frozen=True)
class Resource:
    """Resource of the API: its group, version and name."""

    name: str
    kind: str
    api_version: str
    namespaced: bool = True
    has_status: bool = False

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def qualified_name(self) -> str:
        return f"{self.name}.{self.group}" if self.group else self.name


NODES = Resource("nodes", "Node", "v1", namespaced=False, has_status=True)
EVENTS = Resource("events", "Event", "v1")
LEASES = Resource("leases", "Lease", "coordination.k8s.io/v1")
CONFIG_MAPS = Resource("configmaps", "ConfigMap", "v1")
RUNTIME_CLASSES = Resource("runtimeclasses", "RuntimeClass", "node.k8s.io/v1", namespaced=False)
NAMESPACES = Resource("namespaces", "Namespace", "v1", namespaced=False)
PODS = Resource("pods", "Pod", "v1", has_status=True)
DAEMON_SETS = Resource("daemonsets", "DaemonSet", "apps/v1", has_status=True)
CRON_JOBS = Resource("cronjobs", "CronJob", "batch/v1", has_status=True)
JOBS = Resource("jobs", "Job", "batch/v1", has_status=True)
DEPLOYMENTS = Resource("deployments", "Deployment", "apps/v1", has_status=True)
WEBHOOKS = Resource(
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    "admissionregistration.k8s.io/v1",
    namespaced=False,
)
RESOURCES = (
    NODES,
    EVENTS,
    LEASES,
    CONFIG_MAPS,
    RUNTIME_CLASSES,
    NAMESPACES,
    PODS,
    DAEMON_SETS,
    CRON_JOBS,
    JOBS,
    DEPLOYMENTS,
    WEBHOOKS,
)


class RefusedError(Exception):
    """Request that the API server answers with a failure Status."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}

    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def not_found(resource: Resource, name: str) -> RefusedError:
    details = {"name": name, "group": resource.group, "kind": resource.name}
    return RefusedError(HTTPStatus.NOT_FOUND, "NotFound", f'{resource.qualified_name} "{name}" not found', details)


def already_exists(resource: Resource, name: str) -> RefusedError:
    details = {"name": name, "group": resource.group, "kind": resource.name}
    message = f'{resource.qualified_name} "{name}" already exists'
    return RefusedError(HTTPStatus.CONFLICT, "AlreadyExists", message, details)


def conflict(resource: Resource, name: str) -> RefusedError:
    details = {"name": name, "group": resource.group, "kind": resource.name}
    message = (
        f'Operation cannot be fulfilled on {resource.qualified_name} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return RefusedError(HTTPStatus.CONFLICT, "Conflict", message, details)


def bad_request(message: str) -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def refuse_another_kind(resource: Resource, body: Object) -> None:
    """Raise RefusedError where the body names another kind or version than the path, as the real server does."""
    named = body.get("kind", resource.kind), body.get("apiVersion", resource.api_version)
    if named != (resource.kind, resource.api_version):
        raise bad_request(f"{named[0]} in version {named[1]!r} cannot be handled as a {resource.kind}")


def patched(present: Object, patch: Object, content_type: str) -> Object:
    """Return the patched object; the given object is not changed."""
    if content_type not in (MERGE_PATCH, STRATEGIC_MERGE_PATCH):
        message = f"the stand-in accepts {MERGE_PATCH} and {STRATEGIC_MERGE_PATCH}, not {content_type!r}"
        raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    return _merged(present, patch, strategic=content_type == STRATEGIC_MERGE_PATCH)


def _merged(present: Object, patch: Object, *, strategic: bool) -> Object:
    result = copy.deepcopy(present)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = _merged(before if isinstance(before, dict) else {}, value, strategic=strategic)
        elif strategic and isinstance(value, list) and key in MERGE_KEYS:
            result[key] = _merged_list(result.get(key) or [], value, MERGE_KEYS[key])
        else:
            result[key] = copy.deepcopy(value)
    return result


def _merged_list(present: list[Object], patch: list[Object], merge_key: str) -> list[Object]:
    merged = {element[merge_key]: element for element in present}
    for element in patch:
        identity = element.get(merge_key)
        if identity is None:
            raise bad_request(f"map: {element} does not contain declared merge key: {merge_key}")
        if element.get("$patch") == "delete":
            merged.pop(identity, None)
        else:
            merged[identity] = _merged(merged.get(identity, {}), element, strategic=True)
    return list(merged.values())


def selected(thing: Object, *, field_selector: str, label_selector: str) -> bool:
    labels = thing["metadata"].get("labels") or {}
    return all(_field_matches(thing, term) for term in _terms(field_selector)) and all(
        _label_matches(labels, term) for term in _terms(label_selector)
    )


def _terms(selector: str) -> list[str]:
    return [term.strip() for term in _BETWEEN_TERMS.split(selector) if term.strip()]


def _field_matches(thing: Object, term: str) -> bool:
    path, operator, wanted = _split(term)
    value: Any = thing
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return (str(value) == wanted) == (operator == "=")


def _label_matches(labels: Mapping[str, str], term: str) -> bool:
    if found := _ONE_OF.fullmatch(term):
        return labels.get(found["key"]) in found["values"].split(",")
    if "(" in term:
        raise bad_request(f"the stand-in supports only `in` of the set-based selectors: {term!r}")
    if "=" not in term:
        return (term.removeprefix("!") in labels) != term.startswith("!")
    key, operator, wanted = _split(term)
    return (labels.get(key) == wanted) == (operator == "=")


def _split(term: str) -> tuple[str, str, str]:
    operator = "!=" if "!=" in term else "="
    left, _, right = term.replace("==", "=").partition(operator)
    return left.strip(), operator, right.strip()
