"""Find pods that HAMi has bound but that get no cards, and containers without HAMi's limits."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.diagnosis.causes.pod_startup_table import NODES
from gpu_healthcheck.diagnosis.facts.commands import pods_on
from gpu_healthcheck.diagnosis.facts.moving_pods import steps_to_move
from gpu_healthcheck.diagnosis.hami.installation import LOCK_EXPIRES, installation_of, is_there
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, Certainty, Family, FoundCause, Link, Search, failing
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.hami_pod import BindPhase, PodGrant
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.naming import named

_fault = Family(None)
_accepted = Family(Link.ACCEPTED)
_running = Family(Link.RUNNING)
_OF_NODE = tuple(cause.name for cause in NODES)
ALLOCATION_HANGS = _accepted(
    "HamiAllocationHangs",
    "HAMi has bound the pod and marked it as allocating, but no device plugin has finished the allocation.",
    "Check HAMi's device plugin on the node and the kubelet there; then delete the pod.",
    source="the annotations hami.io/bind-phase=allocating and hami.io/bind-time",
    follows=("HamiDevicePluginNotReady", "HamiRegistrationStale", *_OF_NODE),
)
ALLOCATION_FAILED = _accepted(
    "HamiAllocationFailed",
    "HAMi's device plugin refused to allocate the cards that the scheduler chose.",
    "Read the plugin's log on the node; then delete the pod.",
    source="the annotation hami.io/bind-phase=failed",
)
NO_CONTROL = _fault(
    "HamiLimitsSwitchedOff",
    "A container disables HAMi's limits by CUDA_DISABLE_CONTROL: it may use the whole card that others share.",
    "Remove the variable unless it is intended.",
    severity=CauseSeverity.LOW,
    source="HAMi-core is not loaded where CUDA_DISABLE_CONTROL=true",
)
LIBRARY = _running(
    "HamiLibraryMissing",
    "HAMi's library is missing at the path from which the container loads it: limits have no effect, or every "
    "program ends.",
    "Restart HAMi's device plugin on the node: at its start it copies the library to the host. Then create "
    "the pod again.",
    failing(
        r"libvgpu\.so[^\n]{0,120}(?:cannot be preloaded|cannot open shared object)"
        r"|while loading shared libraries: libvgpu\.so",
        "ld.so, of HAMi's library",
    ),
    source="`libvgpu.so … cannot be preloaded`, written by ld.so",
)


CONTROL = "CUDA_DISABLE_CONTROL"
_MOST = 4
_NOT_BEGUN = ("", "ContainerCreating", "PodInitializing")
"""Waiting reasons that fit missing cards; other families report all other reasons."""
LIBRARY_REASONS = ("HamiLibraryNotInstalled", "HamiPreloadWrong")
"""Reasons of the agent's check `hami` that explain a missing library."""
_SOCKET_REASON = "HamiPluginNotServing"
_COMPONENT, _PLUGIN = "app.kubernetes.io/component", "hami-device-plugin"


def find_stuck(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that are Pending on their node although HAMi's scheduler has bound them."""
    for pod in snapshot.pods:
        grant = pod.grant if pod.spec.node and pod.phase == "Pending" and pod.meta.deleted is None else None
        if grant is None or any(state.running or state.ended for state in pod.states):
            continue
        if grant.phase is BindPhase.FAILED:
            evidence = f"{pod.subject}: hami.io/bind-phase=failed, {_cards(grant)}"
            yield _not_allocated(snapshot, ALLOCATION_FAILED, pod, evidence, *filter(None, (pod.message,)))
        elif grant.phase is BindPhase.ALLOCATING and all(state.waiting in _NOT_BEGUN for state in pod.states):
            # When the node's lock has expired, another pod may be bound there.
            installation = installation_of(snapshot, pod)
            expires = installation.command_line.lock_expires if installation is not None else LOCK_EXPIRES
            since = grant.bound_at or grant.at or pod.meta.created
            if since is None or snapshot.now - since > expires:
                yield _hanging(snapshot, pod, grant)


def find_uncontrolled(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield containers without HAMi's limits on a card that other pods share."""
    pods = [pod for pod in snapshot.pods if not pod.over and pod.grant is not None]
    users = grouped((uuid, pod) for pod in pods for uuid in _card_uuids(pod))
    for pod in pods:
        shared = next((uuid for uuid in _card_uuids(pod) if len(users[uuid]) > 1), None)
        for container in pod.spec.containers if shared is not None else ():
            if container.env.get(CONTROL, "").lower() in ("true", "1"):
                others = named((user.subject for user in users[shared or ""] if user is not pod), _MOST)
                evidence = (
                    f"{pod.subject}: container {container.name} has {CONTROL}=true on card {shared}",
                    f"other pods on the card: {others}",
                )
                yield FoundCause(NO_CONTROL, snapshot.line(pod.meta)[-1], evidence, (), (pod.subject,))


def _card_uuids(pod: Pod) -> tuple[str, ...]:
    return tuple(dict.fromkeys(share.card for share in pod.shares))


def _hanging(snapshot: Snapshot, pod: Pod, grant: PodGrant) -> FoundCause:
    since = f" since {timestamp(grant.bound_at)}" if grant.bound_at is not None else ""
    plugins = (each for each in snapshot.pods_on.get(pod.spec.node, ()) if each.meta.labels.get(_COMPONENT) == _PLUGIN)
    return _not_allocated(
        snapshot,
        ALLOCATION_HANGS,
        pod,
        f"{pod.subject}: hami.io/bind-phase=allocating{since}, {_cards(grant)}; no container has started",
        *(f"{plugin.subject} is {plugin.phase} there" for plugin in plugins),
        *agent_findings(snapshot.by_node.get(pod.spec.node), _SOCKET_REASON),
        certainty=Certainty.LIKELY,
    )


def _not_allocated(
    snapshot: Snapshot, cause: Cause, pod: Pod, *evidence: str, certainty: Certainty = Certainty.PROVEN
) -> FoundCause:
    check = f"Check HAMi's device plugin on the node, and its log: {pods_on(pod.spec.node)}"
    remedy = (check, *steps_to_move(snapshot, [pod], "a node that HAMi's scheduler chooses", works=False))
    return FoundCause(cause, f"node/{pod.spec.node}", evidence, remedy, (pod.subject,), certainty)


def agent_findings(node: Node | None, *reasons: str) -> list[str]:
    """Return our agent's finding about HAMi on the node, if it has one of these reasons."""
    finding = node.finding(*reasons) if node is not None else None
    return [f"agent on the node: {finding.reason}: {finding.detail}"] if finding is not None else []


def _cards(grant: PodGrant) -> str:
    cards = ", ".join(f"{share.memory} MiB of {share.uuid}" for share in grant.shares[:_MOST])
    return f"allocated {cards}" if cards else "no card is noted on it"


SEARCHES = (
    Search((ALLOCATION_HANGS, ALLOCATION_FAILED), ("Pod",), find_stuck, is_there),
    Search((NO_CONTROL,), ("Pod",), find_uncontrolled, is_there),
)
