"""Find nodes whose cards HAMi can't assign.

The checks cover HAMi's plugin, the node's registration, the handshake of old versions, and the lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.device_plugins import UNHEALTHY, missing_labels
from gpu_healthcheck.diagnosis.causes.hami.denials import codes
from gpu_healthcheck.diagnosis.causes.pod_startup_table import NODES
from gpu_healthcheck.diagnosis.causes.verdicts import KEPT_FROM_WORK
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, logs, pods_on
from gpu_healthcheck.diagnosis.facts.components import YOUNG, Component, Role, components, is_for, is_ready, refused
from gpu_healthcheck.diagnosis.facts.gpu_nodes import (
    GPU,
    has_nvidia,
    is_changed,
    is_for_machines,
    is_judged,
    offers_gpus,
    sliced_nodes,
)
from gpu_healthcheck.diagnosis.facts.log_lines import telling_lines
from gpu_healthcheck.diagnosis.facts.pod_stage import stage
from gpu_healthcheck.diagnosis.facts.quantity import counted
from gpu_healthcheck.diagnosis.hami.installation import (
    LOCK_EXPIRES,
    Installation,
    installations,
    is_there,
    other_owner,
    plugin_pods,
    serving,
)
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link, Origin, Search, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.hami_node import HANDSHAKE, LOCK, NodeLock, RegistrationFormat
from gpu_healthcheck.diagnosis.snapshot.hami_pod import BindPhase
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.node.hami import CARDS
from gpu_healthcheck.healthcheck.text.moments import is_future
from gpu_healthcheck.healthcheck.text.naming import named

_fault = Family(None)
_scheduled = Family(Link.SCHEDULED)
_DEVICES = "HAMi, pkg/device/devices.go"
_OF_NODE = tuple(cause.name for cause in NODES)
PLUGIN_NOT_MEANT = _fault(
    "HamiPluginNotOnNode",
    "A GPU node has no HAMi device plugin, because it lacks the label that the plugin's DaemonSet selects.",
    "Label the node if HAMi should share its cards.",
    source="HAMi's chart, devicePlugin.nvidiaNodeSelector: gpu=on",
)
NOT_REGISTERED = _fault(
    "HamiNodeNotRegistered",
    "HAMi's device plugin runs on a node and has not registered its cards there: HAMi reports `node unregistered`.",
    "Read the plugin's log: it finds no card, or lacks the permission to write to the node.",
    source=f"{_DEVICES}; the annotation hami.io/node-nvidia-register",
)
REGISTER_STALE = _fault(
    "HamiRegistrationStale",
    "HAMi's state lists a node's cards although its device plugin no longer advertises them: the kubelet offers none.",
    "Restore HAMi's device plugin on the node.",
    source=f"{_DEVICES}; hami.io/node-nvidia-register and the node's allocatable nvidia.com/gpu",
    follows=("HamiDevicePluginNotReady", "HamiPluginNotOnNode", "UnhealthyGpus", "NodeKeptFromWork", *_OF_NODE),
)
REGISTER_UNREADABLE = _fault(
    "HamiVersionSkew",
    "Nodes are registered in a format that the scheduler's version does not read: it knows none of their cards.",
    "Use one version for scheduler and device plugins. HAMi reads JSON since 2.8, its own text format up to 2.7.",
    source="HAMi 140b2cb5: the register's format changed with 2.8.0",
)
LOCK_STALE = _fault(
    "HamiNodeLockStale",
    "A node is locked for a pod that HAMi will not finish binding, so no other pod is bound there.",
    "Find out why the device plugin did not finish that pod, then remove the lock from the node.",
    severity=CauseSeverity.MEDIUM,
    source="HAMi, pkg/util/nodelock: the annotation hami.io/mutex.lock; five minutes unless scheduler.nodeLockExpire "
    "is set",
    follows=("HamiDevicePluginNotReady", "HamiRegistrationStale"),
)
CLOCK_APART = _fault(
    "HamiHandshakeClockApart",
    "HAMi up to 2.7 ignores a node with a working device plugin: their clocks or time zones differ.",
    "Run the scheduler pod in UTC and set the node's clock, or upgrade HAMi: 2.8 no longer uses the handshake.",
    source="HAMi 2.5 to 2.7 write the handshake in local time and read it as UTC",
)
PLUGIN_SILENT = _fault(
    "HamiPluginSilent",
    "A node's device plugin does not respond to the handshake of HAMi up to 2.7: HAMi allocates no card there.",
    "Restart the device plugin pod on the node.",
    source=f"{_DEVICES}; the annotation hami.io/node-handshake",
)
CARD_UNHEALTHY = _scheduled(
    "HamiCardUnhealthy",
    "Suitable cards are registered as unhealthy.",
    "Check the GPUs of the node: their plugin observed an Xid, or NVML does not respond.",
    codes("CardNotHealth", "CardUnhealthy"),
    source="CardNotHealth, CardUnhealthy",
    follows=("HamiRegistrationStale", "UnhealthyGpus", "NodeKeptFromWork"),
)


_REGISTERS = timedelta(minutes=5)
"""A plugin registers within seconds; it retries every 30 s if the API server refuses."""
_SILENT = timedelta(minutes=5)
_ZONES = timedelta(minutes=15)
"""Time zones differ by multiples of 15 minutes, and by at most 14 hours."""
_CLOCKS_DIFFER = timedelta(minutes=2)
_FARTHEST_ZONE = timedelta(hours=14, minutes=5)
_RELEASED = timedelta(minutes=1)
_MOST_NAMED = 4


def find_unselected(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield GPU nodes that offer nothing and that no plugin selects; their labels exclude HAMi's plugin."""
    every = installations(snapshot)
    plugins = [plugin for each in every for plugin in each.plugins if plugin.meta.kind == "DaemonSet"]
    others = [each for each in components(snapshot) if each.role in (Role.DEVICE_PLUGIN, Role.DRA_DRIVER)]
    served = {*sliced_nodes(snapshot), *plugin_pods(every)}
    for node in snapshot.nodes if plugins else ():
        if node.name in served or is_for_machines(node) or not _is_steady(snapshot, node):
            continue
        selected = any(is_for(component.spec, node) for component in (*plugins, *others))
        if has_nvidia(node) and not offers_gpus(node) and not selected:
            yield _unselected(node, min(plugins, key=lambda each: (len(missing_labels(each, node)), each.subject)))


