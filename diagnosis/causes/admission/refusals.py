"""Causes of this family, and the parsing of why an API server refused to create a pod. Pure."""

from __future__ import annotations

import re

from msgspec import Struct, field

from diagnosis.causes.runtime_handlers import CLASS_MISSING
from diagnosis.facts.symptoms import texts_in
from diagnosis.model import Cause, CauseSeverity, Family, Link, Signature, TextSource

_admitted = Family(Link.ADMITTED)


def _refusing(pattern: str) -> Signature:
    return Signature(pattern, "kube-apiserver", frozenset((TextSource.EVENT,)))


EXCEEDED = _admitted(
    "ExceededQuota",
    "A ResourceQuota of the namespace is used up, so no further pods of a GPU workload are created.",
    "Raise the quota, or delete unneeded pods of the namespace.",
    _refusing(r"exceeded quota: (\S{1,260}), requested: (\S{1,2000}), used: "),
    source="https://kubernetes.io/docs/concepts/policy/resource-quotas/",
)
NEVER_APPLIES = Family(None)(
    "QuotaNeverApplies",
    "A ResourceQuota limits an extended resource under `limits.`, which Kubernetes stores and never enforces.",
    "Limit it under `requests.`, the only form that Kubernetes enforces for extended resources.",
    severity=CauseSeverity.LOW,
    source="https://kubernetes.io/docs/concepts/policy/resource-quotas/#resource-quota-for-extended-resources",
)
NEEDS = _admitted(
    "QuotaNeedsRequests",
    "A ResourceQuota of the namespace requires a resource that the pods of a GPU workload do not state.",
    "State the requests and limits that the quota requires, or set defaults by a LimitRange.",
    _refusing(r"failed quota: (\S{1,260}): must specify"),
)
SCOPE = _admitted(
    "PriorityClassNeedsQuota",
    "Pods of a critical priority class are allowed only in namespaces with a quota for it, and this one has none.",
    "Create a ResourceQuota in the namespace with a scope for the priority class.",
    _refusing(r"insufficient quota to match these scopes: (.{1,400})"),
    source="https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/google-gke.html",
)
LIMITED = _admitted(
    "ResourceNeedsQuota",
    "The cluster allows this resource only with a quota for it, and the namespace has none.",
    "Create a ResourceQuota for the resource in the namespace.",
    _refusing(r"insufficient quota to consume: (\S{1,400})"),
)
LIMIT_RANGE = _admitted(
    "LimitRangeViolated",
    "A pod of a GPU workload requests more or less of a resource than a LimitRange of its namespace allows.",
    "Change the workload's requests, or the LimitRange.",
    _refusing(r"(?:maximum|minimum) (\S{1,320}) usage per (?:Container|Pod) is "),
    _refusing(r"(\S{1,320}) max limit to request ratio per (?:Container|Pod) is "),
)
DENIED = _admitted(
    "WebhookDeniesPods",
    "An admission webhook refuses the pods of a GPU workload.",
    "Follow its message, in the workload's pod template or in the webhook's policy.",
    _refusing(r"admission webhook \"([^\"]{1,260})\" denied the request"),
)
UNREACHABLE = _admitted(
    "WebhookUnreachable",
    "A mandatory admission webhook does not respond, so no pods are created.",
    "Restore the pods behind its Service, or fix its certificate.",
    _refusing(r"failed calling (?:admission )?webhook \"([^\"]{1,260})\""),
)
POLICY = _admitted(
    "AdmissionPolicyDeniesPods",
    "A ValidatingAdmissionPolicy refuses the pods of a GPU workload.",
    "Follow its message, in the workload's pod template or in the policy.",
    _refusing(r"ValidatingAdmissionPolicy '([^']{1,260})'(?: with binding '[^']{1,260}')? denied request"),
)
SECURITY = _admitted(
    "PodSecurityDenied",
    "Pod security of the namespace refuses the pods of a GPU workload or of a component that GPUs need.",
    "Allow privileged pods in the namespace if a component needs them; else change the workload's security context.",
    _refusing(r"violates PodSecurity \"([^\"]{1,60})\""),
    _refusing(r"unable to validate against any (pod security policy|security context constraint)"),
    source="https://kubernetes.io/docs/concepts/security/pod-security-admission/",
)
REQUEST = _admitted(
    "GpuRequestInvalid",
    "A workload requests GPUs in an invalid form: a fraction, or a request that differs from the limit.",
    "Request whole GPUs, in the limits only or equal in requests and limits.",
    _refusing(r"must be equal to (\S{1,320}) limit"),
    _refusing(r"(?:requests|limits)\[([^\]]{1,320})\]: (?:Invalid|Required) value"),
    _refusing(r"limits\.([A-Za-z0-9./_-]{1,320}): Required value: Limit must be set"),
    _refusing(r"Limit must be set for non overcommitable (resources)"),
    source="https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
)
PRIORITY_CLASS = _admitted(
    "PriorityClassMissing",
    "A GPU workload names a PriorityClass that does not exist.",
    "Create the PriorityClass, or correct its name in the workload.",
    _refusing(r"no PriorityClass with name (\S{1,260}) was found"),
)
ACCOUNT = _admitted(
    "ServiceAccountMissing",
    "A GPU workload names a service account that does not exist in its namespace.",
    "Create the service account, or correct its name in the workload.",
    _refusing(r"error looking up service account (\S{1,520}): .{0,40}not found"),
)
REFUSED = _admitted(
    "PodsNotAdmitted", "The API server refuses the pods of a GPU workload.", "Read its reason; it names the rule."
)
CAUSES = (
    *(EXCEEDED, NEEDS, SCOPE, LIMITED, LIMIT_RANGE, CLASS_MISSING, DENIED, UNREACHABLE, POLICY, SECURITY, REQUEST),
    *(PRIORITY_CLASS, ACCOUNT, REFUSED),
)
# A webhook may use the words of a LimitRange.
_TEXTS = texts_in(TextSource.EVENT, (*(cause for cause in CAUSES if cause is not LIMIT_RANGE), LIMIT_RANGE))
_PREFIX = re.compile(
    r"\A(?:Error creating: |create Pod \S{1,260} in StatefulSet \S{1,260} failed error: "
    r"|(?:Failed to create|error creating) (?:pod|Pod)\S{0,260}:? ?)",
    re.ASCII,
)
_AMOUNT = re.compile(r"([^=,]{1,320})=([^=,]{1,60})", re.ASCII)
_UNCOUNTED = re.compile(r"status unknown for quota: \S{1,260},", re.ASCII)
_PASSING = re.compile(
    r"object has been modified|etcdserver: |request timed out|context deadline exceeded|too many requests"
    r"|connection refused|is being terminated|already exists|Timeout: ",
    re.ASCII | re.IGNORECASE,
)
"""Temporary errors of the API server, or a namespace that is being deleted."""
_REFUSED = re.compile(r"is forbidden|is invalid|denied", re.ASCII)


class Refusal(Struct, frozen=True):
    """Refusal of a pod by the API server.

    `cause` is None if a quota has not been counted yet. `name` is the name of the quota, class, webhook, policy or
    profile. For a quota, `amounts` holds the requested amounts by resource.
    """

    cause: Cause | None
    text: str
    name: str = ""
    amounts: dict[str, str] = field(default_factory=dict)


def parse(message: str) -> Refusal | None:
    """Parse a message into a refusal; None if it refuses nothing or passes on its own."""
    text = _PREFIX.sub("", message, count=1)
    for cause, signature in _TEXTS:
        found = signature.search(text)
        if found is not None:
            return Refusal(cause, text, found[1], dict(_AMOUNT.findall(found[2])) if cause is EXCEEDED else {})
    if _UNCOUNTED.search(text):
        return Refusal(None, text)
    return Refusal(REFUSED, text) if _REFUSED.search(text) and not _PASSING.search(text) else None
