"""Trace one pod through HAMi: webhook, scheduler, filter, binding, device plugin, container. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from gpu_healthcheck.diagnosis.answers.chain import Chain, broken_first, steps, touching
from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.diagnose import Problem, why_hidden
from gpu_healthcheck.diagnosis.causes.hami import control_plane, filtering, hami_nodes, scheduling, webhook
from gpu_healthcheck.diagnosis.causes.hami.hami_nodes import LOCK_STALE
from gpu_healthcheck.diagnosis.causes.hami.scheduling import EXTENDER, EXTENDER_SLOW
from gpu_healthcheck.diagnosis.causes.unscheduled.schedulers import NO_SCHEDULER
from gpu_healthcheck.diagnosis.facts.components import Role
from gpu_healthcheck.diagnosis.hami.cards import Share, measured_use
from gpu_healthcheck.diagnosis.hami.installation import CommandLine, Installation, installation_of, is_scheduled
from gpu_healthcheck.diagnosis.model import Cause, Link
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.hami_pod import GPU_POLICY, NODE_POLICY, BindPhase, PodGrant
from gpu_healthcheck.diagnosis.snapshot.pods import Pod

_MOST = 4
_WHOLE = 100
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"


class HamiLink(Enum):
    """Link of HAMi's chain, in the order in which it can break. The value is shown to people."""

    WEBHOOK = "HAMi's webhook assigns HAMi's scheduler"
    SCHEDULER = "HAMi's scheduler processes it"
    FILTER = "cards of a node fit"
    BIND = "it is bound, and its cards are noted on it"
    PLUGIN = "the node's device plugin allocates the cards"
    CONTAINER = "its containers run on them"


def hami_chains(snapshot: Snapshot, pods: Iterable[Pod], problems: Iterable[Problem]) -> tuple[Chain, ...]:
    """Return the chains of the pods that HAMi handles or should handle, broken ones first."""
    problems = tuple(problems)
    return broken_first(filter(None, (_chain(snapshot, pod, problems) for pod in pods)))


def _chain(snapshot: Snapshot, pod: Pod, problems: Iterable[Problem]) -> Chain | None:
    """Return the chain of a pod through HAMi; None if the pod is not related to HAMi."""
    own, installation = tuple(touching(problems, pod)), installation_of(snapshot, pod)
    is_related = is_scheduled(snapshot, pod) or any(problem.found.cause in _OWN for problem in own)
    if installation is None or not is_related:
        return None
    event = scheduling.newest_event(snapshot, (pod,))
    passed = dict(_passed(snapshot, installation, pod, event))
    broken = ((_link(problem.found.cause), problem) for problem in own)
    message = f"{event.reason}: {event.message}" if event is not None else "there is no message about it"
    hidden = why_hidden(snapshot, Link.RUNNING) if pod.phase != "Succeeded" else ""
    return Chain(f"{pod.subject}, through HAMi", tuple(steps(tuple(HamiLink), passed, broken, message, hidden)))


def _passed(
    snapshot: Snapshot, installation: Installation, pod: Pod, event: Event | None
) -> Iterator[tuple[HamiLink, str]]:
    """Yield the links that the pod's state shows as passed, up to the first link that it does not show."""
    grant = pod.grant
    if not is_scheduled(snapshot, pod):
        return
    yield HamiLink.WEBHOOK, f"schedulerName {pod.spec.scheduler}"
    if grant is None and event is None and pod.condition("PodScheduled") is None:
        return
    last = f"; its last event: {event.reason}" if event is not None else ""
    yield HamiLink.SCHEDULER, f"{_scheduler_state(installation)}{last}"
    if grant is None or not grant.node:
        return
    yield HamiLink.FILTER, _granted_cards(pod, grant, installation.command_line)
    if not pod.spec.node or grant.phase is None:
        return
    yield HamiLink.BIND, f"on node {pod.spec.node}, bind-phase {grant.phase.value}"
    if grant.phase is not BindPhase.SUCCESS:
        return
    yield HamiLink.PLUGIN, f"hami.io/bind-phase={grant.phase.value}"
    if pod.phase == "Succeeded":
        yield HamiLink.CONTAINER, "it has succeeded"
    elif any(state.running for state in pod.states if not state.init):
        in_use = (
            f"{use} of {uuid} in use" for (name, uuid), use in measured_use(snapshot).items() if name == pod.subject
        )
        yield HamiLink.CONTAINER, "; ".join(("they run", *in_use, *_core_limit(installation, pod, grant)))


