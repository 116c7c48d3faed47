"""Find GPU pods, and pods of components that GPUs need, whose creation is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import islice

from msgspec import Struct

from gpu_healthcheck.diagnosis.causes.hami.denials import denied
from gpu_healthcheck.diagnosis.causes.refusals import (
    ACCOUNT,
    CAUSES,
    EXCEEDED,
    LIMIT_RANGE,
    LIMITED,
    NEVER_APPLIES,
    PRIORITY_CLASS,
    REFUSED,
    SCOPE,
    SECURITY,
    UNREACHABLE,
    IncompleteWorkload,
    Refusal,
    incomplete_workloads,
    unknown_kinds,
)
from gpu_healthcheck.diagnosis.causes.runtime_handlers import CLASS_MISSING, missing_class
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl
from gpu_healthcheck.diagnosis.facts.gpu_requests import SHARES, is_gpu
from gpu_healthcheck.diagnosis.facts.placement import ZERO, asked_by
from gpu_healthcheck.diagnosis.facts.quantity import amount, shown
from gpu_healthcheck.diagnosis.hami.installation import WEBHOOK
from gpu_healthcheck.diagnosis.model import Cause, Certainty, FoundCause, Origin, Search
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import LimitRangeItem, Quota, Webhook
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.healthcheck.node.label_selector import Expression
from gpu_healthcheck.healthcheck.text.naming import named

_REQUESTS, _LIMITS = "requests.", "limits."
_PLAIN = frozenset(("cpu", "memory", "ephemeral-storage"))
_MOST, _MOST_QUOTAS = 5, 50
_ENFORCE = "pod-security.kubernetes.io/enforce"


def find_exceeded(snapshot: Snapshot, incomplete: IncompleteWorkload, refusal: Refusal) -> Iterator[FoundCause]:
    """Yield the quota that the API server names, unless it has room now."""
    quota = snapshot.quotas_in.get(incomplete.namespace, {}).get(refusal.name)
    what = subject("ResourceQuota", incomplete.namespace, refusal.name)
    if quota is None:
        if not snapshot.sees("ResourceQuota"):
            evidence = (f"{incomplete.workload.subject}: {refusal.text}",)
            remedy = _raise(incomplete.namespace, refusal.name)
            yield FoundCause(EXCEEDED, what, evidence, remedy, (incomplete.top,), Certainty.LIKELY)
        return
    asked = {name: value for name, text in refusal.amounts.items() if (value := amount(text)) is not None}
    over = [name for name, value in asked.items() if _left(quota, name) < value]
    if over:
        yield _exceeded(snapshot, incomplete, quota, {name: asked[name] for name in over})


def find_used_up(snapshot: Snapshot, incomplete: IncompleteWorkload) -> Iterator[FoundCause]:
    """Yield used-up quotas, of the namespace's first ones, for a workload whose refusal has no event any more.

    Only the numbers of GPUs are compared, and only quotas of all pods or of the workload's priority class.
    """
    asked = {f"{_REQUESTS}{name}": value for name, value in asked_by(incomplete.spec).items() if is_gpu(name)}
    made = incomplete.workload
    if made.meta.kind == "StatefulSet" and (made.ready or 0) < (made.made or 0):
        return  # a StatefulSet waits for each pod to become ready
    for quota in islice(snapshot.quotas_in.get(incomplete.namespace, {}).values(), _MOST_QUOTAS):
        over = {name: value for name, value in asked.items() if name in quota.hard and _left(quota, name) < value}
        if over and quota.used and all(_covers(scope, incomplete.spec.priority_class) for scope in quota.scopes):
            yield _exceeded(snapshot, incomplete, quota, over)


def _covers(scope: Expression, priority_class: str) -> bool:
    """Whether the quota's scope certainly covers pods of this priority class."""
    return scope.key == "PriorityClass" and bool(priority_class) and scope.takes(priority_class)


