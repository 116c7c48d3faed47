"""Find nodes that offer no GPUs, fewer than they have, or the same GPUs twice, and the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache

from gpu_healthcheck.diagnosis.causes.components import NOT_READY, VALIDATION, hint
from gpu_healthcheck.diagnosis.causes.verdicts import KEPT_FROM_WORK
from gpu_healthcheck.diagnosis.facts.commands import command, explain, kubectl, logs, pods_on
from gpu_healthcheck.diagnosis.facts.components import YOUNG, Component, Role, components, is_for, is_ready, refused
from gpu_healthcheck.diagnosis.facts.gpu_nodes import (
    GPU,
    MIG,
    SHARED,
    brings_plugin,
    devices_in,
    has_nvidia,
    is_changed,
    is_for_machines,
    is_judged,
    offers_gpus,
    sliced_nodes,
    switched_off,
)
from gpu_healthcheck.diagnosis.facts.kubelet_devices import names_lost_gpu, partly_offered
from gpu_healthcheck.diagnosis.facts.operator_values import release_of
from gpu_healthcheck.diagnosis.facts.placement import expression_takes
from gpu_healthcheck.diagnosis.facts.quantity import count_of, counted, digits
from gpu_healthcheck.diagnosis.facts.safe_steps import plugin_pods, recreate, repair_gpu, restart_plugin
from gpu_healthcheck.diagnosis.facts.symptoms import replaced, shortened
from gpu_healthcheck.diagnosis.model import (
    Cause,
    CauseSeverity,
    Certainty,
    Family,
    FoundCause,
    Link,
    Origin,
    Search,
    found_on,
    origins,
)
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, recorded_gpus
from gpu_healthcheck.diagnosis.snapshot.pods import Pod

MIG_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html"
_fault = Family(None)
_scheduled = Family(Link.SCHEDULED)
_GPU_DRIVER = "gpu.nvidia.com"
_BEFORE_OFFER = ("MigGeometryInvalid", "MigConfigFailed", "MpsDaemonNotReady", KEPT_FROM_WORK.name)
GEOMETRY = _fault(
    "MigGeometryInvalid",
    "The MIG strategy is single, and the node's cards have different profiles: the node offers none of them.",
    "Give all cards of the node the same profile, or set the strategy to mixed.",
    source=MIG_GUIDE,
    follows=("MigConfigFailed",),
)
MISSING = _fault(
    "DevicePluginMissing",
    "A node has GPUs and no device plugin that offers them, so no pod gets one there.",
    "Let a device plugin's DaemonSet run on the node: install one, add its toleration, or set the label it selects by.",
    source="https://github.com/NVIDIA/k8s-device-plugin",
)
NOT_OFFERED = _fault(
    "GpusNotOffered",
    "A node has GPUs and offers none: its device plugin detects none, or could not register with the kubelet.",
    "Read the device plugin's log, fix its error, then restart its pod.",
    follows=_BEFORE_OFFER,
)
UNHEALTHY = _scheduled(
    "UnhealthyGpus",
    "A node has GPUs that its device plugin does not advertise: it considers them unhealthy, or is not registered.",
    "Read the device plugin's log and check the GPUs of the node; when they are healthy, restart the plugin, which "
    "does not check again on its own.",
    source="k8s-device-plugin: an unhealthy device stays so until the plugin restarts",
    follows=_BEFORE_OFFER,
)
MIG_FAILED = _fault(
    "MigConfigFailed",
    "The MIG manager could not apply the profiles that the node's label requests.",
    "Read the MIG manager's log; stop the processes on the GPUs, or correct the configuration name.",
    source=MIG_GUIDE,
)
MIG_PENDING = _fault(
    "MigConfigPending",
    "A requested change of MIG profiles on a node does not complete.",
    "Check the MIG manager pod on the node.",
    severity=CauseSeverity.MEDIUM,
    source=MIG_GUIDE,
)
FEWER = _fault(
    "FewerGpusThanLabelled",
    "A node offers fewer GPUs than GPU feature discovery has counted on it.",
    "Check whether a GPU has left the PCI bus since; if all are present, restart the device plugin pod.",
    severity=CauseSeverity.MEDIUM,
    follows=(KEPT_FROM_WORK.name,),
)
TWICE = _fault(
    "TwoDevicePlugins",
    "Two device plugins serve the same resource on a node: each registration of one replaces the other.",
    "Delete the DaemonSet of one of the two, and restart the pods of the other.",
)
NO_SLICES = _fault(
    "GpuSlicesMissing",
    "The DRA driver publishes none of a node's GPUs, so no claim gets one there.",
    "Read the log of the driver's container `gpus` on the node; if the pod is missing there, find the reason.",
    source="https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu",
)
_STACK = (Role.DRIVER, Role.TOOLKIT, Role.DEVICE_PLUGIN)
OFFERS_NONE = (
    *(NOT_READY[role] for role in _STACK),
    *(VALIDATION, GEOMETRY, MIG_FAILED, MISSING, NOT_OFFERED, UNHEALTHY),
)
"""Causes why a node with GPUs may offer none, in the order of the stack."""
_FAILURES = ("no devices found", "failed to", "could not", "error", "incompatible", "unhealthy", "already connected")
_REGISTERED = "Registered device plugin for"
_MPS = re.compile(r"\bmps\b", re.IGNORECASE)
_WITHOUT_MPS = (
    "The plugin waits for the MPS control daemon, which its chart and the GPU operator run on nodes with "
    "nvidia.com/mps.capable=true: `kubectl get daemonsets -A`. Without it, remove sharing.mps from the configuration."
)
_OF_PLUGIN = re.compile(
    r"Starting to serve (?:'\S{1,80}' )?on /|GRPC server for '|egister\w{0,2} device plugin|No devices found\. Waiting"
    r"|device marked unhealthy|error starting plugins: |waiting for MPS daemon|Starting NVIDIA Device Plugin"
    r"|If this is a GPU node, did you"
)
"""Lines that only a device plugin writes."""
_XID = re.compile(r"\bXid=(\d{1,4})\b")
_WHEN = "When the GPU is healthy again, after a reset or a reboot if its Xid needs one,"
_PRESENT = "nvidia.com/gpu.present"
_LABELLED_BY_OPERATOR = "If it is missing again, check node feature discovery and the GPU operator's log."
_LABELLED_BY_HAND = (
    "Node feature discovery sets such labels, if it runs. Without it, a label that is set by hand stays; label each "
    "new GPU node, too."
)
_REGISTERS = timedelta(minutes=5)
"""Time after a plugin becomes ready until the kubelet reports its devices."""


def find(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Check each node with NVIDIA GPUs that should offer them to containers."""
    every = components(snapshot)
    there, claimed = _by_node(_plugins(every)), sliced_nodes(snapshot)
    is_hidden = not _sees_components(every, snapshot)
    for node in snapshot.nodes:
        if not has_nvidia(node) or is_for_machines(node) or not is_judged(node, snapshot.now):
            continue
        pods = there.get(node.name, [])
        yield from _twice(node, pods, snapshot.now)
        if offers_gpus(node):
            yield from _partly(snapshot, node)
            yield from _fewer(node)
        elif node.name in claimed or is_changed(node) or node.hami.cards:
            continue  # HAMi's own family reports nodes registered with HAMi
        elif (is_hidden or brings_plugin(node)) and not pods and _wants_plugin(node):
            yield _unexplained(node, stack(snapshot))
        else:
            yield from _nothing(node, pods, snapshot)


