"""Find pods that HAMi has bound but that get no cards, and containers without HAMi's limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from diagnosis.causes.pod_startup_table import NODES
from diagnosis.facts.commands import kubectl, pods_on
from diagnosis.hami.installation import LOCK_EXPIRES, installation_of, is_there
from diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link, Search, failing
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.hami_pod import BindPhase, PodGrant
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import Container, Pod
from healthcheck.text.moments import timestamp
from healthcheck.text.naming import named

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


def find_stuck(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that are Pending on their node although HAMi's scheduler has bound them."""
    for pod in snapshot.pods:
        given = pod.grant if pod.spec.node and pod.phase == "Pending" else None
        if given is None or pod.meta.deleted is not None or any(state.running or state.ended for state in pod.states):
            continue
        since = given.bound_at or given.at or pod.meta.created
        # When the node's lock has expired, another pod may be bound there.
        own = installation_of(snapshot, pod)
        expires = own.command_line.lock_expires if own is not None else LOCK_EXPIRES
        late = since is None or snapshot.now - since > expires
        if given.phase is BindPhase.FAILED:
            yield _failed(pod, given)
        elif given.phase is BindPhase.ALLOCATING and late and all(state.waiting in _NOT_BEGUN for state in pod.states):
            yield _hanging(snapshot, pod, given)


def find_uncontrolled(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield containers without HAMi's limits on a card that other pods share."""
    users: defaultdict[str, list[Pod]] = defaultdict(list)
    shared = [(pod, given) for pod in snapshot.pods if not pod.over and (given := pod.grant) is not None]
    for pod, given in shared:
        for uuid in {share.card for share in given.shares}:
            users[uuid].append(pod)
    for pod, given in shared:
        for container in pod.spec.containers:
            texts = [uuid for uuid in {share.card for share in given.shares} if len(users[uuid]) > 1]
            if texts and container.env.get(CONTROL, "").lower() in ("true", "1"):
                yield _uncontrolled(snapshot, pod, container, texts[0], users[texts[0]])


def _uncontrolled(snapshot: Snapshot, pod: Pod, container: Container, uuid: str, users: list[Pod]) -> FoundCause:
    others = [user.subject for user in users if user is not pod]
    message = f"{pod.subject}: container {container.name} has {CONTROL}=true on card {uuid}"
    evidence = (message, f"other pods on the card: {named(others, _MOST)}")
    return FoundCause(NO_CONTROL, snapshot.line(pod.meta)[-1], evidence, (), (pod.subject,))


def _failed(pod: Pod, given: PodGrant) -> FoundCause:
    evidence = (f"{pod.subject}: hami.io/bind-phase=failed, {_cards(given)}", *([pod.message] if pod.message else []))
    return FoundCause(ALLOCATION_FAILED, f"node/{pod.spec.node}", evidence, _look(pod), (pod.subject,))


def _hanging(snapshot: Snapshot, pod: Pod, given: PodGrant) -> FoundCause:
    node = f"node/{pod.spec.node}"
    since = f" since {timestamp(given.bound_at)}" if given.bound_at is not None else ""
    evidence = [f"{pod.subject}: hami.io/bind-phase=allocating{since}, {_cards(given)}; no container has started"]
    plugins = (one for one in snapshot.pods_on.get(pod.spec.node, ()) if _is_plugin(one))
    evidence += [f"{plugin.subject} is {plugin.phase} there" for plugin in plugins]
    evidence += seen_on_host(snapshot.by_node.get(pod.spec.node), _SOCKET_REASON)
    return FoundCause(ALLOCATION_HANGS, node, tuple(evidence), _look(pod), (pod.subject,), Certainty.LIKELY)


def seen_on_host(node: Node | None, *reasons: str) -> list[str]:
    """Return our agent's finding about HAMi on the node, if it has one of these reasons."""
    found = node.finding(*reasons) if node is not None else None
    return [f"agent on the node: {found.reason}: {found.detail}"] if found is not None else []


def _is_plugin(pod: Pod) -> bool:
    return pod.meta.labels.get("app.kubernetes.io/component") == "hami-device-plugin"


def _cards(given: PodGrant) -> str:
    cards = ", ".join(f"{share.memory} MiB of {share.uuid}" for share in given.shares[:_MOST])
    return f"allocated {cards}" if cards else "no card is noted on it"


def _look(pod: Pod) -> tuple[str, ...]:
    return (
        f"Check HAMi's device plugin on the node, and its log: {pods_on(pod.spec.node)}",
        f"Then delete the pod, so that it is scheduled again: {kubectl('delete', pod.meta)}",
    )


SEARCHES = (
    Search((ALLOCATION_HANGS, ALLOCATION_FAILED), ("Pod",), find_stuck, is_there),
    Search((NO_CONTROL,), ("Pod",), find_uncontrolled, is_there),
)
