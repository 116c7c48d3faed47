"""Parse why an API server refused to create a pod, from its message to the controller. Pure."""

from __future__ import annotations

import re
from enum import Enum

from msgspec import Struct, field


class RefusalSource(Enum):
    """Component or rule that refused the pod."""

    QUOTA = "a quota is used up"
    QUOTA_NEEDS = "a quota requires requests or limits that the pod does not state"
    QUOTA_SCOPE = "no quota allows pods of this priority class in the namespace"
    QUOTA_LIMITED = "the cluster allows this resource only with a quota for it"
    QUOTA_UNKNOWN = "a quota has not been counted yet"
    LIMIT_RANGE = "a LimitRange"
    RUNTIME_CLASS = "a RuntimeClass that does not exist"
    UNREACHABLE = "an admission webhook that does not respond"
    WEBHOOK = "an admission webhook"
    POLICY = "an admission policy"
    SECURITY = "pod security"
    REQUEST = "an invalid request for GPUs"
    PRIORITY_CLASS = "a PriorityClass that does not exist"
    ACCOUNT = "a service account that does not exist"
    OTHER = "something else"


class Refusal(Struct, frozen=True):
    """Refusal of a pod by the API server.

    `name` is the name of the quota, class, webhook, policy or profile. For a quota, `amounts` holds the requested
    amounts by resource.
    """

    why: RefusalSource
    text: str
    name: str = ""
    amounts: dict[str, str] = field(default_factory=dict)


_PREFIX = re.compile(
    r"\A(?:Error creating: |create Pod \S{1,260} in StatefulSet \S{1,260} failed error: "
    r"|(?:Failed to create|error creating) (?:pod|Pod)\S{0,260}:? ?)",
    re.ASCII,
)
_QUOTA = re.compile(r"exceeded quota: (\S{1,260}), requested: (\S{1,2000}), used: ", re.ASCII)
_AMOUNT = re.compile(r"([^=,]{1,320})=([^=,]{1,60})", re.ASCII)
_PATTERNS: tuple[tuple[RefusalSource, re.Pattern[str]], ...] = tuple(
    (why, re.compile(pattern, re.ASCII))
    for why, pattern in (
        (RefusalSource.QUOTA_NEEDS, r"failed quota: (\S{1,260}): must specify"),
        (RefusalSource.QUOTA_SCOPE, r"insufficient quota to match these scopes: (.{1,400})"),
        (RefusalSource.QUOTA_LIMITED, r"insufficient quota to consume: (\S{1,400})"),
        (RefusalSource.QUOTA_UNKNOWN, r"status unknown for quota: (\S{1,260}),"),
        (RefusalSource.RUNTIME_CLASS, r"RuntimeClass \"([^\"]{1,260})\" not found"),
        (RefusalSource.UNREACHABLE, r"failed calling (?:admission )?webhook \"([^\"]{1,260})\""),
        (RefusalSource.WEBHOOK, r"admission webhook \"([^\"]{1,260})\" denied the request"),
        (
            RefusalSource.POLICY,
            r"ValidatingAdmissionPolicy '([^']{1,260})'(?: with binding '[^']{1,260}')? denied request",
        ),
        (RefusalSource.SECURITY, r"violates PodSecurity \"([^\"]{1,60})\""),
        (RefusalSource.SECURITY, r"unable to validate against any (pod security policy|security context constraint)"),
        (RefusalSource.LIMIT_RANGE, r"(?:maximum|minimum) (\S{1,320}) usage per (?:Container|Pod) is "),
        (RefusalSource.LIMIT_RANGE, r"(\S{1,320}) max limit to request ratio per (?:Container|Pod) is "),
        (RefusalSource.REQUEST, r"must be equal to (\S{1,320}) limit"),
        (RefusalSource.REQUEST, r"(?:requests|limits)\[([^\]]{1,320})\]: (?:Invalid|Required) value"),
        (RefusalSource.REQUEST, r"limits\.([A-Za-z0-9./_-]{1,320}): Required value: Limit must be set"),
        (RefusalSource.REQUEST, r"Limit must be set for non overcommitable (resources)"),
        (RefusalSource.PRIORITY_CLASS, r"no PriorityClass with name (\S{1,260}) was found"),
        (RefusalSource.ACCOUNT, r"error looking up service account (\S{1,520}): .{0,40}not found"),
    )
)
_PASSING = re.compile(
    r"object has been modified|etcdserver: |request timed out|context deadline exceeded|too many requests"
    r"|connection refused|is being terminated|already exists|Timeout: ",
    re.ASCII | re.IGNORECASE,
)
"""Temporary errors of the API server, or a namespace that is being deleted."""
_REFUSED = re.compile(r"is forbidden|is invalid|denied", re.ASCII)


def parse(message: str) -> Refusal | None:
    """Parse a message into a refusal; None if it refuses nothing or passes on its own."""
    text = _PREFIX.sub("", message, count=1)
    quota = _QUOTA.search(text)
    if quota is not None:
        return Refusal(RefusalSource.QUOTA, text, quota[1], dict(_AMOUNT.findall(quota[2])))
    for why, pattern in _PATTERNS:
        found = pattern.search(text)
        if found is not None:
            return Refusal(why, text, found[1])
    if _PASSING.search(text) or not _REFUSED.search(text):
        return None
    return Refusal(RefusalSource.OTHER, text)