def _scheduler_state(installation: Installation) -> str:
    scheduler = installation.scheduler
    if scheduler is None:
        return f"{installation.service} exists, its pods are not visible"
    return f"{scheduler.subject} {scheduler.version} is {scheduler.health.value}"


def _core_limit(installation: Installation, pod: Pod, grant: PodGrant) -> Iterator[str]:
    """Yield a core limit that also applies on an idle card.

    It is intended, but may be unexpected in a performance test.
    """
    percentages = sorted({share.cores for share in grant.shares if 0 < share.cores < _WHOLE})
    policies = (container.env.get(CORE_POLICY) for container in pod.spec.containers)
    policy = next(filter(None, policies), installation.settings.core_policy)
    if percentages and policy == "force":
        yield f"cores are limited to {', '.join(map(str, percentages))} % even on an idle card: core policy force"


def _granted_cards(pod: Pod, grant: PodGrant, line: CommandLine) -> str:
    """Describe the granted cards, and the policy that chose them.

    The policy is included if the pod or the scheduler's command line names one.
    """
    shares = "; ".join(f"{Share(1, share.memory, share.cores)} of {share.uuid}" for share in grant.shares[:_MOST])
    written = pod.card_options.annotations
    policies = [f"{key} {written[key]}" for key in (NODE_POLICY, GPU_POLICY) if key in written]
    if line != CommandLine():
        own = ((NODE_POLICY, "nodes", line.node_policy), (GPU_POLICY, "cards", line.gpu_policy))
        policies += [f"the scheduler's own {what} {policy}" for key, what, policy in own if key not in written]
    chosen = f"; chosen by {', '.join(policies)}" if policies else ""
    return f"node {grant.node}: {shares or 'no card is noted'}{chosen}"


def _link(cause: Cause) -> HamiLink | None:
    """Return the link that the cause breaks; None for the link that the pod has reached."""
    return _BY_CAUSE.get(cause) or (_BY_LINK[cause.link] if cause.link is not None else None)


_BY_LINK: Mapping[Link, HamiLink] = {
    Link.ADMITTED: HamiLink.WEBHOOK,
    Link.QUEUED: HamiLink.SCHEDULER,
    Link.SCHEDULED: HamiLink.FILTER,
    Link.ACCEPTED: HamiLink.PLUGIN,
    Link.RUNTIME: HamiLink.CONTAINER,
    Link.PREPARED: HamiLink.CONTAINER,
    Link.STARTED: HamiLink.CONTAINER,
    Link.RUNNING: HamiLink.CONTAINER,
}
_BY_CAUSE: Mapping[Cause, HamiLink] = {
    **dict.fromkeys((cause for search in control_plane.SEARCHES for cause in search.causes), HamiLink.WEBHOOK),
    **dict.fromkeys(webhook.CAUSES, HamiLink.WEBHOOK),
    **dict.fromkeys((EXTENDER, EXTENDER_SLOW, NO_SCHEDULER, NOT_READY[Role.HAMI_SCHEDULER]), HamiLink.SCHEDULER),
    **dict.fromkeys((cause for search in hami_nodes.SEARCHES for cause in search.causes), HamiLink.FILTER),
    **dict.fromkeys((LOCK_STALE, *scheduling.AT_BINDING), HamiLink.BIND),
}
_OWN = frozenset((*_BY_CAUSE, *filtering.CAUSES)) - {NO_SCHEDULER}
"""Causes that concern only pods that HAMi handles, or should handle."""