def _plugins(every: Iterable[Component]) -> list[Component]:
    return [component for component in every if component.role in (Role.DEVICE_PLUGIN, Role.HAMI_PLUGIN)]


def _sees_components(every: Iterable[Component], snapshot: Snapshot) -> bool:
    """Whether the listed pods include those of the cluster's components, not only those of one namespace.

    A text may show one component alone; the list of a node's pods includes those of the system.
    """
    system = any(pod.meta.namespace == "kube-system" for pod in snapshot.pods)
    return snapshot.sees("Pod") and (system or (not snapshot.recognised and any(one.pods for one in every)))


def find_missing(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes that offer no GPU and have no device plugin."""
    every = components(snapshot)
    plugins = _plugins(every)
    there, claimed = _by_node(plugins), sliced_nodes(snapshot)
    above = tuple(
        (NOT_READY[each.role].name, each.subject) for each in every if each.role in (Role.OPERATOR, Role.NODE_FEATURES)
    )
    drivers = [component for component in every if component.role is Role.DRA_DRIVER]
    # A GPUCluster is the operator's stack of DRA, which has no device plugin.
    if not _sees_components(every, snapshot) or (snapshot.gpu_clusters and not plugins):
        return
    for node in snapshot.nodes:
        by_claims = node.name in claimed or any(is_for(driver.spec, node) for driver in drivers) or brings_plugin(node)
        is_served = offers_gpus(node) or by_claims or node.name in there
        if has_nvidia(node) and is_judged(node, snapshot.now) and _wants_plugin(node) and not is_served:
            yield from _missing(node, plugins, above)


def _wants_plugin(node: Node) -> bool:
    return not switched_off(node) and not is_for_machines(node) and not is_changed(node)


def _missing(node: Node, plugins: Iterable[Component], above: tuple[Origin, ...]) -> Iterator[FoundCause]:
    """Yield why the closest matching device plugin does not run on the node.

    A node that only HAMi's plugin could serve is left to the search for HAMi's labels.
    """
    own = [plugin for plugin in plugins if plugin.role is Role.DEVICE_PLUGIN and plugin.meta.kind == "DaemonSet"]
    if own:
        nearest = min(
            own, key=lambda each: (not is_for(each.spec, node), len(missing_labels(each, node)), each.subject)
        )
        yield _kept_off(node, nearest, above)
    elif not any(plugin.role is Role.HAMI_PLUGIN for plugin in plugins):
        evidence = (f"{node.subject} has GPUs ({_why_gpu(node)}) and offers none", "no device plugin was found")
        yield FoundCause(MISSING, f"resource/{GPU}", evidence, (_INSTALL,), (node.subject,), because_of=above)


def _kept_off(node: Node, plugin: Component, above: tuple[Origin, ...]) -> FoundCause:
    """Return why the plugin's DaemonSet has no pod on the node: it made none, does not tolerate or not select it."""
    unmet, taints = missing_labels(plugin, node), refused(plugin.spec, node)
    if is_for(plugin.spec, node):
        evidence = f"{node.subject} offers no GPU; {plugin.subject} selects it and has no pod there"
        because = ((NOT_READY[Role.DEVICE_PLUGIN].name, plugin.subject), *above)
        describe = f"Find the reason: {kubectl('describe', plugin.meta)}"
        return found_on(node.subject, MISSING, (evidence,), (describe,), because)
    evidence = f"{node.subject} offers no GPU, and {plugin.subject} does not run there: "
    if taints and not unmet:
        names = ", ".join(map(str, taints))
        remedy = f"Let {plugin.subject} tolerate {names} (Helm: tolerations; GPU operator: daemonsets.tolerations)."
        messages = (f"{evidence}it does not tolerate {names}",)
        return FoundCause(MISSING, plugin.subject, messages, (remedy,), (node.subject,))
    steps = [f"Label the node: {kubectl('label', node.meta, *unmet)}"] if unmet else []
    steps.append(_LABELLED_BY_OPERATOR if _is_operators(plugin) else _LABELLED_BY_HAND)
    required = ", ".join(unmet) or "other labels (its node affinity)"
    return found_on(node.subject, MISSING, (f"{evidence}it requires {required}",), steps, above)


def missing_labels(plugin: Component, node: Node) -> list[str]:
    """Return the labels that the plugin's DaemonSet selects and the node lacks, of alternatives the nearest one."""
    labels, terms = node.meta.labels, plugin.spec.affinity or ()
    unmet = [f"{key}={value}" for key, value in plugin.spec.node_selector.items() if labels.get(key) != value]
    if any(all(expression_takes(each, node) for each in term) for term in terms):
        return unmet
    settable = (term for term in terms if all(each.operator == "In" for each in term))
    # Charts of device plugins accept this label where node feature discovery does not run.
    chosen = sorted(settable, key=lambda term: all(each.key != _PRESENT for each in term))[:1]
    lacks = (each for term in chosen for each in term if not expression_takes(each, node))
    return [*unmet, *(f"{each.key}={each.values[0]}" for each in lacks)]


def _nothing(node: Node, pods: list[tuple[Component, Pod]], snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield a node whose device plugin is ready and offers nothing."""
    ready = [(one, pod) for one, pod in pods if is_ready(pod) and _is_settled(pod, snapshot.now)]
    if not ready or any(not is_ready(pod) for _, pod in pods):
        return
    evidence = [_offers(node), f"the node has GPUs: {_why_gpu(node)}", *_by_agent(node)]
    evidence += [f"{pod.subject} of {component.subject} is ready" for component, pod in ready]
    lines = _failures(snapshot, [pod for _, pod in ready])
    fixes = [*_mps_steps(snapshot, node)] if any(map(_MPS.search, lines)) else [hint("\n".join(lines))]
    last = ready[-1][1].meta
    if any(fixes):
        again = f"Then restart the plugin, if it does not retry on its own: {kubectl('delete', last)}"
        yield found_on(node.subject, NOT_OFFERED, [*evidence, *lines], [*fixes, again])
        return
    remedy = (f"Read the plugin's log: {logs(last, '--tail=50')}", f"Restart it: {kubectl('delete', last)}")
    yield found_on(node.subject, _unhealthy_or_not_offered(node), [*evidence, *lines], remedy)


def _failures(snapshot: Snapshot, pods: Iterable[Pod]) -> list[str]:
    """Return the last lines with failures in the pods' logs."""
    found: list[str] = []
    for pod in pods:
        log = "\n".join(snapshot.logs.get((pod.subject, state.name), "") for state in pod.states if not state.init)
        found += map(shortened, _failing_lines(log))
    return found


def _failing_lines(log: str) -> list[str]:
    """Return the last lines with failures since the plugin registered, if it has."""
    since = log.rpartition(_REGISTERED)[2].splitlines()
    return [line for line in since if any(word in line.lower() for word in _FAILURES)][-2:]


def failures_in(log: str) -> list[str]:
    """Return the last lines with failures of a copied log if a device plugin wrote it."""
    return _failing_lines(log) if _OF_PLUGIN.search(log) else []


def find_in_logs(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield why the device plugin offers no GPUs, by a copied log of it, whose node is unknown."""
    for subject, log in snapshot.other_logs.items():
        lines = failures_in(log)
        text, evidence = "\n".join(lines), [f"log: {shortened(line)}" for line in lines]
        cause = UNHEALTHY if "unhealthy" in text else NOT_OFFERED
        known = _WITHOUT_MPS if _MPS.search(text) else hint(text)
        steps = [f"See the action for Xid{code}: {explain(f'Xid{code}')}" for code in dict.fromkeys(_XID.findall(text))]
        steps += [known, "Then restart the plugin, if it does not retry on its own."] if known else [cause.remedy]
        if lines:
            yield FoundCause(cause, subject, tuple(evidence), tuple(steps), certainty=Certainty.LIKELY)


def _mps_steps(snapshot: Snapshot, node: Node) -> Iterator[str]:
    """Yield why the MPS control daemon, for which the plugin waits, does not run on the node."""
    daemons = [each for each in components(snapshot) if each.role is Role.MPS]
    for daemon in daemons:
        pod, unmet = daemon.pod_on(node.name), missing_labels(daemon, node)
        if pod is not None:
            yield f"The plugin waits for the MPS control daemon. Read its log: {logs(pod.meta, '--tail=50')}"
        elif unmet:
            label = kubectl("label", node.meta, *unmet, "--overwrite")
            yield f"Let the MPS control daemon run, which the plugin awaits and {daemon.subject} keeps off: {label}"
            yield "GPU feature discovery sets this label if its configuration has sharing.mps: check that its pod runs."
        else:
            yield f"The plugin waits for the MPS control daemon: {why_not_on(daemon, node)}."
    if not daemons:
        yield _WITHOUT_MPS


def _unexplained(node: Node, workloads: Iterable[str]) -> FoundCause:
    hidden = "pods are not visible, so a device plugin may or may not run there"
    evidence = (_offers(node), f"the node has GPUs: {_why_gpu(node)}", *_by_agent(node), hidden)
    remedy = (f"Check whether a device plugin runs there, and read its log: {pods_on(node.name)}",)
    because = origins(NOT_READY.values(), node.subject, *workloads)
    return found_on(node.subject, _unhealthy_or_not_offered(node), evidence, remedy, because, Certainty.LIKELY)


def _unhealthy_or_not_offered(node: Node) -> Cause:
    return UNHEALTHY if any(count_of(node.capacity, name) for name in devices_in(node.capacity)) else NOT_OFFERED


def _partly(snapshot: Snapshot, node: Node) -> Iterator[FoundCause]:
    """Yield each resource of which the node offers a part only.

    If the plugin's choice of devices fails on a lost GPU, all pods are rejected, and the other GPUs are unusable.
    """
    rejected = [
        pod for pod in snapshot.pods_on.get(node.name, ()) if names_lost_gpu(pod) and not replaced(snapshot, pod)
    ]
    for name, there, offered in partly_offered(node):
        evidence = [f"{node.subject}: capacity {there} {name}, allocatable {offered}", *_by_agent(node)]
        evidence += _failures(snapshot, plugin_pods(snapshot, node.name))
        lost = counted(there - offered, "GPU") if name == GPU else f"{there - offered} {name}"
        if _all_respond(node, there):
            remedy = [*restart_plugin(snapshot, node.name, "All GPUs respond by now, so")][-1:]
            remedy += recreate(snapshot, rejected)
        elif rejected:
            pods = counted(len(rejected), "pod")
            evidence.append(f"{pods} rejected there: the plugin fails on a lost GPU whichever GPU a pod gets")
            unusable = f"Until {lost} is repaired, the node's free GPUs are unusable too."
            remedy = [unusable, *repair_gpu(snapshot, node.name, rejected)]
        else:
            remedy = [
                f"Find out why the plugin does not offer {lost}: its log names the error of each.",
                *restart_plugin(snapshot, node.name, _WHEN),
            ]
        yield found_on(node.subject, UNHEALTHY, evidence, remedy)


def _fewer(node: Node) -> Iterator[FoundCause]:
    """Yield a node with fewer GPUs than its label counts, unless they are MIG instances or shares of HAMi."""
    labels = node.meta.labels
    is_mig = any(name.startswith(MIG) for name in (*node.capacity, *node.allocatable))
    is_mig = is_mig or "MIG" in labels.get("nvidia.com/gpu.product", "")
    is_mig = is_mig or labels.get("nvidia.com/mig.config", "all-disabled") != "all-disabled"
    labelled = digits(labels.get("nvidia.com/gpu.count", ""), 0)
    copies = digits(labels.get("nvidia.com/gpu.replicas", "1"), 0)
    there = count_of(node.capacity, GPU) + count_of(node.capacity, SHARED)
    if is_mig or node.hami.shared or is_changed(node) or not 0 < there < labelled * max(copies, 1):
        return
    replicas = f", nvidia.com/gpu.replicas={copies}" if copies > 1 else ""
    counts = f"{node.subject}: capacity {there} {GPU}; label nvidia.com/gpu.count={labelled}{replicas}"
    remedy = (f"All GPUs respond, so restart the device plugin pod on the node: {pods_on(node.name)}",)
    yield found_on(node.subject, FEWER, (counts, *_by_agent(node)), remedy if _all_respond(node, labelled) else ())


def _all_respond(node: Node, number: int) -> bool:
    """Whether as many GPUs respond by the agent's record, which has no fault."""
    return not node.faults and (node.inventory.nvml or 0) >= number


def _twice(node: Node, pods: list[tuple[Component, Pod]], now: datetime) -> Iterator[FoundCause]:
    lasting = {plugin.subject: plugin for plugin, pod in pods if pod.meta.deleted is None and _is_settled(pod, now)}
    if len(lasting) < 2:
        return
    extra = max(lasting.values(), key=lambda plugin: (plugin.role is not Role.HAMI_PLUGIN, not _is_operators(plugin)))
    others = [plugin.subject for plugin in lasting.values() if plugin is not extra]
    evidence = f"{node.subject} has pods of {extra.subject} and of {', '.join(others)}"
    remedy = (f"To keep {others[0]}, remove the other: {_removal(extra)}", "Restart the remaining one.")
    yield FoundCause(TWICE, extra.subject, (evidence,), remedy, (node.subject,))


def _removal(plugin: Component) -> str:
    """Return the command that removes the plugin for good: its owner, or its release of Helm, would create it again."""
    owner, release = plugin.meta.owner, release_of(plugin.meta)
    if _is_operators(plugin):
        policy = owner.name if owner is not None else "cluster-policy"
        off = json.dumps({"spec": {"devicePlugin": {"enabled": False}}}, separators=(",", ":"))
        patch = command("kubectl", "patch", "clusterpolicy", policy, "--type=merge", "-p", off)
        return f"{patch}, and set devicePlugin.enabled=false where the operator is installed from"
    if release is not None and plugin.meta.labels.get("helm.sh/chart", "").startswith("nvidia-device-plugin-"):
        return command("helm", "uninstall", release.name, "-n", release.namespace)
    return kubectl("delete", plugin.meta)


def _is_operators(component: Component) -> bool:
    owner = component.meta.owner
    return (owner is not None and owner.kind == "ClusterPolicy") or (
        component.meta.labels.get("app") == "nvidia-device-plugin-daemonset"
    )


def _by_node(plugins: Iterable[Component]) -> Mapping[str, list[tuple[Component, Pod]]]:
    """Return the plugins' pods that have not ended, by node."""
    pods = ((plugin, pod) for plugin in plugins for pod in plugin.pods)
    return grouped((pod.spec.node, (plugin, pod)) for plugin, pod in pods if pod.spec.node and not pod.over)


def _is_settled(pod: Pod, now: datetime) -> bool:
    ready = pod.condition("Ready")
    starts = [state.started for state in pod.states if state.started is not None]
    since = (ready.since if ready is not None else None) or max(starts, default=pod.meta.created)
    return since is None or now - since > _REGISTERS


def _by_agent(node: Node) -> Iterator[str]:
    """Yield our agent's record of the node's GPUs."""
    if counts := recorded_gpus(node):
        yield counts
    for finding in node.findings[:3]:
        yield f"agent's record: {finding.reason} on {finding.subject}" + (
            f": {finding.detail}" if finding.detail else ""
        )


def _why_gpu(node: Node) -> str:
    labels = node.meta.labels
    names = ("nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.present")
    signs = [f"{name}={labels[name]}" for name in names if name in labels]
    signs += [f"{key}={text}" for key, text in labels.items() if "10de.present" in key or "gpu-manufacturer" in key]
    signs += [f"{key}={text}" for key, text in labels.items() if key.endswith(("/accelerator", "gke-accelerator"))]
    signs += [f"capacity {name}={node.capacity[name]}" for name in devices_in(node.capacity)]
    return ", ".join(signs[:3]) or "by its labels"


def _offers(node: Node) -> str:
    names = devices_in((*node.capacity, *node.allocatable))
    parts = (
        f"{name} {node.allocatable.get(name, 'absent')} allocatable of {node.capacity.get(name, 'absent')}"
        for name in names
    )
    return f"{node.subject}: {', '.join(parts)}" if names else f"{node.subject} offers no GPU resource"


def find_slices(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield GPU nodes on which the DRA driver runs with GPUs enabled and that no ResourceSlice lists."""
    drivers = [each for each in components(snapshot) if each.role is Role.DRA_DRIVER and each.meta.kind == "DaemonSet"]
    listed = sliced_nodes(snapshot, (_GPU_DRIVER,))
    is_served = bool(listed) or any(device_class.meta.name == _GPU_DRIVER for device_class in snapshot.device_classes)
    for node in snapshot.nodes if is_served and drivers else ():
        if not has_nvidia(node) or node.name in listed or not is_judged(node, snapshot.now) or is_changed(node):
            continue
        if snapshot.gpu_clusters and not any(driver.pod_on(node.name) for driver in drivers):
            if not offers_gpus(node) and not is_for_machines(node):
                yield _without_driver(node, drivers[0])
            continue
        for driver in filter(_gives_gpus, drivers):
            pod = driver.pod_on(node.name)
            if pod is not None and is_ready(pod) and not snapshot.is_new(pod.meta, YOUNG):
                ready = f"{pod.subject} is ready on {node.subject}"
                missing = f"no ResourceSlice of {_GPU_DRIVER} lists {node.subject}"
                remedy = f"Read its log there: {logs(pod.meta, '-c', 'gpus', '--tail=50')}"
                because = origins((NOT_READY[Role.DRIVER], KEPT_FROM_WORK), node.subject)
                yield found_on(node.subject, NO_SLICES, (ready, missing), (remedy,), because)


def _without_driver(node: Node, driver: Component) -> FoundCause:
    """Return the result for a node without driver pod that a GPUCluster should serve."""
    evidence = (f"{node.subject} has GPUs, and the GPU operator offers them by DRA", why_not_on(driver, node))
    labels = kubectl("get", node.meta, "--show-labels")
    wanted = ", ".join(f"{key}={value}" for key, value in driver.spec.node_selector.items())
    remedy = f"Find out why the operator has not set the label {wanted or 'for it'}: {labels}"
    because = origins((NOT_READY[Role.OPERATOR], NOT_READY[Role.DRA_DRIVER]), driver.subject)
    return found_on(node.subject, NO_SLICES, evidence, (remedy,), because)


def _gives_gpus(driver: Component) -> bool:
    """Whether GPUs are enabled: off by default in the chart, which has one container for each enabled kind."""
    return any(container.name in ("gpus", "gpu-kubelet-plugin") for container in driver.spec.containers)


def why_not_on(plugin: Component, node: Node) -> str:
    """Return why no ready pod of the plugin is on the node."""
    taints = refused(plugin.spec, node)
    if taints:
        return f"{plugin.subject} does not tolerate {', '.join(map(str, taints))}"
    if not is_for(plugin.spec, node):
        return f"{plugin.subject} does not select it"
    return f"{plugin.subject} has no ready pod there"


@lru_cache(maxsize=1)
def why_not_offered(snapshot: Snapshot) -> tuple[Origin, ...]:
    """Return all possible reasons why no node offers a GPU, each with its subject.

    The result is cached, because it is needed for each waiting pod.
    """
    subjects = [node.subject for node in snapshot.nodes if has_nvidia(node)]
    subjects += stack(snapshot)
    return (MISSING.name, f"resource/{GPU}"), *origins(OFFERS_NONE, *subjects)


def stack(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the workloads that make a node offer GPUs."""
    return tuple(component.subject for component in components(snapshot) if component.role in _STACK)


def why_none_left(node: str, workloads: Iterable[str]) -> tuple[Origin, ...]:
    """Return all possible reasons why a node offers none of its GPUs any more.

    UNHEALTHY is left out, because these reasons explain it: none of the GPUs is reported as healthy.
    """
    return origins((cause for cause in OFFERS_NONE if cause is not UNHEALTHY), node, *workloads)


@lru_cache(maxsize=1)
def why_not_cut(snapshot: Snapshot) -> tuple[Origin, ...]:
    """Return all possible reasons why no node offers a MIG profile."""
    nodes = [node.subject for node in snapshot.nodes if has_nvidia(node)]
    return tuple((cause.name, node) for node in nodes for cause in (GEOMETRY, MIG_FAILED, MIG_PENDING))


_INSTALL = "Install the GPU operator, or only NVIDIA's device plugin if driver and toolkit are installed on the hosts."
SEARCHES = (
    Search((NOT_OFFERED, UNHEALTHY, FEWER, TWICE), ("Node",), find),
    Search((MISSING,), ("Node", "Pod"), find_missing),
    Search((NOT_OFFERED, UNHEALTHY), (), find_in_logs),
    Search((NO_SLICES,), ("Node", "Pod", "ResourceSlice"), find_slices),
)
