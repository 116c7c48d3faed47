"""Find ComputeDomains whose pods get no IMEX channel, or whose IMEX daemons do not reach each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.pod_startup_table import IF_HELD, IMEX_HELD
from gpu_healthcheck.diagnosis.causes.unscheduled.refused import NOT_READY as NODE_NOT_READY
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, logs
from gpu_healthcheck.diagnosis.facts.components import DOMAIN_LABEL, Role, components, is_ready
from gpu_healthcheck.diagnosis.facts.dra_drivers import (
    CLAIM_EVENT,
    DRIVER_CALL,
    DomainView,
    claims_channel,
    daemons_on,
    domain_views,
    is_placed,
    no_driver,
    plugin_on,
)
from gpu_healthcheck.diagnosis.facts.pod_stage import stage
from gpu_healthcheck.diagnosis.facts.symptoms import (
    is_stuck,
    of_events,
    of_log,
    of_state,
    older,
    recognised,
    scheduled_at,
    standing_events,
)
from gpu_healthcheck.diagnosis.model import (
    Certainty,
    Family,
    FoundCause,
    Link,
    Origin,
    Search,
    Signature,
    TextSource,
    origins,
)
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.text.naming import named

_SOURCE = "https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu"
_domain = Family(Link.RUNTIME)
DOMAIN_NOT_READY = _domain(
    "ComputeDomainNotReady",
    "Pods of a ComputeDomain wait for long: their nodes do not become ready in it, so they get no IMEX channel.",
    "Check the domain's daemon on each of these nodes, then the log of the driver's controller.",
    Signature(
        r"not ready in ComputeDomain|ComputeDomain (?:is )?not Ready",
        "NVIDIA DRA driver",
        frozenset((TextSource.EVENT,)),
    ),
    source=f"{_SOURCE}: `current node not ready in ComputeDomain`, issue 289",
    follows=("ComputeDomainPeerLost",),
)
PEER_LOST = _domain(
    "ComputeDomainPeerLost",
    "The status of a ComputeDomain lacks a running IMEX daemon, or has an outdated address or a lost node: the other "
    "daemons do not reach it.",
    "Recreate the daemon's pod on that node, so that it registers; then restart the job's pods.",
    urgent=1,
    source=f"{_SOURCE}/issues/1050",
)
INDEX = _domain(
    "ComputeDomainIndexConflict",
    "Two IMEX daemons of a clique have the same index, or a daemon runs with another index than the ComputeDomain's "
    "status has: imports of GPU memory fail with `invalid resource handle`.",
    "Recreate the daemons' pods with the wrong index, then restart the job's pods.",
    urgent=1,
    source=f"{_SOURCE}/issues/1418",
)
_LASTS, _SYNCS = 10.0, 5.0
"""Minutes after which a daemon runs, and after which it has registered: the controller compares every 2 seconds."""
_OWN_ID = re.compile(r"Identified this node as ID (\d{1,4})\b", re.IGNORECASE)
_DNS_PREFIX = "compute-domain-daemon-"
"""Names of the daemons in IMEX' list of nodes, which end with the index. A list of addresses has its own order."""
_HELD = tuple((IMEX_HELD, text) for text in IMEX_HELD.texts)
_IMEX_ROLES = (Role.DOMAIN_DAEMON, Role.DRA_DRIVER)
_MOST = 6
_JOB = (
    "A daemon's new pod ends the memory shares of its node: stop the job's pods that use the domain first, or restart "
    "them afterwards. Keep the ComputeDomain itself: without it, all its daemons stop."
)
_PREVENT = "The driver's feature gates IMEXDaemonsWithDNSNames and ComputeDomainCliques, on since 25.12, prevent this."
_RETRY = "The kubelet tries again by itself: the waiting pods then start. Keep the ComputeDomain."


class Reason(Struct, frozen=True):
    """Reason why a node is not ready in its domain, with the next step and the causes that explain it."""

    text: str
    step: str
    because_of: tuple[Origin, ...] = ()
    certainty: Certainty = Certainty.PROVEN


