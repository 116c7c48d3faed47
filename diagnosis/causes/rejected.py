"""Find GPU pods that a scheduler bound to a node and its kubelet rejected: they stay Failed.

A rejected pod is never retried. Its controller makes another pod, which may be rejected for the same reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import timedelta

from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes.components import hint
from gpu_healthcheck.diagnosis.causes.hami import webhook as hami
from gpu_healthcheck.diagnosis.causes.hami.denials import NODE_NAMED, PLUGIN_FILES
from gpu_healthcheck.diagnosis.causes.hami.webhook import NOT_SEEN
from gpu_healthcheck.diagnosis.facts.commands import kubectl, pods_on
from gpu_healthcheck.diagnosis.facts.components import is_ready
from gpu_healthcheck.diagnosis.facts.gpu_nodes import has_nvidia, is_judged
from gpu_healthcheck.diagnosis.facts.gpu_requests import (
    asks_for_accelerators,
    claims_gpus,
    gpu_claims,
    gpu_pods,
    gpus_of,
    is_gpu,
)
from gpu_healthcheck.diagnosis.facts.kubelet_devices import (
    OUT_OF,
    FreeCount,
    free_counts,
    is_stale,
    names_lost_gpu,
    partly_offered,
    restart_kubelet,
)
from gpu_healthcheck.diagnosis.facts.placement import has, offers, selects
from gpu_healthcheck.diagnosis.facts.safe_steps import (
    keep_off,
    let_in,
    plugin_pods,
    recreate,
    repair_gpu,
    restart_plugin,
)
from gpu_healthcheck.diagnosis.facts.symptoms import (
    Recognised,
    RecognisedPod,
    Symptom,
    recognised,
    replaced,
    scheduled_at,
    shortened,
    subject_of,
    texts_in,
)
from gpu_healthcheck.diagnosis.model import (
    Cause,
    CauseSeverity,
    Certainty,
    Family,
    FoundCause,
    Link,
    Search,
    TextSource,
    origins,
    rejecting,
)
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.text.moments import EARLIEST

NO_DEVICES = ("NodeKeptFromWork", "DevicePluginNotReady", "DevicePluginMissing", "GpusNotOffered", "UnhealthyGpus")
"""Causes that leave a kubelet without devices."""
_DEVICE_MANAGER = "kubelet, pkg/kubelet/cm/devicemanager/manager.go"


_accepted_on_node = Family(Link.ACCEPTED, of_node=True)
_accepted = Family(Link.ACCEPTED, severity=CauseSeverity.MEDIUM)
TOO_FEW = _accepted_on_node(
    "GpusUnavailableAtAdmission",
    "The kubelet had fewer free and healthy devices than the scheduler had counted, and rejected the pod.",
    "Check which devices are unhealthy, or owned by a pod that the scheduler does not count. If all are "
    "healthy and the node's pods request fewer than the kubelet counts, restart the kubelet; recreate the pods.",
    rejecting(r"requested number of devices unavailable for", _DEVICE_MANAGER),
    source=f"{_DEVICE_MANAGER}: `requested number of devices unavailable`",
    follows=NO_DEVICES,
)
NO_HEALTHY = _accepted_on_node(
    "NoHealthyGpuAtAdmission",
    "None of the node's devices is healthy: their plugin has not registered again, or reports all as unhealthy.",
    "Restore the device plugin on the node, or fix the GPUs that it reports; then recreate the Failed pods.",
    rejecting(r"no healthy devices present", _DEVICE_MANAGER),
    source=f"{_DEVICE_MANAGER}: `no healthy devices present`",
    follows=NO_DEVICES,
)
NO_LONGER_HEALTHY = _accepted_on_node(
    "AllocatedGpuUnhealthy",
    "A device that the kubelet had already given to the pod is no longer healthy, so it may not start there again.",
    "Recreate the Failed pod, so that it gets other devices; the plugin's log says why this one is unhealthy.",
    rejecting(r"previously allocated devices are no longer healthy", _DEVICE_MANAGER),
    source=f"{_DEVICE_MANAGER}: `previously allocated devices are no longer healthy`",
    follows=NO_DEVICES,
)
UNREGISTERED = _accepted_on_node(
    "DeviceResourceUnregistered",
    "No device plugin has registered the resource since the kubelet's last start.",
    "Restore the device plugin on the node, then recreate the Failed pods.",
    rejecting(r"cannot allocate unregistered device", _DEVICE_MANAGER),
    source=f"{_DEVICE_MANAGER}: `cannot allocate unregistered device`",
    follows=NO_DEVICES,
)
SHARED_OVER_REQUEST = _accepted(
    "SharedGpuRequestTooLarge",
    "The pod requests more than one replica of a shared GPU, which the device plugin is configured to refuse.",
    "Request one replica: replicas share a GPU, and two replicas are not two GPUs.",
    rejecting(
        r"maximum request size for shared resources is \d{1,6}; found (\d{1,6})|invalid request for sharing GPU",
        "k8s-device-plugin, internal/rm; GKE's device plugin, pkg/gpu/nvidia/gpusharing",
    ),
    severity=CauseSeverity.HIGH,
    source="NVIDIA's device plugin, `failRequestsGreaterThanOne`",
)
UNKNOWN_DEVICE = _accepted_on_node(
    "DeviceUnknownToPlugin",
    "The kubelet requested a device that the plugin no longer has: the GPU is gone, or the MIG geometry changed.",
    "Restart the device plugin on the node, so that it reports its devices; then recreate the Failed pods.",
    rejecting(r"unknown device", "k8s-device-plugin, Allocate"),
    source="NVIDIA's device plugin, Allocate: `unknown device`",
    follows=NO_DEVICES,
)
GPU_LOST = _accepted_on_node(
    "GpuLostAtAllocation",
    "The device plugin could not reach a GPU when it was to allocate it.",
    "Keep new pods off the node, which rejects all of them; then reset or reboot it, and recreate the Failed pods.",
    rejecting(r"GPU is lost|GPU_IS_LOST|fallen off the bus", "kubernetes issue 97131"),
    source="NVML's `GPU is lost`, passed on by the device plugin",
    follows=NO_DEVICES,
)
PLUGIN_FAILED = _accepted_on_node(
    "DevicePluginAllocateFailed",
    "The device plugin answered the kubelet's request for devices with an error, or not at all.",
    "Keep new pods off the node; if the error names a GPU, reset or reboot it, otherwise restart the plugin; then make "
    "the Failed pods again.",
    rejecting(
        r"(?:Allocate|Update plugin resources|GetPreferredAllocation rpc) failed|which is unexpected", _DEVICE_MANAGER
    ),
    source=f"{_DEVICE_MANAGER}: `Allocate failed due to …, which is unexpected`",
    follows=NO_DEVICES,
)
TOPOLOGY = _accepted_on_node(
    "TopologyNotAligned",
    "The kubelet's topology manager requires devices and CPUs of one NUMA node, and none has enough left.",
    "Request at most one NUMA node's resources, free them, or choose a milder topologyManagerPolicy for the node.",
    severity=CauseSeverity.MEDIUM,
    source="kubelet, TopologyAffinityError: `Resources cannot be allocated with Topology locality`",
)
OVERBOOKED = _accepted_on_node(
    "NodeOverbooked",
    "A pod was bound to a node without room for it: by its own nodeName, or by a second scheduler.",
    "Let one scheduler schedule all pods of these nodes, and remove nodeName from the pod template.",
    source="kubelet, OutOf…: `Node didn't have enough resource`",
)
WRONG_NODE = _accepted(
    "NodeRefusedBySelector",
    "The kubelet rejected the pod because its selector, affinity or tolerations do not match its node.",
    "Remove nodeName from the pod template, or restore the label that the pod requires.",
    source="kubelet, `Predicate NodeAffinity failed`",
)
EVICTED = _accepted_on_node(
    "GpuPodEvicted",
    "The kubelet evicted the pod because its node ran low on memory, disk or PIDs, or the pod exceeded its limit.",
    "Provide more of the exhausted resource: most often disk space for images and checkpoints.",
    severity=CauseSeverity.MEDIUM,
    source="kubelet's eviction manager: `The node was low on resource`",
)
OTHERWISE = _accepted(
    "GpuPodRejected",
    "The kubelet rejected the pod for another reason.",
    "Follow its message, then recreate the Failed pod.",
)

_hami = Family(Link.ACCEPTED)
NUMBER = _hami(
    "HamiDeviceNumberMismatch",
    "The kubelet requests another number of cards from HAMi's device plugin than the scheduler noted on the pod.",
    "Set nvidia.com/gpu as a limit only, and as a whole number; then recreate the pod, so that it is scheduled anew.",
    rejecting(r"device number not matched", PLUGIN_FILES),
    source=f"{PLUGIN_FILES}: `device number not matched`",
)
CARD_GONE = _hami(
    "HamiAllocatedCardGone",
    "HAMi's device plugin no longer finds the card that HAMi's scheduler chose.",
    "Check the node's cards, restart the device plugin pod there, then recreate the Failed pod.",
    rejecting(r"resolve allocated NVIDIA devices", PLUGIN_FILES),
    source=f"{PLUGIN_FILES}: `resolve allocated NVIDIA devices`",
    of_node=True,
    follows=NO_DEVICES,
)
_ALLOCATION = "UnexpectedAdmissionError"
_BY_REASON = (
    ("TopologyAffinityError", "", TOPOLOGY),
    ("NodeAffinity|MatchNodeSelector|TaintToleration", "", WRONG_NODE),
    # The kubelet did not yet know the devices of its node, such as after a reboot.
    (r"OutOf.{1,190}/.{0,60}(?:gpu|mig-).{0,60}", "used: 0, capacity: 0", UNREGISTERED),
    ("OutOf.{1,200}", "", OVERBOOKED),
    ("Evicted", "low on resource|exceeds? (?:the )?(?:total )?limit|exceeded its|ephemeral", EVICTED),
    # An intended end is no rejection.
    ("Evicted|NodeShutdown|Shutdown|Terminated|Preempting|DeadlineExceeded|NodeLost", "", None),
    (".{0,999}", r"Pod was rejected|Predicate \w{1,40} failed|Pod admission denied", OTHERWISE),
)
"""Causes by the pod's reason as a whole, and by a part of its message. The first row that matches counts."""
ALLOCATION = (
    *(SHARED_OVER_REQUEST, NOT_SEEN, NODE_NAMED, NUMBER, CARD_GONE, NO_HEALTHY, NO_LONGER_HEALTHY, UNREGISTERED),
    *(TOO_FEW, GPU_LOST, UNKNOWN_DEVICE, PLUGIN_FAILED),
)
"""Causes by `status.message` with the reason UnexpectedAdmissionError. The last one matches all other texts."""
_DESCRIBED = (
    *(SHARED_OVER_REQUEST, WRONG_NODE, EVICTED, OTHERWISE, TOPOLOGY, NOT_SEEN, NODE_NAMED, NUMBER, NO_LONGER_HEALTHY),
)
_OF_TEMPLATE = (SHARED_OVER_REQUEST, WRONG_NODE, TOPOLOGY, NODE_NAMED, NUMBER)
"""Causes whose own remedy says all, and those of them that lie in the pod's specification."""
_OF_COUNT = (TOO_FEW, OVERBOOKED)
"""Causes by a number of free devices, which the kubelet and the scheduler count differently."""
_IN_UNHEALTHY = "Follow the steps of UnhealthyGpus of the node, which recreate these pods too."
_FLAPS = timedelta(minutes=30)
"""Rejections for longer than this may go on, although all devices are offered at this moment."""


