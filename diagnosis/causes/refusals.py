"""Refusals of pods by the API server: causes by message, and the workloads that lack pods because of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct, field

from gpu_healthcheck.diagnosis.causes.runtime_handlers import CLASS_MISSING
from gpu_healthcheck.diagnosis.facts.components import role_of
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_claims, meant_as_gpu
from gpu_healthcheck.diagnosis.facts.placement import asked_by
from gpu_healthcheck.diagnosis.facts.symptoms import texts_in
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, Family, Link, Signature, TextSource
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.meta import Meta
from gpu_healthcheck.diagnosis.snapshot.pods import PodSpec, condition_in
from gpu_healthcheck.diagnosis.snapshot.workloads import KINDS, Workload
from gpu_healthcheck.healthcheck.text.moments import EARLIEST

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
_MAKERS = frozenset(("ReplicaSet", "StatefulSet", "DaemonSet", "Job"))
"""Kinds that create pods themselves; other kinds create one of these."""
_ABOVE = ("JobSet", "LeaderWorkerSet", "PyTorchJob", "MPIJob")
"""Kinds that create one of the above, or pods, and record refusals in their own status."""
_FAILED = frozenset(
    ("FailedCreate", "JobCreationFailed", "FailedCreatePod", "FailedToCreateWorkerPod", "FailedToCreateHeadPod")
)
_PATIENCE = timedelta(minutes=1)
_RECENT = timedelta(minutes=30)
"""A controller retries at least every 15 minutes."""


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


class IncompleteWorkload(Struct, frozen=True):
    """Workload that lacks pods.

    `refusal` is the last refusal that it received; None if no message reports one, or if it passes on its own.
    """

    workload: Workload
    top: str
    """Object that a person wrote: the Deployment above the ReplicaSet."""
    refusal: Refusal | None
    is_component: bool

    @property
    def spec(self) -> PodSpec:
        return self.workload.spec or PodSpec()

    @property
    def namespace(self) -> str:
        return self.workload.meta.namespace


def incomplete_workloads(snapshot: Snapshot) -> Iterator[IncompleteWorkload]:
    """Yield the workloads that lack pods, limited to those for GPUs and to components that GPUs need."""
    claims = gpu_claims(snapshot)
    for maker in _makers(snapshot):
        if maker.spec is None or not _lacks(snapshot, maker):
            continue
        is_component = role_of(maker.meta, maker.template_labels, maker.spec) is not None
        if is_component or _for_gpus(maker.meta, maker.spec, claims):
            refusals = [refusal for message in _messages(snapshot, maker) if (refusal := parse(message)) is not None]
            last = refusals[-1] if refusals else None
            yield IncompleteWorkload(maker, snapshot.line(maker.meta)[-1], last, is_component)


def _makers(snapshot: Snapshot) -> Iterator[Workload]:
    """Yield workloads that create pods, and Deployments whose ReplicaSets are not visible.

    The condition of such a Deployment repeats the messages that its ReplicaSets received.
    """
    sets = (workload for workload in snapshot.workloads if workload.meta.kind == "ReplicaSet")
    divided = {above for workload in sets for above in snapshot.line(workload.meta)}
    for workload in snapshot.workloads:
        if workload.meta.kind in _MAKERS or (workload.meta.kind == "Deployment" and workload.subject not in divided):
            yield workload


def unknown_kinds(snapshot: Snapshot) -> Iterator[tuple[Event, Refusal]]:
    """Yield recent refusals of GPU pods, from events about objects of kinds that are not read here."""
    known = {kind.lower() for kind in (*KINDS, "Pod") if snapshot.sees(kind) and kind not in _ABOVE}
    reported = {each.workload.subject for each in incomplete_workloads(snapshot) if each.refusal is not None}
    created: dict[str, datetime] = {}
    for meta in (made.meta for some in (snapshot.pods, snapshot.workloads) for made in some):
        if meta.owner is not None and meta.created is not None:
            created[meta.owner.uid] = max(meta.created, created.get(meta.owner.uid, EARLIEST))
    for event in snapshot.events:
        is_of_known = event.about.partition("/")[0] in known
        if event.reason not in _FAILED or not event.warning or is_of_known or event.last is None:
            continue
        if event.about.replace("replicaset/", "deployment/").rpartition("-")[0] in reported:
            continue
        # A pod created after the event shows that the refusal is over.
        is_current = snapshot.now - event.last < _RECENT and created.get(event.uid, EARLIEST) < event.last
        is_about_gpus = meant_as_gpu(event.message) or "nvidia" in event.message
        if is_current and is_about_gpus and (refusal := parse(event.message)) is not None:
            yield event, refusal


def _lacks(snapshot: Snapshot, workload: Workload) -> bool:
    young = snapshot.is_new(workload.meta, _PATIENCE)
    ended = any(condition_in(workload.conditions, kind, "True") for kind in ("Complete", "Failed"))
    if workload.meta.deleted is not None or workload.suspended or ended:
        return False
    wanted = workload.wanted if workload.wanted is not None else int(workload.meta.kind != "DaemonSet")
    return wanted > (workload.made or 0) and (not young or any(_messages(snapshot, workload)))


def _for_gpus(meta: Meta, spec: PodSpec, claims: frozenset[tuple[str, str]]) -> bool:
    by_claim = any((meta.namespace, name) in claims for name in spec.claims.values())
    return by_claim or "nvidia" in spec.runtime_class or any(map(meant_as_gpu, asked_by(spec)))


def _messages(snapshot: Snapshot, workload: Workload) -> Iterator[str]:
    """Yield the condition first, which persists and may be old, then the events, the newest last."""
    for condition in workload.conditions:
        if condition.type == "ReplicaFailure" and condition.status == "True":
            yield condition.message
    for event in snapshot.events_about.get(workload.subject, ()):
        if event.reason in _FAILED and event.warning and event.uid in ("", workload.meta.uid):
            yield event.message
