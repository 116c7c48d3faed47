"""Parsed request to the API stand-in, and its record. Pure."""

import re
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl

from gpu_healthcheck.sim.api_objects import RESOURCES, Object, RefusedError, Resource, bad_request, selected

PATH = re.compile(
    r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>status))?$"
)
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 409: "Conflict", 429: "TooManyRequests"}
USER = "system:serviceaccount:gpu-healthcheck:gpu-healthcheck"


@dataclass(frozen=True)
class Request:
    """One received request."""

    at: float  # time.monotonic() between execution and answer
    method: str
    path: str
    body: Object
    status: int


@dataclass(frozen=True)
class Target:
    """Object or collection of a request."""

    resource: Resource
    namespace: str
    name: str
    of_status: bool
    query: dict[str, str]

    def wants(self, thing: Object) -> bool:
        return selected(
            thing,
            field_selector=self.query.get("fieldSelector", ""),
            label_selector=self.query.get("labelSelector", ""),
        )

    def number(self, parameter: str) -> int:
        """Return a parameter of the query; 0 if it is absent."""
        text = self.query.get(parameter) or "0"
        if not text.isdecimal():
            raise bad_request(f"{parameter}: {text!r} is not a number")
        return int(text)


def parse_target(path: str, query: str = "") -> Target:
    if match := PATH.match(path):
        api_version = match["core"] or match["group"]
        for resource in RESOURCES:
            if (resource.api_version, resource.name) == (api_version, match["resource"]):
                return Target(
                    resource=resource,
                    namespace=match["namespace"] or "",
                    name=match["name"] or "",
                    of_status=match["part"] is not None,
                    query=dict(parse_qsl(query)),
                )
    raise RefusedError(HTTPStatus.NOT_FOUND, "NotFound", "the server could not find the requested resource")


def logged_refusal(status: int, retry_after: int | None, method: str, path: str) -> RefusedError:
    """Return the injected failure."""
    message = f"the stand-in is configured to answer {status}"
    if status == HTTPStatus.FORBIDDEN:
        with suppress(RefusedError):  # also for a kind that is not served: permissions are checked first
            message = _forbidden(parse_target(path), method)
    details: Object = {} if retry_after is None else {"retryAfterSeconds": retry_after}
    return RefusedError(status, REASONS.get(status, "ServiceUnavailable"), message, details)


def _forbidden(target: Target, method: str) -> str:
    verb = VERBS.get(method, "get" if target.name else "list")
    scope = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    subject = target.resource.qualified_name + (f' "{target.name}"' if target.name else "")
    resource = target.resource.name + ("/status" if target.of_status else "")
    return (
        f'{subject} is forbidden: User "{USER}" cannot {verb} resource "{resource}" '
        f'in API group "{target.resource.group}" {scope}'
    )