def find_registration(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Compare the registration of each node with its offer."""
    pods_by_node = plugin_pods(installations(snapshot))
    for node in filter(lambda node: _is_steady(snapshot, node), snapshot.nodes):
        pods, offers_slots = pods_by_node.get(node.name, ()), _offers_slots(snapshot, node)
        is_starting = any(snapshot.is_new(pod.meta, YOUNG) for pod in pods)
        if CARDS in node.cut or not snapshot.sees_all_pods:
            continue
        is_volcanos = (
            "volcano.sh/vgpu-number" in node.allocatable
        )  # its plugin serves the cards, by HAMi's registration
        if node.hami.cards and not offers_slots and not is_starting and not is_volcanos:
            yield _stale(snapshot, node, pods)
        elif not node.hami.cards and offers_slots:
            working = [pod for pod in pods if is_ready(pod) and _is_settled(snapshot, pod)]
            if working and any(installation.scheduler is not None for installation in installations(snapshot)):
                yield _not_registered(snapshot, node, working[0])


def find_unhealthy(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield cards that their plugin reports as unhealthy, whether or not pods wait for them."""
    for node in snapshot.nodes:
        unhealthy = [card.uuid for card in node.hami.cards if not card.healthy]
        if unhealthy and _is_steady(snapshot, node):
            count = f"{len(unhealthy)} of {len(node.hami.cards)} cards registered as unhealthy"
            evidence = (f"{node.subject}: {count}: {named(unhealthy, _MOST_NAMED)}",)
            remedy = (
                f"Check the node's GPUs: {command('gpu-healthcheck', 'diagnose', 'node', node.name)}",
                f"When they are healthy, restart HAMi's device plugin pod there: {pods_on(node.name)} shows its name.",
            )
            yield FoundCause(CARD_UNHEALTHY, node.subject, evidence, remedy, (node.subject,))


def find_skew(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield one result for each scheduler whose version can't read the registrations of its nodes."""
    for installation in installations(snapshot):
        nodes = [
            node
            for node in snapshot.nodes
            if (registration := node.hami.registration) is not None
            and (registration.cards and registration.form is not installation.reads)
            and other_owner(snapshot, installation, node) is None
        ]
        if installation.reads is not None and installation.scheduler is not None and nodes:
            yield _skew(installation, installation.scheduler, nodes)


def find_handshake(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes that a scheduler no longer uses although the plugin there works."""
    every = [installation for installation in installations(snapshot) if installation.uses_handshake]
    for node_name, pods in plugin_pods(every).items():
        node = snapshot.by_node.get(node_name)
        working = [pod for pod in pods if is_ready(pod) and _is_settled(snapshot, pod)]
        if node is not None and working and is_judged(node, snapshot.now) and _offers_slots(snapshot, node):
            yield from _given_up(snapshot, node, working)


def find_locks(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield node locks that are stale."""
    for node in snapshot.nodes:
        installation, lock = serving(snapshot, node), node.hami.lock
        expires = installation.command_line.lock_expires if installation is not None else LOCK_EXPIRES
        if lock is not None and (why := _why_stale(snapshot, lock, expires)):
            yield _locked(snapshot, node, lock, why)


def why_unknown(snapshot: Snapshot, nodes: Iterable[Node]) -> tuple[Origin, ...]:
    """Return causes that may explain HAMi's `node unregistered` for these nodes, if they are found too."""
    every = installations(snapshot)
    workloads = [plugin.subject for each in every for plugin in each.plugins]
    own = (NOT_READY[Role.HAMI_PLUGIN], PLUGIN_NOT_MEANT, REGISTER_STALE, NOT_REGISTERED, CLOCK_APART, PLUGIN_SILENT)
    return (
        *origins((REGISTER_UNREADABLE,), *(installation.subject for installation in every)),
        *origins((NOT_READY[Role.HAMI_PLUGIN],), *workloads),
        *(origin for node in nodes for origin in origins((*own, UNHEALTHY, KEPT_FROM_WORK), node.subject)),
    )


def _is_steady(snapshot: Snapshot, node: Node) -> bool:
    """Whether the node is neither new nor being changed."""
    return is_judged(node, snapshot.now) and not is_changed(node)


def _slot_resource(snapshot: Snapshot, node: Node) -> str:
    """Return the resource name of the installation that serves the node."""
    installation = serving(snapshot, node)
    return installation.settings.count_name if installation is not None else GPU


def _offers_slots(snapshot: Snapshot, node: Node) -> bool:
    return node.allocatable.get(_slot_resource(snapshot, node), "") not in ("", "0")


def _offer(snapshot: Snapshot, node: Node) -> str:
    resource = _slot_resource(snapshot, node)
    return f"{resource} {node.allocatable.get(resource) or 'absent'} allocatable"


def _unselected(node: Node, plugin: Component) -> FoundCause:
    labels, taints = missing_labels(plugin, node), refused(plugin.spec, node)
    remedy = f"Let {plugin.subject} run there (Helm: devicePlugin.tolerations)."
    if labels:
        lacks, remedy = f"it requires {', '.join(labels)}", f"Label the node: {kubectl('label', node.meta, *labels)}"
    elif taints:
        lacks = f"it does not tolerate {', '.join(map(str, taints))}"
    else:
        lacks = "its node affinity does not match the node"
    evidence = (f"{node.subject} has GPUs and offers none; {plugin.subject} does not run there: {lacks}",)
    return FoundCause(PLUGIN_NOT_MEANT, node.subject, evidence, (remedy,), (node.subject,))


def _stale(snapshot: Snapshot, node: Node, pods: Sequence[Pod]) -> FoundCause:
    evidence = [f"{node.subject}: {counted(len(node.hami.cards), 'card')} registered, {_offer(snapshot, node)}"]
    for pod in pods:
        evidence.append(f"{pod.subject}: {stage(pod, snapshot.now)}")
        log = snapshot.logs.get((pod.subject, "device-plugin"), "")
        evidence += [f"its log: {line}" for line in telling_lines(log, ended=False)]
    if not pods:
        evidence.append("no HAMi device plugin pod runs on the node")
    remedy = (
        (_read_log(pods[-1]), f"Restart it: {kubectl('delete', pods[-1].meta)}")
        if pods
        else (f"Find out why the plugin does not run there: {pods_on(node.name)}",)
    )
    return FoundCause(REGISTER_STALE, node.subject, tuple(evidence), remedy, (node.subject,))


def _not_registered(snapshot: Snapshot, node: Node, pod: Pod) -> FoundCause:
    registration = node.hami.registration
    lacks = "no annotation hami.io/node-nvidia-register"
    if registration is not None:
        lacks = ": ".join(filter(None, ("its registration names no card", registration.unreadable)))
    account = f"--as=system:serviceaccount:{pod.meta.namespace}:{pod.spec.service_account or 'default'}"
    evidence = (f"{node.subject}: {lacks}; {_offer(snapshot, node)}", f"{pod.subject} is ready")
    remedy = (
        _read_log(pod),
        f"Check whether it may write to nodes: {command('kubectl', 'auth', 'can-i', 'patch', 'nodes', account)}",
        f"Let it register again: {kubectl('delete', pod.meta)}",
    )
    return FoundCause(NOT_REGISTERED, node.subject, evidence, remedy, (node.subject,))


def _read_log(pod: Pod) -> str:
    return f"Read the plugin's log: {logs(pod.meta, '-c', 'device-plugin', '--tail=50')}"


def _skew(installation: Installation, scheduler: Component, nodes: list[Node]) -> FoundCause:
    read = installation.reads or RegistrationFormat.JSON
    other = RegistrationFormat.TEXT if read is RegistrationFormat.JSON else RegistrationFormat.JSON
    names = tuple(node.subject for node in nodes)
    evidence = [
        f"{scheduler.subject} is {scheduler.version} and reads {read.value}",
        f"{named(names, _MOST_NAMED)}: {other.value}",
    ]
    plugins = sorted({plugin.version for plugin in installation.plugins})
    evidence += [f"device plugins: {', '.join(plugins)}"] if plugins else []
    pods = command("kubectl", "-n", installation.namespace, "get", "pods", "-o", "wide")
    remedy = (
        f"Upgrade the whole release, and check that all of its pods were replaced: {pods}",
        "A plugin of the matching version rewrites the registration within a minute.",
    )
    return FoundCause(REGISTER_UNREADABLE, scheduler.subject, tuple(evidence), remedy, names)


def _given_up(snapshot: Snapshot, node: Node, pods: list[Pod]) -> Iterator[FoundCause]:
    """Yield the cause of an old request: the plugin, which responds every 30 s, is silent, or two clocks differ."""
    handshake = node.hami.handshake
    requested = handshake.unanswered_since if handshake is not None else None
    if handshake is None or requested is None or (apart := abs(snapshot.now - requested)) < _SILENT:
        return
    evidence = (
        f"{node.subject}: {HANDSHAKE} is {handshake.annotation}, {_minutes(apart)} from now",
        f"{', '.join(pod.subject for pod in pods)}: ready; {_offer(snapshot, node)}",
    )
    from_zone = min(apart % _ZONES, _ZONES - apart % _ZONES)
    if (from_zone < _CLOCKS_DIFFER or is_future(requested, snapshot.now)) and apart < _FARTHEST_ZONE:
        why = "the difference matches a time zone: the scheduler writes local time and reads it as UTC"
        yield FoundCause(CLOCK_APART, node.subject, (*evidence, why), (), (node.subject,), Certainty.LIKELY)
        return
    remedy = [f"Restart the plugin pod: {kubectl('delete', pods[0].meta)}"]
    if handshake.annotation.startswith("Deleted"):
        remove = kubectl("annotate", node.meta, f"{HANDSHAKE}-")
        remedy.append(f"If it stays `Deleted`, remove the annotation: {remove}")
    yield FoundCause(PLUGIN_SILENT, node.subject, evidence, tuple(remedy), (node.subject,), Certainty.LIKELY)


def _minutes(apart: timedelta) -> str:
    hours, minutes = divmod(int(apart.total_seconds()) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _why_stale(snapshot: Snapshot, lock: NodeLock, expires: timedelta) -> str:
    """Return why the lock is stale; '' if it has not expired yet."""
    if lock.at is None:
        return "its time is unreadable, so it never expires"
    age = snapshot.now - lock.at
    if age > expires:
        return f"it was set {_minutes(age)} ago, and expires after {_minutes(expires)}"
    if not lock.pod or age < _RELEASED or not snapshot.sees_all_pods:
        return ""
    owner = next((pod for pod in snapshot.pods if pod.subject == lock.pod), None)
    if owner is None:
        known = {pod.meta.namespace for pod in snapshot.pods}
        return f"its owner {lock.pod} is gone" if lock.pod.split("/")[1] in known else ""
    done = owner.phase != "Pending" or (owner.grant is not None and owner.grant.phase is BindPhase.FAILED)
    return f"its owner {lock.pod} is {owner.phase}" if done else ""


def _locked(snapshot: Snapshot, node: Node, lock: NodeLock, why: str) -> FoundCause:
    waiting = [pod for pod in snapshot.pods if not pod.spec.node and not pod.over and _waits_for_lock(pod, node)]
    evidence = (
        f"{node.subject}: {LOCK} is {lock.annotation}: {why}",
        *(f"{pod.subject} waits for it" for pod in waiting[:3]),
    )
    remedy = (
        f"Find out why the device plugin there did not finish: {pods_on(node.name)}",
        f"Remove the lock: {kubectl('annotate', node.meta, f'{LOCK}-')}",
    )
    affected = tuple(pod.subject for pod in waiting) or (node.subject,)
    return FoundCause(LOCK_STALE, node.subject, evidence, remedy, affected)


def _waits_for_lock(pod: Pod, node: Node) -> bool:
    condition = pod.condition("PodScheduled")
    return condition is not None and f"node {node.name} " in f"{condition.message} " and "lock" in condition.message


def _is_settled(snapshot: Snapshot, pod: Pod) -> bool:
    starts = [state.started for state in pod.states if state.started is not None]
    since = max(starts, default=pod.meta.created)
    return since is None or snapshot.now - since > _REGISTERS


SEARCHES = (
    Search((PLUGIN_NOT_MEANT,), ("Node", "Pod", "DaemonSet"), find_unselected, is_there),
    Search((NOT_REGISTERED, REGISTER_STALE), ("Node", "Pod"), find_registration, is_there),
    Search((CARD_UNHEALTHY,), ("Node",), find_unhealthy, is_there),
    Search((REGISTER_UNREADABLE,), ("Node",), find_skew, is_there),
    Search((CLOCK_APART, PLUGIN_SILENT), ("Node", "Pod"), find_handshake, is_there),
    Search((LOCK_STALE,), ("Node",), find_locks, is_there),
)