def find_rejected(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield one result for each cause and object to change, however many pods were rejected."""
    together: defaultdict[tuple[str, str], list[RecognisedPod]] = defaultdict(list)
    claims = gpu_claims(snapshot)
    for pod in snapshot.pods:
        is_asking = pod.phase == "Failed" and (asks_for_accelerators(pod.spec) or claims_gpus(pod, claims))
        if not is_asking or replaced(snapshot, pod):
            continue
        known = _recognise(pod)
        node = snapshot.by_node.get(pod.spec.node)
        if known is not None and known.cause is UNREGISTERED and node is not None and not has_nvidia(node):
            known = replace(known, cause=OVERBOOKED)  # by nodeName on a node without GPUs
        if known is not None:
            subject = _subject(snapshot, pod, known.cause)
            together[known.cause.name, subject].append(RecognisedPod(pod, known))
    for (_, subject), rejections in together.items():
        yield _found(snapshot, subject, rejections)


def _recognise(pod: Pod) -> Recognised | None:
    symptom = Symptom(TextSource.POD, pod.reason, pod.message)
    if pod.reason == _ALLOCATION:
        known = recognised(texts_in(TextSource.POD, ALLOCATION), (symptom,))
        return known or Recognised(PLUGIN_FAILED if pod.message else OTHERWISE, symptom, shortened(pod.message))
    for reason, message, cause in _BY_REASON:
        if re.fullmatch(reason, pod.reason, re.DOTALL) and re.search(message, pod.message, re.IGNORECASE):
            return Recognised(cause, symptom, shortened(pod.message)) if cause is not None else None
    return None


def _subject(snapshot: Snapshot, pod: Pod, cause: Cause) -> str:
    """Return the object to change: the node, or the object that a person wrote if that is at fault."""
    if cause is OVERBOOKED and _names_node(snapshot, pod):
        return snapshot.line(pod.meta)[-1]
    return subject_of(snapshot, pod, cause)


def _names_node(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod template has a nodeName, which bypasses the scheduler."""
    makers = (snapshot.workload.get(text) for text in snapshot.line(pod.meta)[1:])
    return any(maker is not None and maker.spec is not None and maker.spec.node for maker in makers)


def _found(snapshot: Snapshot, subject: str, rejections: list[RecognisedPod]) -> FoundCause:
    first = rejections[0]
    cause, pods = first.known.cause, [rejection.pod for rejection in rejections]
    node = snapshot.by_node.get(first.pod.spec.node)
    counts = free_counts(snapshot, node, pods) if cause in _OF_COUNT else []
    evidence = [f"{each.pod.subject}: {each.known.symptom.reason}: {each.known.quote}" for each in rejections[:3]]
    evidence += _of_makers(snapshot, pods)
    evidence += _of_node(snapshot, node, pods)
    evidence += [f"{subject}: {count}" for count in counts[-1:] if count.contradicts]
    evidence += _of_room(snapshot, first) if cause is OVERBOOKED else ()
    evidence += _of_selector(node, pods) if cause is WRONG_NODE else ()
    remedy = tuple(_remedy(snapshot, rejections, counts))
    certainty = Certainty.LIKELY if cause is OTHERWISE else Certainty.PROVEN
    because = hami.above(snapshot, first.pod) if cause is NOT_SEEN else ()
    if cause.follows and node is not None:
        plugins = {snapshot.line(pod.meta)[-1] for pod in plugin_pods(snapshot, node.name)}
        because += origins(("TwoDevicePlugins",), *sorted(plugins))
    return FoundCause(cause, subject, tuple(evidence), remedy, tuple(pod.subject for pod in pods), certainty, because)


def _remedy(snapshot: Snapshot, rejections: list[RecognisedPod], counts: list[FreeCount]) -> Iterator[str]:
    """Yield the steps: what ends the rejections, unless they have ended, and then what recreates the pods."""
    cause, pods = rejections[0].known.cause, [rejection.pod for rejection in rejections]
    node = snapshot.by_node.get(pods[0].spec.node)
    again = list(recreate(snapshot, pods, changed=cause in _OF_TEMPLATE))
    by_kubelet = any(count.contradicts for count in counts) and not _names_node(snapshot, pods[0])
    if not pods[0].message:
        yield f"Read why the kubelet rejected it, and end that first: {kubectl('describe', pods[0].meta)}"
    elif cause in _DESCRIBED or (cause is OVERBOOKED and not by_kubelet):
        yield cause.remedy
    elif node is not None and is_stale(snapshot, counts) and len(_schedulers(snapshot, node)) < 2:
        yield (
            "The kubelet's own list of devices in use is stale. If `nvidia-smi` on the node shows no process of a "
            f"deleted pod, restart the kubelet there: {restart_kubelet(node)}."
        )
    elif node is not None and _is_over(snapshot, node, cause, pods) and (by_kubelet or cause not in _OF_COUNT):
        yield f"{node.subject} offers all its GPUs and has no fault now: only the rejected pods have to be recreated."
        if counts:
            again.append(f"If they are rejected again, restart the kubelet on the node: {restart_kubelet(node)}.")
    elif cause is GPU_LOST or any(map(names_lost_gpu, pods)):
        is_below = node is not None and is_judged(node, snapshot.now) and any(partly_offered(node))
        is_below = is_below and any(map(names_lost_gpu, pods))
        again = [_IN_UNHEALTHY] if is_below else [*repair_gpu(snapshot, pods[0].spec.node, pods)]
    else:
        yield from _restoration(snapshot, rejections)
    yield from again


def _restoration(snapshot: Snapshot, rejections: list[RecognisedPod]) -> Iterator[str]:
    """Yield the steps after which the node accepts pods again, if none of its GPUs is lost."""
    cause, name = rejections[0].known.cause, rejections[0].pod.spec.node
    if cause in _OF_COUNT:
        yield f"{cause.remedy} The node's pods: {pods_on(name)}"
    elif cause is PLUGIN_FAILED:
        known = filter(None, (hint(rejections[0].pod.message),))
        yield from (*keep_off(snapshot, name), *known, *restart_plugin(snapshot, name), *let_in(snapshot, name))
    else:
        yield from restart_plugin(snapshot, name)


def _is_over(snapshot: Snapshot, node: Node, cause: Cause, pods: Iterable[Pod]) -> bool:
    """Whether the reason for rejections has ended: the node is healthy and offers all its devices.

    A rejection by the plugin leaves no trace at the node, so a GPU pod that started since then has to show it.
    """
    asked = {name for pod in pods for container in pod.spec.containers for name in gpus_of(container)}
    times = [at for pod in pods if (at := scheduled_at(pod)) is not None]
    if not node.ready or node.faults or not all(map(is_ready, plugin_pods(snapshot, node.name))):
        return False
    if not asked or not all(0 < has(node, name) <= offers(node, name) for name in asked) or not times:
        return False
    if cause in (NO_HEALTHY, UNREGISTERED, *_OF_COUNT):
        return max(times) - min(times) <= _FLAPS
    started = (pod for pod in gpu_pods(snapshot) if pod.spec.node == node.name and pod.phase == "Running")
    return any((scheduled_at(pod) or EARLIEST) > max(times) for pod in started)


def _of_makers(snapshot: Snapshot, pods: Iterable[Pod]) -> Iterator[str]:
    """Yield the workloads that keep creating pods that are rejected."""
    made: defaultdict[str, int] = defaultdict(int)
    for pod in pods:
        made[snapshot.line(pod.meta)[-1]] += 1
    yield from (f"{maker}: {count} of its pods were rejected" for maker, count in made.items() if count > 1)


def _of_node(snapshot: Snapshot, node: Node | None, pods: Iterable[Pod]) -> Iterator[str]:
    if node is None:
        return
    asked = {name for pod in pods for container in pod.spec.containers for name in gpus_of(container)}
    for name in sorted(asked & {*node.capacity, *node.allocatable}) or sorted(asked):
        there, offered = node.capacity.get(name, "none"), node.allocatable.get(name, "none")
        yield f"{node.subject}: {name}: capacity {there}, allocatable {offered} now"
    schedulers = _schedulers(snapshot, node)
    if len(schedulers) > 1:
        yield f"{node.subject}: its GPU pods were bound by {', '.join(schedulers)}"


def _schedulers(snapshot: Snapshot, node: Node) -> list[str]:
    gpu_pods_there = (pod for pod in snapshot.pods_on.get(node.name, ()) if any(map(gpus_of, pod.spec.containers)))
    return sorted({pod.spec.scheduler for pod in gpu_pods_there if pod.spec.scheduler})


def _of_room(snapshot: Snapshot, first: RecognisedPod) -> Iterator[str]:
    if _names_node(snapshot, first.pod):
        yield f"the template itself names the node: nodeName {first.pod.spec.node}"
    match = OUT_OF.search(first.pod.message)
    if match is not None and int(match["requested"]) > int(match["capacity"]) and is_gpu(match["resource"]):
        yield f"{match['requested']} requested, and the node had {match['capacity']} in total"


def _of_selector(node: Node | None, pods: Iterable[Pod]) -> Iterator[str]:
    if node is None:
        return
    for pod in pods:
        for key, value in pod.spec.node_selector.items():
            label = node.meta.labels.get(key)
            if label != value:
                yield f"{pod.subject} requires {key}={value}; {node.subject} has {label or 'no such label'}"
        if not selects(pod.spec, node):
            return


CAUSES = (
    *(TOO_FEW, NO_HEALTHY, NO_LONGER_HEALTHY, UNREGISTERED, SHARED_OVER_REQUEST, UNKNOWN_DEVICE, GPU_LOST),
    *(NOT_SEEN, NODE_NAMED, NUMBER, CARD_GONE, PLUGIN_FAILED, TOPOLOGY, OVERBOOKED, WRONG_NODE, EVICTED, OTHERWISE),
)
SEARCHES = (Search(CAUSES, ("Pod",), find_rejected),)
