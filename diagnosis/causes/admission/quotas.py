"""Find quotas that are used up, by their own numbers, and quotas that never apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import islice

from msgspec import Struct

from diagnosis.causes.admission.refusals import EXCEEDED, NEVER_APPLIES, Refusal
from diagnosis.causes.admission.wanting import IncompleteWorkload
from diagnosis.facts.commands import command, kubectl
from diagnosis.facts.gpu_requests import SHARES, is_gpu
from diagnosis.facts.placement import ZERO, asked_by
from diagnosis.facts.quantity import amount, shown
from diagnosis.model import Certainty, FoundCause
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.pods import Expression, PodSpec
from diagnosis.snapshot.policy_objects import Quota
from healthcheck.text.naming import named

_REQUESTS, _LIMITS = "requests.", "limits."
_PLAIN = frozenset(("cpu", "memory", "ephemeral-storage"))
_MOST, _MOST_QUOTAS = 5, 50


def find_exceeded(snapshot: Snapshot, incomplete: IncompleteWorkload, refusal: Refusal) -> Iterator[FoundCause]:
    """Yield the quota that the API server names, unless it has room now."""
    quota = snapshot.quotas_in.get(incomplete.namespace, {}).get(refusal.name)
    what = subject("ResourceQuota", incomplete.namespace, refusal.name)
    if quota is None:
        if not snapshot.sees("ResourceQuota"):
            evidence = (f"{incomplete.workload.subject}: {refusal.text}",)
            yield FoundCause(
                EXCEEDED,
                what,
                evidence,
                _raise(incomplete.namespace, refusal.name),
                (incomplete.top,),
                Certainty.LIKELY,
            )
        return
    asked = {name: value for name, text in refusal.amounts.items() if (value := amount(text)) is not None}
    over = [name for name, value in asked.items() if _left(quota, name) < value]
    if over:
        yield _exceeded(snapshot, incomplete, quota, {name: asked[name] for name in over})


def find_used_up(snapshot: Snapshot, incomplete: IncompleteWorkload) -> Iterator[FoundCause]:
    """Yield used-up quotas, of the namespace's first ones, for a workload whose refusal has no event any more.

    Only the numbers of GPUs are compared, because a quota may apply to some pods only.
    """
    asked = {f"{_REQUESTS}{name}": value for name, value in asked_by(incomplete.spec).items() if is_gpu(name)}
    if _makes_one_by_one(incomplete):
        return
    for quota in islice(snapshot.quotas_in.get(incomplete.namespace, {}).values(), _MOST_QUOTAS):
        if not all(_takes(scope, incomplete.spec) for scope in quota.scopes):
            continue
        over = {name: value for name, value in asked.items() if name in quota.hard and _left(quota, name) < value}
        if over and quota.used:
            yield _exceeded(snapshot, incomplete, quota, over)


def _makes_one_by_one(incomplete: IncompleteWorkload) -> bool:
    """Whether the workload creates pods one by one: a StatefulSet waits for each pod to become ready."""
    made = incomplete.workload
    return made.meta.kind == "StatefulSet" and (made.ready or 0) < (made.made or 0)


def _takes(scope: Expression, spec: PodSpec) -> bool:
    """Whether the scope certainly covers such pods, judged by their template."""
    match scope.key:
        case "PriorityClass":
            return bool(spec.priority_class) and scope.takes(spec.priority_class)
        case "Terminating":
            return spec.deadline
        case "NotTerminating":
            return not spec.deadline
        case "NotBestEffort":
            return any(name in ("cpu", "memory") for name in asked_by(spec))
    return False


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
    look, edit = (command("kubectl", "-n", namespace, verb, "resourcequota", name) for verb in ("describe", "edit"))
    return f"Check the use: {look}", f"Delete unneeded pods, or raise the quota: {edit}"


def _left(quota: Quota, name: str) -> Decimal:
    """Return how much the quota has left; unlimited for a resource that it does not limit."""
    hard = amount(quota.hard.get(name, ""))
    if hard is None and name.partition(".")[0] not in ("requests", "limits") and name in _PLAIN:
        # `cpu` and `requests.cpu` are the same.
        return _left(quota, f"{_REQUESTS}{name}")
    return Decimal("Infinity") if hard is None else hard - (amount(quota.used.get(name, "0")) or ZERO)