def find_held(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes whose own IMEX service keeps the daemon of a ComputeDomain from its session."""
    pods = [pod for each in components(snapshot) if each.role in _IMEX_ROLES for pod in each.pods]
    pods += (snapshot.pod[subject] for subject, _ in snapshot.logs if subject in snapshot.pod)
    for pod in {pod.subject: pod for pod in pods if is_placed(pod) and not is_ready(pod)}.values():
        texts = [symptom for state in pod.states for symptom in (*of_state(state), *of_log(snapshot, pod, state.name))]
        known = recognised(_HELD, (*texts, *of_events(standing_events(snapshot, pod))))
        # The session may be that of another domain's daemon, which is ending.
        if known is not None and all(each.subject == pod.subject for each in daemons_on(snapshot, pod.spec.node)):
            stop = (
                f"On {pod.spec.node}, stop the host's service: `systemctl disable --now nvidia-imex`, then `systemctl "
                "mask nvidia-imex`. If programs outside of Kubernetes need it, use the driver's host-managed mode."
            )
            again = f"Then recreate the daemon's pod: {kubectl('delete', pod.meta)}"
            steps = (stop, again, "Keep it off in the nodes' image, too: the driver's package enables it.")
            yield FoundCause(IMEX_HELD, f"node/{pod.spec.node}", (f"{pod.subject}: {known}",), steps, (pod.subject,))


def find_domains(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield domains that keep their pods waiting, or whose status does not match their daemons."""
    for view in domain_views(snapshot):
        held = [pod for pod in view.users if _is_held(snapshot, view, pod)]
        if held:
            yield _not_ready(snapshot, view, held)
        names = dict.fromkeys((*view.registered, *view.daemons)) if view.users else ()
        peers = (_lost_peer(snapshot, view, name) for name in names)
        lost = [reason for reason in peers if reason is not None]
        for cause, reasons in ((PEER_LOST, lost), (INDEX, [*_misnumbered(snapshot, view)])):
            if reasons:
                yield FoundCause(
                    cause,
                    view.domain.subject,
                    tuple(reason.text for reason in reasons),
                    (*dict.fromkeys(reason.step for reason in reasons), _JOB, _PREVENT),
                    tuple(pod.subject for pod in view.users),
                    max(reason.certainty for reason in reasons),
                    _origins(reasons) if all(reason.because_of for reason in reasons) else (),
                )


def _origins(reasons: Sequence[Reason]) -> tuple[Origin, ...]:
    return tuple(origin for reason in reasons for origin in reason.because_of)


def _is_held(snapshot: Snapshot, view: DomainView, pod: Pod) -> bool:
    """Whether the pod has waited for long for the driver: by its newest event about claims, else by its containers."""
    if not is_stuck(pod) or (view.domain.status == "Ready" and view.has_ready(pod.spec.node)):
        return False
    events = standing_events(snapshot, pod)
    asked = [DRIVER_CALL in event.message for event in events if event.reason == CLAIM_EVENT][:1]
    creating = all(state.waiting in ("", "ContainerCreating", "PodInitializing") for state in pod.states)
    return creating and (not events or asked == [True]) and older(snapshot, scheduled_at(pod), _LASTS)


def _not_ready(snapshot: Snapshot, view: DomainView, held: Sequence[Pod]) -> FoundCause:
    domain, nodes = view.domain, {pod.spec.node for pod in view.users}
    ready = sum(each.status == "Ready" for each in domain.nodes)
    of_nodes = f"{len(domain.nodes)} nodes have registered, and {ready} are ready"
    evidence = [f"{domain.subject}: {domain.status or 'no status'}; {of_nodes}"]
    names = dict.fromkeys(pod.spec.node for pod in held)
    reasons = [reason for name in names if (reason := _of_node(snapshot, view, name)) is not None]
    steps = [reason.step for reason in reasons[:_MOST]]
    if domain.wanted > len(nodes):
        evidence.append(f"it waits for {domain.wanted} nodes (numNodes), and its pods run on {len(nodes)}")
        waits = named((pod.subject for pod in view.unplaced), _MOST)
        evidence += [f"without a node yet: {waits}"] if waits else []
        steps.append(
            f"Get {waits} onto nodes: each has its own cause, or waits for new nodes."
            if waits
            else f"Start workers on {domain.wanted} different nodes. numNodes can't be changed: if it is wrong, end "
            "the job, then create domain and job again with numNodes 0, which waits for no number."
        )
    return FoundCause(
        DOMAIN_NOT_READY,
        domain.subject,
        (*evidence, *(reason.text for reason in reasons)),
        (*(dict.fromkeys(steps) or [_of_controller(snapshot)]), _RETRY),
        tuple(pod.subject for pod in held),
        Certainty.PROVEN if steps else Certainty.LIKELY,
        _origins(reasons),
    )


def _of_node(snapshot: Snapshot, view: DomainView, name: str) -> Reason | None:
    """Return why the node is not ready in the domain; None if no object shows a reason."""
    node, daemon = snapshot.by_node.get(name), view.daemons.get(name)
    if node is not None and not node.ready:
        return _not_ready_node(node)
    if daemon is None:
        return _without_daemon(snapshot, view, node) if node is not None else None
    if not is_ready(daemon):
        because = origins((IMEX_HELD, NOT_READY[Role.DOMAIN_DAEMON]), f"node/{name}", *snapshot.line(daemon.meta)[1:])
        look = f"Read the log of the daemon on {name}: {logs(daemon.meta, '--tail=100')}. {IF_HELD}"
        return Reason(f"{daemon.subject} on node/{name}: {stage(daemon, snapshot.now)}", look, because)
    if view.has_ready(name):
        return None
    state = "is NotReady in the domain's status" if name in view.registered else "is not in the domain's status"
    return Reason(f"{daemon.subject} is ready, and node/{name} {state}", _again(daemon))


def _without_daemon(snapshot: Snapshot, view: DomainView, node: Node) -> Reason | None:
    """Return what stopped before the daemon: the driver's plugin, the label that it sets, or the DaemonSet."""
    label, uid, none = node.meta.labels.get(DOMAIN_LABEL, ""), view.domain.meta.uid, f"{node.subject} has no daemon"
    plugin = plugin_on(snapshot, node.name)
    if not uid or not snapshot.sees_all_pods:
        return None
    if label == uid:
        made = next((each for each in snapshot.daemon_sets if each.meta.labels.get(DOMAIN_LABEL) == uid), None)
        look = f"Find out why it has no pod on {node.name}: {kubectl('describe', made.meta)}" if made else ""
        return Reason(f"{none}, and has the domain's label", look or _of_controller(snapshot))
    if label:
        other = next((each.subject for each in snapshot.domains if each.meta.uid == label), "")
        remove = command("kubectl", "label", "node", node.name, f"{DOMAIN_LABEL}-")
        if other:
            step = f"Wait until the pods of {other} on {node.name} have ended, or use another node."
            return Reason(f"{none}: it is in {other}, and can be in one domain only", step)
        return Reason(f"{none}: it has the label of a domain that is gone, {label}", f"Remove that label: {remove}")
    if plugin is None or not is_ready(plugin):
        because = origins((NOT_READY[Role.DRA_DRIVER],), node.subject)
        return Reason(f"{none}: no plugin of the DRA driver works there", no_driver(snapshot, node.name), because)
    return Reason(
        f"{none}: it lacks the label {DOMAIN_LABEL}={uid}, which {plugin.subject} sets",
        f"Read why the driver does not label {node.name}: {logs(plugin.meta, '--all-containers', '--tail=100')}; then "
        f"recreate its pod: {kubectl('delete', plugin.meta)}",
    )


def _lost_peer(snapshot: Snapshot, view: DomainView, name: str) -> Reason | None:
    """Return what keeps the other daemons from this node's, which runs or is registered; None if nothing does."""
    entry, daemon, node = view.registered.get(name), view.daemons.get(name), snapshot.by_node.get(name)
    if node is None:
        step = _again(daemon) if daemon is not None else _of_controller(snapshot)
        return Reason(f"node/{name} is in the domain, and does not exist", step) if snapshot.sees("Node") else None
    users = [pod for pod in view.users if pod.spec.node == name]
    if not node.ready:
        lasts = older(snapshot, getattr(node.condition("Ready"), "since", None), _SYNCS)
        return _not_ready_node(node) if users and lasts else None
    if daemon is None:
        is_replaced = any(DOMAIN_LABEL in pod.meta.labels for pod in snapshot.pods_on.get(name, ()))
        has_run = not is_replaced and any(_has_run(snapshot, pod) for pod in users)
        return _without_daemon(snapshot, view, node) if has_run else None
    if not view.registered or not daemon.address or not _has_run(snapshot, daemon):
        return None
    if entry is not None and entry.address == daemon.address:
        return None
    there = f"has {entry.address or 'no address'} for it" if entry is not None else f"lacks node/{name}"
    return Reason(f"{daemon.subject} runs with {daemon.address}, and the domain's status {there}", _again(daemon))


def _not_ready_node(node: Node) -> Reason:
    step = f"Restore {node.name}, or move the job's pods away from it."
    return Reason(f"{node.subject} of the domain is not ready", step, origins((NODE_NOT_READY,), node.subject))


def _has_run(snapshot: Snapshot, pod: Pod) -> bool:
    return any(state.running and older(snapshot, state.started, _SYNCS) for state in pod.states)


def _misnumbered(snapshot: Snapshot, view: DomainView) -> Iterator[Reason]:
    """Yield daemons that share an index, or whose log shows another one than the status."""
    first: dict[tuple[str, int | None], str] = {}
    # Without a fabric, no daemon uses its index.
    entries = [one for one in view.registered.values() if one.clique and one.index is not None and one.index >= 0]
    for entry in entries:
        holder, daemon = first.setdefault((entry.clique, entry.index), entry.name), view.daemons.get(entry.name)
        if holder != entry.name:
            text = f"node/{holder} and node/{entry.name} both have index {entry.index} in clique {entry.clique}"
            find = command("kubectl", "get", "pods", "-A", "-o", "wide", "-l", f"{DOMAIN_LABEL}={view.domain.meta.uid}")
            yield Reason(text, _again(daemon) if daemon is not None else f"Find the pod on {entry.name}: {find}")
        if daemon is None:
            continue
        log = "\n".join(symptom.text for state in daemon.states for symptom in of_log(snapshot, daemon, state.name))
        own = [int(index) for index in _OWN_ID.findall(log)][-1:]
        if own not in ([], [entry.index]):
            certainty = Certainty.PROVEN if _DNS_PREFIX in log else Certainty.LIKELY
            text = f"{daemon.subject} runs as ID {own[0]}, and the status has index {entry.index} for node/{entry.name}"
            yield Reason(text, _again(daemon), certainty=certainty)


def _again(daemon: Pod) -> str:
    return f"Recreate the daemon's pod on {daemon.spec.node}, so that it registers: {kubectl('delete', daemon.meta)}"


def _of_controller(snapshot: Snapshot) -> str:
    """Return the step that shows what the driver's controller does not do."""
    drivers = (each for each in components(snapshot) if each.role is Role.DRA_DRIVER and each.meta.kind == "Deployment")
    pod = next((pod for each in drivers for pod in each.pods if is_placed(pod)), None)
    read = "Read the log of the DRA driver's controller"
    if pod is None:
        return f"{read}, the pod of the Deployment whose name ends with `controller`."
    return f"{read}: {logs(pod.meta, '--tail=100')}; then recreate its pod: {kubectl('delete', pod.meta)}"


def _concerns(snapshot: Snapshot) -> bool:
    return bool(snapshot.domains) or any(pod.spec.claims and claims_channel(snapshot, pod) for pod in snapshot.pods)


SEARCHES = (
    Search((IMEX_HELD,), ("Pod",), find_held),
    Search((DOMAIN_NOT_READY, PEER_LOST, INDEX), ("ComputeDomain", "Pod"), find_domains, _concerns),
)
