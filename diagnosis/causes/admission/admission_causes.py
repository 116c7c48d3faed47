"""The causes of this family."""

from __future__ import annotations

from collections.abc import Mapping

from diagnosis.causes.admission.texts import RefusalSource
from diagnosis.causes.runtime_handlers import CLASS_MISSING
from diagnosis.model import Cause, CauseSeverity, Link


def _cause(name: str, means: str, remedy: str, source: str = "") -> Cause:
    return Cause(name, CauseSeverity.HIGH, Link.ADMITTED, means, remedy, source)


EXCEEDED = _cause(
    "ExceededQuota",
    "A ResourceQuota of the namespace is used up, so no further pods of a GPU workload are created.",
    "Raise the quota, or delete unneeded pods of the namespace.",
    "https://kubernetes.io/docs/concepts/policy/resource-quotas/",
)
NEVER_APPLIES = Cause(
    "QuotaNeverApplies",
    CauseSeverity.LOW,
    None,
    "A ResourceQuota limits an extended resource under `limits.`, which Kubernetes stores and never enforces.",
    "Limit it under `requests.`, the only form that Kubernetes enforces for extended resources.",
    "https://kubernetes.io/docs/concepts/policy/resource-quotas/#resource-quota-for-extended-resources",
)
NEEDS = _cause(
    "QuotaNeedsRequests",
    "A ResourceQuota of the namespace requires a resource that the pods of a GPU workload do not state.",
    "State the requests and limits that the quota requires, or set defaults by a LimitRange.",
)
SCOPE = _cause(
    "PriorityClassNeedsQuota",
    "Pods of a critical priority class are allowed only in namespaces with a quota for it, and this one has none.",
    "Create a ResourceQuota in the namespace with a scope for the priority class.",
    "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/google-gke.html",
)
LIMITED = _cause(
    "ResourceNeedsQuota",
    "The cluster allows this resource only with a quota for it, and the namespace has none.",
    "Create a ResourceQuota for the resource in the namespace.",
)
LIMIT_RANGE = _cause(
    "LimitRangeViolated",
    "A pod of a GPU workload requests more or less of a resource than a LimitRange of its namespace allows.",
    "Change the workload's requests, or the LimitRange.",
)
DENIED = _cause(
    "WebhookDeniesPods",
    "An admission webhook refuses the pods of a GPU workload.",
    "Follow its message, in the workload's pod template or in the webhook's policy.",
)
UNREACHABLE = _cause(
    "WebhookUnreachable",
    "A mandatory admission webhook does not respond, so no pods are created.",
    "Restore the pods behind its Service, or fix its certificate.",
)
POLICY = _cause(
    "AdmissionPolicyDeniesPods",
    "A ValidatingAdmissionPolicy refuses the pods of a GPU workload.",
    "Follow its message, in the workload's pod template or in the policy.",
)
SECURITY = _cause(
    "PodSecurityDenied",
    "Pod security of the namespace refuses the pods of a GPU workload or of a component that GPUs need.",
    "Allow privileged pods in the namespace if a component needs them; else change the workload's security context.",
    "https://kubernetes.io/docs/concepts/security/pod-security-admission/",
)
REQUEST = _cause(
    "GpuRequestInvalid",
    "A workload requests GPUs in an invalid form: a fraction, or a request that differs from the limit.",
    "Request whole GPUs, in the limits only or equal in requests and limits.",
    "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
)
PRIORITY_CLASS = _cause(
    "PriorityClassMissing",
    "A GPU workload names a PriorityClass that does not exist.",
    "Create the PriorityClass, or correct its name in the workload.",
)
ACCOUNT = _cause(
    "ServiceAccountMissing",
    "A GPU workload names a service account that does not exist in its namespace.",
    "Create the service account, or correct its name in the workload.",
)
REFUSED = _cause(
    "PodsNotAdmitted",
    "The API server refuses the pods of a GPU workload.",
    "Read its reason; it names the rule.",
)
BY_TEXT: Mapping[RefusalSource, Cause] = {
    RefusalSource.QUOTA: EXCEEDED,
    RefusalSource.QUOTA_NEEDS: NEEDS,
    RefusalSource.QUOTA_SCOPE: SCOPE,
    RefusalSource.QUOTA_LIMITED: LIMITED,
    RefusalSource.LIMIT_RANGE: LIMIT_RANGE,
    RefusalSource.RUNTIME_CLASS: CLASS_MISSING,
    RefusalSource.WEBHOOK: DENIED,
    RefusalSource.UNREACHABLE: UNREACHABLE,
    RefusalSource.POLICY: POLICY,
    RefusalSource.SECURITY: SECURITY,
    RefusalSource.REQUEST: REQUEST,
    RefusalSource.PRIORITY_CLASS: PRIORITY_CLASS,
    RefusalSource.ACCOUNT: ACCOUNT,
}
CAUSES = (*BY_TEXT.values(), REFUSED)
