"""RuntimeClasses, LimitRanges, webhooks and pod security that refuse a pod."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.causes.admission.refusals import (
    ACCOUNT,
    LIMIT_RANGE,
    LIMITED,
    PRIORITY_CLASS,
    SCOPE,
    SECURITY,
    UNREACHABLE,
    Refusal,
)
from diagnosis.causes.admission.wanting import IncompleteWorkload
from diagnosis.causes.runtime_handlers import CLASS_MISSING
from diagnosis.facts.commands import command, kubectl
from diagnosis.model import FoundCause
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.policy_objects import LimitRangeItem, Webhook

_MOST = 5
_ENFORCE = "pod-security.kubernetes.io/enforce"
_CERTIFICATE = "x509:"


def find_runtime_class(snapshot: Snapshot, incomplete: IncompleteWorkload, name: str) -> Iterator[FoundCause]:
    """Yield the RuntimeClass that the workload names and that does not exist.

    An old message about a class that exists by now yields nothing.
    """
    known = sorted(each.meta.name for each in snapshot.runtime_classes)
    if not name or name in known or (incomplete.refusal is None and not snapshot.sees("RuntimeClass")):
        return
    evidence = [f"{incomplete.workload.subject} names runtimeClassName {name}"]
    if snapshot.sees("RuntimeClass"):
        evidence.append(f"existing RuntimeClasses: {', '.join(known[:_MOST]) or 'none'}")
    elif incomplete.refusal is not None:
        evidence.append(incomplete.refusal.text)
    yield FoundCause(CLASS_MISSING, f"runtimeclass/{name}", tuple(evidence), (), (incomplete.top,))


def find_limit_range(snapshot: Snapshot, incomplete: IncompleteWorkload, refusal: Refusal) -> Iterator[FoundCause]:
    """Yield the LimitRanges that limit the resource."""
    resource = refusal.name
    ranges = [
        each
        for each in snapshot.limit_ranges_in.get(incomplete.namespace, {}).values()
        if any(resource in of.most or resource in of.least for of in each.limits)
    ]
    if snapshot.sees("LimitRange") and not ranges and "ratio" not in refusal.text:
        return
    for each in ranges:
        messages = [
            f"{each.meta.subject}: per {of.kind} {_bounds(of, resource)}" for of in each.limits if _bounds(of, resource)
        ]
        edit = kubectl("edit", each.meta)
        remedy = (f"Change {resource} in the pod template of {incomplete.top}, or the range: {edit}",)
        evidence = (f"{incomplete.workload.subject}: {refusal.text}", *messages)
        yield FoundCause(LIMIT_RANGE, each.meta.subject, evidence, remedy, (incomplete.top,))
    if not ranges:
        yield FoundCause(LIMIT_RANGE, incomplete.top, (f"{incomplete.workload.subject}: {refusal.text}",))


def find_unreachable(snapshot: Snapshot, incomplete: IncompleteWorkload, refusal: Refusal) -> Iterator[FoundCause]:
    """Yield the webhook's configuration with its Service."""
    hook = next((each for each in snapshot.webhooks if each.name == refusal.name), None)
    evidence = [f"{incomplete.workload.subject}: {refusal.text}"]
    if hook is None:
        if not snapshot.sees("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            yield FoundCause(UNREACHABLE, f"webhook/{refusal.name}", tuple(evidence), (), (incomplete.top,))
        return
    ready = _ready(snapshot, hook)
    if not hook.fails_closed or (ready and _CERTIFICATE not in refusal.text):
        return
    evidence.append(
        f"{hook.configuration.subject}: webhook {hook.name}, failurePolicy Fail, service {hook.service or 'an URL'}"
    )
    if ready is not None:
        evidence.append(f"service/{hook.service}: {ready} ready addresses")
    yield FoundCause(
        UNREACHABLE, hook.configuration.subject, tuple(evidence), _bring_back(hook, ready), (incomplete.top,)
    )


def fix(incomplete: IncompleteWorkload, refusal: Refusal) -> tuple[str, tuple[str, ...]]:
    """Return the object to change and the steps; no steps if the cause's own remedy describes them."""
    if refusal.cause is SECURITY:
        return _secure(incomplete, refusal)
    if refusal.cause in (SCOPE, LIMITED):
        return f"namespace/{incomplete.namespace}", ()
    if refusal.cause is PRIORITY_CLASS:
        return f"priorityclass/{refusal.name}", ()
    if refusal.cause is ACCOUNT:
        account = refusal.name.rpartition("/")[2]
        create = command("kubectl", "-n", incomplete.namespace, "create", "serviceaccount", account)
        return subject("ServiceAccount", incomplete.namespace, account), (f"Create it, or correct the name: {create}",)
    return incomplete.top, ()


def _secure(incomplete: IncompleteWorkload, refusal: Refusal) -> tuple[str, tuple[str, ...]]:
    """Return the fix: a privileged namespace for a component, a changed security context for other workloads."""
    if incomplete.is_component and refusal.name.partition(":")[0] in ("baseline", "restricted"):
        label = command("kubectl", "label", "--overwrite", "namespace", incomplete.namespace, f"{_ENFORCE}=privileged")
        return f"namespace/{incomplete.namespace}", (f"Allow privileged pods in the namespace: {label}",)
    step = "Change the fields that the message names in the pod template's securityContext and volumes."
    return incomplete.top, (step, f"Or move the workload to a namespace with a {_ENFORCE} that allows it.")


def _bounds(of: LimitRangeItem, resource: str) -> str:
    result = (("at least", of.least), ("at most", of.most))
    return ", ".join(f"{word} {amounts[resource]} {resource}" for word, amounts in result if resource in amounts)


def _ready(snapshot: Snapshot, hook: Webhook) -> int | None:
    """Return how many ready addresses the webhook's Service has.

    None if they are not visible, or if the webhook is a URL.
    """
    if not hook.service or not snapshot.sees("EndpointSlice"):
        return None
    return snapshot.ready_addresses.get(hook.service, 0)


def _bring_back(hook: Webhook, ready: int | None) -> tuple[str, ...]:
    namespace = hook.service.partition("/")[0]
    if ready:
        return (f"Renew the certificate behind {hook.service}, and the caBundle of {hook.configuration.subject}.",)
    steps = [f"Restore the pods behind it: {command('kubectl', '-n', namespace, 'get', 'pods')}"] if namespace else []
    return (*steps, f"Only if its component was removed from the cluster: {kubectl('delete', hook.configuration)}")