def find_never_applies(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield quotas with `limits.nvidia.com/gpu` if no other quota limits that resource."""
    enforced = {(quota.meta.namespace, key) for quota in snapshot.quotas for key in quota.hard}
    for quota in snapshot.quotas:
        for key, hard in quota.hard.items():
            name = key.removeprefix(_LIMITS)
            if key == name or not is_gpu(name) or name in SHARES:
                continue
            if (quota.meta.namespace, f"{_REQUESTS}{name}") in enforced:
                continue
            evidence = f"{quota.meta.subject}: {key}={hard}, and no {_REQUESTS}{name} in the namespace"
            remedy = (f"Write `{_REQUESTS}{name}` instead of `{key}`: {kubectl('edit', quota.meta)}",)
            yield FoundCause(NEVER_APPLIES, quota.meta.subject, (evidence, *_in_use(snapshot, quota, name)), remedy)


def _in_use(snapshot: Snapshot, quota: Quota, name: str) -> Iterator[str]:
    held = sum((user.amount for user in _users(snapshot).get((quota.meta.namespace, name), ())), ZERO)
    if held:
        yield f"pods of the namespace request {shown(name, held)} {name}"


def _exceeded(snapshot: Snapshot, incomplete: IncompleteWorkload, quota: Quota, over: dict[str, Decimal]) -> FoundCause:
    evidence = []
    for name, asked in over.items():
        hard, used = quota.hard.get(name, "0"), quota.used.get(name, "0")
        more = shown(name, asked)
        evidence.append(
            f"{quota.meta.subject}: {name} {used} of {hard} used; {incomplete.workload.subject} requests {more} more"
        )
        resource = name.removeprefix(_REQUESTS).removeprefix(_LIMITS)
        users = _users(snapshot).get((incomplete.namespace, resource), ())
        if users:
            evidence.append(f"{resource} in the namespace is used by {named(users, _MOST)}")
    made, wanted = incomplete.workload.made, incomplete.workload.wanted
    evidence.append(f"{incomplete.workload.subject}: {made} of {wanted} pods created")
    remedy = _raise(incomplete.namespace, quota.meta.name)
    return FoundCause(EXCEEDED, quota.meta.subject, tuple(evidence), remedy, (incomplete.top,))


class _User(Struct, frozen=True):
    """Pod that holds an amount of a resource."""

    pod: str
    resource: str
    amount: Decimal

    def __str__(self) -> str:
        return f"{self.pod} ({shown(self.resource, self.amount)})"


@lru_cache(maxsize=1)
def _users(snapshot: Snapshot) -> Mapping[tuple[str, str], Sequence[_User]]:
    """Return the pods by namespace and resource that they hold, the largest amount first."""
    living = (pod for pod in snapshot.pods if not pod.over)
    held = (
        ((pod.meta.namespace, name), _User(pod.subject, name, value))
        for pod in living
        for name, value in asked_by(pod.spec).items()
    )
    users = grouped(held)
    return {key: sorted(some, key=lambda user: (-user.amount, user.pod)) for key, some in users.items()}


def _raise(namespace: str, name: str) -> tuple[str, ...]:
    look = command("kubectl", "-n", namespace, "describe", "resourcequota", name)
    edit = command("kubectl", "-n", namespace, "edit", "resourcequota", name)
    return f"Check the use: {look}", f"Delete unneeded pods, or raise the quota: {edit}"


def _left(quota: Quota, name: str) -> Decimal:
    """Return how much the quota has left; unlimited for a resource that it does not limit."""
    hard = amount(quota.hard.get(name, ""))
    if hard is None and name.partition(".")[0] not in ("requests", "limits") and name in _PLAIN:
        # `cpu` and `requests.cpu` are the same.
        return _left(quota, f"{_REQUESTS}{name}")
    return Decimal("Infinity") if hard is None else hard - (amount(quota.used.get(name, "0")) or ZERO)


def find_runtime_class(
    snapshot: Snapshot, incomplete: IncompleteWorkload, refusal: Refusal | None
) -> Iterator[FoundCause]:
    """Yield the RuntimeClass that the workload names and that does not exist.

    An old message about a class that exists by now yields nothing.
    """
    name = refusal.name if refusal is not None else incomplete.spec.runtime_class
    exists = any(each.meta.name == name for each in snapshot.runtime_classes)
    if name and not exists and (refusal is not None or snapshot.sees("RuntimeClass")):
        made = incomplete.workload
        numbers = f" names runtimeClassName {name}, and has {made.made or 0} of {made.wanted or 1} pods"
        message = f": {refusal.text}" if refusal is not None else numbers
        yield missing_class(snapshot, name, f"{made.subject}{message}", incomplete.top)


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
        bounds = [
            f"{each.meta.subject}: per {of.kind} {_bounds(of, resource)}" for of in each.limits if _bounds(of, resource)
        ]
        edit = kubectl("edit", each.meta)
        remedy = (f"Change {resource} in the pod template of {incomplete.top}, or the range: {edit}",)
        evidence = (f"{incomplete.workload.subject}: {refusal.text}", *bounds)
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
    is_visible = hook.service and snapshot.sees("EndpointSlice")
    ready = snapshot.ready_addresses.get(hook.service, 0) if is_visible else None
    if not hook.fails_closed or (ready and "x509:" not in refusal.text):
        return
    evidence.append(
        f"{hook.configuration.subject}: webhook {hook.name}, failurePolicy Fail, service {hook.service or 'an URL'}"
    )
    if ready is not None:
        evidence.append(f"service/{hook.service}: {ready} ready addresses")
    yield FoundCause(
        UNREACHABLE, hook.configuration.subject, tuple(evidence), _bring_back(hook, ready), (incomplete.top,)
    )


def _fix(incomplete: IncompleteWorkload, refusal: Refusal) -> tuple[str, tuple[str, ...]]:
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
    limits = (("at least", of.least), ("at most", of.most))
    return ", ".join(f"{word} {amounts[resource]} {resource}" for word, amounts in limits if resource in amounts)


def _bring_back(hook: Webhook, ready: int | None) -> tuple[str, ...]:
    namespace = hook.service.partition("/")[0]
    if ready:
        return (f"Renew the certificate behind {hook.service}, and the caBundle of {hook.configuration.subject}.",)
    steps = [f"Restore the pods behind it: {command('kubectl', '-n', namespace, 'get', 'pods')}"] if namespace else []
    return (*steps, f"Only if its component was removed from the cluster: {kubectl('delete', hook.configuration)}")


def find_refused(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the workloads that lack pods, each with the cause of the refusal."""
    for incomplete in incomplete_workloads(snapshot):
        yield from _judged(snapshot, incomplete)


def find_unknown_kinds(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield refused objects of other kinds, such as those of training operators, known only from an event."""
    for event, refusal in unknown_kinds(snapshot):
        yield FoundCause(refusal.cause or REFUSED, event.about, (refusal.text,), (), (), Certainty.LIKELY)


@lru_cache(maxsize=1)
def refused_workloads(snapshot: Snapshot) -> Mapping[str, tuple[Origin, ...]]:
    """Return, by workload, the causes that keep it from its pods.

    Only workloads whose missing pods are reported are included.
    """
    return {
        incomplete.workload.subject: tuple((found.cause.name, found.subject) for found in _judged(snapshot, incomplete))
        for incomplete in incomplete_workloads(snapshot)
    }


_SEARCHES_BY_CAUSE: Mapping[Cause, Callable[[Snapshot, IncompleteWorkload, Refusal], Iterator[FoundCause]]] = {
    EXCEEDED: find_exceeded,
    CLASS_MISSING: find_runtime_class,
    LIMIT_RANGE: find_limit_range,
    UNREACHABLE: find_unreachable,
}
"""Causes for which the objects that the message names are read; the others are reported with the message."""


def _judged(snapshot: Snapshot, incomplete: IncompleteWorkload) -> Iterator[FoundCause]:
    refusal = incomplete.refusal
    if refusal is None:
        yield from find_runtime_class(snapshot, incomplete, None)
        yield from find_used_up(snapshot, incomplete)
    elif refusal.cause is None or (refusal.cause is REFUSED and incomplete.is_component):
        return  # the search for a component reports the texts that are not recognised
    elif refusal.cause in _SEARCHES_BY_CAUSE:
        yield from _SEARCHES_BY_CAUSE[refusal.cause](snapshot, incomplete, refusal)
    else:
        denial = denied(snapshot, incomplete, refusal) if refusal.name == WEBHOOK else None
        yield denial or _by_text(incomplete, refusal, refusal.cause)


def _by_text(incomplete: IncompleteWorkload, refusal: Refusal, cause: Cause) -> FoundCause:
    changed, remedy = _fix(incomplete, refusal)
    if not remedy:
        remedy = (f"{cause.remedy} See {kubectl('describe', incomplete.workload.meta)}",)
    return FoundCause(cause, changed, (f"{incomplete.workload.subject}: {refusal.text}",), remedy, (incomplete.top,))


SEARCHES = (
    Search(CAUSES, (), find_refused),
    Search((REFUSED,), ("Event",), find_unknown_kinds),
    Search((NEVER_APPLIES,), ("ResourceQuota",), find_never_applies),
)
