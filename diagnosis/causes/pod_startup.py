"""Find GPU pods on a node whose containers do not start, from messages about runtime, image or volume.

A table maps messages of the kubelet, the container runtime and NVIDIA's toolkit to causes. Pods that have progressed
since, or that have waited only minutes, are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes import pod_startup_table as table
from gpu_healthcheck.diagnosis.causes.claim_preparation import OF_CLAIM, explained
from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.running import DEVICE_FILE_REASONS, DEVICE_FILES
from gpu_healthcheck.diagnosis.causes.runtime_handlers import HANDLERS
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, logs
from gpu_healthcheck.diagnosis.facts.components import Role, role_of
from gpu_healthcheck.diagnosis.facts.crio_advice import without_class
from gpu_healthcheck.diagnosis.facts.dra_drivers import CLAIM_EVENT, claims_channel
from gpu_healthcheck.diagnosis.facts.driver_steps import gke_driver_steps
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods
from gpu_healthcheck.diagnosis.facts.log_lines import fix_of
from gpu_healthcheck.diagnosis.facts.node_services import distribution_of, runtime_steps
from gpu_healthcheck.diagnosis.facts.runtime_advice import keep_version
from gpu_healthcheck.diagnosis.facts.safe_steps import restart_plugin
from gpu_healthcheck.diagnosis.facts.symptoms import (
    Recognised,
    RecognisedPod,
    Symptom,
    is_stuck,
    of_events,
    of_state,
    older,
    recognised,
    replaced,
    scheduled_at,
    shortened,
    standing_events,
    texts_in,
)
from gpu_healthcheck.diagnosis.model import Cause, Certainty, FoundCause, Link, Search, TextSource
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Container, ContainerState, Pod
from gpu_healthcheck.diagnosis.snapshot.workloads import KINDS as WORKLOADS
from gpu_healthcheck.healthcheck.catalog.cuda_errors import fix_of as fix_of_error
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import GKE

_EVENT = TextSource.EVENT
_INJECTION = texts_in(_EVENT, (DEVICE_FILES, NOT_READY[Role.MPS], *table.INJECTION))
_CREATION = texts_in(_EVENT, (table.COMMAND_MISSING, table.CLAIM_FAILS))
_CONFIG = texts_in(_EVENT, (table.CONFIG_MISSING,))
_IMAGES = texts_in(_EVENT, (table.IMAGE_NO_SPACE, table.IMAGE_REFUSED, table.IMAGE_PLATFORM, table.IMAGE_ABSENT))
_VOLUMES = (
    (table.DRIVER_NOT_LOADED, table.NO_DEVICE_FILE),
    *texts_in(_EVENT, (table.VOLUME_ELSEWHERE, table.VOLUME_FAILS)),
)
"""Texts of FailedMount and FailedAttachVolume; the last one matches all other texts."""
_ATTACHING = ((table.ATTACH, table.ATTACH.texts[0]),)
_DEFERRED, _ATTACHES = "NetworkDeviceAttachDeferred", 5.0
"""Event while DRANET still attaches the devices, and the minutes that this may take."""
_SANDBOXES = texts_in(_EVENT, (table.RUNTIME_SILENT, table.HANDLER_TYPELESS, table.NETWORK, table.SANDBOX))
"""Texts of FailedCreatePodSandBox and NetworkNotReady; a missing handler has its own family."""
_IMAGE_REASONS = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")
)
START_REASONS = frozenset(("CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"))
_SANDBOX_EVENTS = ("FailedCreatePodSandBox", "NetworkNotReady", "FailedPodSandBoxStatus")
_VOLUME_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_BETWEEN_FILES = re.compile(r"[;\s]+")
"""Detail of an agent's finding: `no /dev/nvidiactl; no /dev/nvidia-uvm`."""
_PASSES = re.compile(
    r"object \"[^\"]{1,320}\"/\"[^\"]{1,320}\" not registered|failed to sync (?:configmap|secret) cache"
)
"""A kubelet that has just started does not yet know the objects that the pod refers to."""
TOOL = re.compile(r'exec: \\?"nvidia-smi\\?":', re.IGNORECASE)
"""If nvidia-smi is missing in a container, no GPU was injected: reported by the family of running pods."""
_BY_TOOLKIT = re.compile(
    r"(?:OCI runtime|create(?:d|pod)? (?:containerd|shim)|CDI device|start container|\bhook)[^\n]{0,600}"
    r"(?:nvidia-c(?!uda[:@])|nvidia\.com/|libnvidia|no-gpu-has-|No help topic for)"
)
"""Failed start of a container in which NVIDIA's toolkit or a device of NVIDIA takes part."""
_ARCHITECTURE = "kubernetes.io/arch"
_MAKERS = frozenset(kind.lower() for kind in WORKLOADS)
_LASTS = 60.0
"""Minutes: longer than a model download takes."""
_YOUNG_POD, _YOUNG_NODE, _ENOUGH_TIMES = 1.5, 10.0, 4
"""Minutes: a pod's first attempts may fail while its volume or network is being created."""
_VOLUME = re.compile(r'\A.*?\bvolume "?([^"\s]{1,253}).*\Z', re.DOTALL)
_ATTACHED, _NOT_ATTACHED = "SuccessfulAttachVolume", "FailedAttachVolume"
_DETACHED = 2.0
"""Minutes after a pod's grace period in which its node detaches the volumes."""
_BY_VENDOR = {
    "nvidia.com/gpu": "Generate the specification again: `systemctl restart nvidia-cdi-refresh`, or "
    "`nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml`",
    "runtime.nvidia.com/": "The toolkit makes this specification at each start, and fails. The reason is the error of "
    "`nvidia-ctk cdi generate` on the node, mostly a driver that is not loaded. Until that is fixed, it can inject "
    'without CDI: nvidia-container-runtime.mode = "legacy" in the config.toml of the toolkit.',
}
"""Fixes by the begin of a CDI device that no specification has."""
_MANAGEMENT, _PLUGINS = "management.nvidia.com/", "k8s.device-plugin.nvidia.com/"
_OF_MANAGEMENT = (
    "For pods without a class, the node's specification has only the device all; generate it with each GPU: "
    "`nvidia-ctk cdi generate --vendor=management.nvidia.com --output=/var/run/cdi/management.nvidia.com-gpu.yaml`"
)


def find_not_started(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield one result for each cause and object to change, however many pods wait."""
    together: defaultdict[tuple[str, str], list[RecognisedPod]] = defaultdict(list)
    for pod in _suspects(snapshot):
        known = _recognise(snapshot, pod)
        if known is not None:
            known = _as_on_the_node(snapshot, pod, known)
            together[known.cause.name, _subject(snapshot, pod, known)].append(RecognisedPod(pod, known))
    for (_, subject), stuck in together.items():
        yield _found(snapshot, subject, stuck)


def _as_on_the_node(snapshot: Snapshot, pod: Pod, known: Recognised) -> Recognised:
    """Return DRIVER_NOT_LOADED instead of a stale specification if the agent reports its device as missing."""
    node = snapshot.by_node.get(pod.spec.node)
    if known.cause is not table.CDI_STALE or not known.groups or node is None:
        return known
    found = (finding.detail for finding in node.findings if finding.reason in DEVICE_FILE_REASONS)
    files = {word.rpartition("/")[2] for detail in found for word in _BETWEEN_FILES.split(detail)}
    return replace(known, cause=DEVICE_FILES) if known.groups[0].rpartition("/")[2] in files else known


def _suspects(snapshot: Snapshot) -> Iterator[Pod]:
    """Yield GPU pods, pods with an IMEX channel, and pods of components that GPUs need, that do not run."""
    with_gpus = {pod.subject for pod in gpu_pods(snapshot)}
    for pod in snapshot.pods:
        if not is_stuck(pod) and (pod.phase != "Failed" or pod.reason or replaced(snapshot, pod)):
            continue
        if role_of(pod.meta, {}, pod.spec) is not None:
            if not pod.over and not _is_at_work(snapshot, pod):
                yield pod
        elif pod.subject in with_gpus or claims_channel(snapshot, pod) or _fails_by_toolkit(snapshot, pod):
            yield pod


def _fails_by_toolkit(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether NVIDIA's toolkit keeps any pod from starting, as by a class, a claim or the node's default runtime."""
    states = (symptom for state in pod.states for symptom in of_state(state))
    return any(_BY_TOOLKIT.search(each.text) for each in (*states, *of_events(standing_events(snapshot, pod))))


def _is_at_work(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the component's node is only being set up, or does not answer."""
    node = snapshot.by_node.get(pod.spec.node)
    if not snapshot.sees("Node"):
        return not older(snapshot, scheduled_at(pod), _YOUNG_NODE)
    return node is None or not node.ready or not older(snapshot, node.meta.created, _YOUNG_NODE)


def _recognise(snapshot: Snapshot, pod: Pod) -> Recognised | None:
    events = of_events(_standing(snapshot, pod))
    early = _is_early(snapshot, pod)
    attaching = _attaching(snapshot, pod, events)
    if attaching is not None and not early:
        return attaching
    for state in pod.states:
        found = _of_container(state, events)
        if found is not None:
            # A registry that did not respond once may respond the next time.
            return None if found.cause is table.IMAGE_FAILS and early else found
    if pod.over or any(each.running or each.ended for each in pod.states if not each.init) or early:
        return None
    known = _of_pod(events)
    if known is None and not pod.states:
        # The kubelet's events about containers that have no state yet.
        known = recognised((*_INJECTION, *_CONFIG, *_IMAGES, *_CREATION), _failed(events))
    return None if known is not None and known.cause is table.VOLUME_ELSEWHERE and _is_left(snapshot, pod) else known


def _attaching(snapshot: Snapshot, pod: Pod, events: Iterable[Symptom]) -> Recognised | None:
    """Recognise devices that DRANET has not attached, unless it may still be about to."""
    waits = (symptom for state in pod.states for symptom in of_state(state) if symptom.place is TextSource.WAITING)
    late = (each for each in events if each.reason != _DEFERRED or older(snapshot, each.at, _ATTACHES))
    return recognised(_ATTACHING, (*late, *waits))


def _standing(snapshot: Snapshot, pod: Pod) -> Iterator[Event]:
    """Yield the current events, without those about a volume that has been attached since."""
    about = snapshot.events_about.get(pod.subject, ())
    attached = {_VOLUME.sub(r"\1", event.message): event for event in about if event.reason == _ATTACHED}
    for event in standing_events(snapshot, pod):
        since = attached.get(_VOLUME.sub(r"\1", event.message)) if event.reason == _NOT_ATTACHED else None
        if since is None or since.last is None or event.last is None or since.last < event.last:
            yield event


def _is_left(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether pods on other nodes still use the pod's volume, all of them terminating and only for a short time."""
    others = [
        one
        for one in snapshot.pods
        if one.meta.namespace == pod.meta.namespace
        and set(one.spec.volume_claims) & set(pod.spec.volume_claims)
        and one.spec.node not in ("", pod.spec.node)
        and not one.over
    ]
    return bool(others) and not any(older(snapshot, one.meta.deleted, _DETACHED) for one in others)


def _of_container(state: ContainerState, events: Iterable[Symptom]) -> Recognised | None:
    symptoms = tuple(each for each in of_state(state) if each.place is TextSource.WAITING or state.ended is not None)
    last = state.last_ended
    if last is not None and last.reason in START_REASONS and not state.running:
        symptoms = (*symptoms, Symptom(TextSource.ENDED, last.reason, last.message, state.name, last.at))
    reasons = {symptom.reason for symptom in symptoms}
    if reasons & _IMAGE_REASONS:
        return _of_image(symptoms, events)
    if "CreateContainerConfigError" in reasons:
        known = recognised(_CONFIG, (*symptoms, *_failed(events)))
        return known or _as(table.CREATION_FAILS, (*symptoms, *_failed(events)))
    if reasons & START_REASONS and recognised(HANDLERS, symptoms) is None:
        texts = (*symptoms, *_failed(events))
        if any(TOOL.search(symptom.text) for symptom in texts):
            return None
        return recognised((*_INJECTION, *_CREATION), texts) or _as(table.CREATION_FAILS, texts)
    return None


def _failed(events: Iterable[Symptom]) -> Iterator[Symptom]:
    return (event for event in events if event.reason == "Failed")


def _of_image(symptoms: Iterable[Symptom], events: Iterable[Symptom]) -> Recognised:
    """Recognise why an image can't be pulled.

    `ImagePullBackOff` gives no reason; the event before it does, as long as it is kept.
    """
    pulls = (event for event in _failed(events) if "pull" in event.text.lower() or "image" in event.text.lower())
    written = tuple(symptom for symptom in (*symptoms, *pulls) if symptom.text)
    return recognised(_IMAGES, written) or _as(table.IMAGE_FAILS, (*written, *symptoms))


def _of_pod(events: Iterable[Symptom]) -> Recognised | None:
    """Recognise a failure before any container starts, from the newest warning of the pod.

    Among warnings about volumes, use the most specific one.
    """
    symptoms = tuple(event for event in events if not _PASSES.search(event.text))
    for symptom in symptoms:
        if symptom.reason == CLAIM_EVENT:
            return recognised(texts_in(_EVENT, (table.CLAIM_API,)), (symptom,)) or _as(table.CLAIM_FAILS, (symptom,))
        if symptom.reason in _VOLUME_EVENTS:
            return recognised((*_CONFIG, *_VOLUMES), (each for each in symptoms if each.reason in _VOLUME_EVENTS))
        if symptom.reason in _SANDBOX_EVENTS:
            is_handler = recognised(HANDLERS, (symptom,)) is not None  # which has its own family
            return None if is_handler else recognised((*_INJECTION, *_SANDBOXES), (symptom,))
    return None


def _as(cause: Cause, symptoms: Iterable[Symptom]) -> Recognised:
    known = tuple(symptoms)
    best = next((each for each in known if each.text), known[0] if known else Symptom(TextSource.WAITING, "", ""))
    return Recognised(cause, best, shortened(best.text))


def _is_early(snapshot: Snapshot, pod: Pod) -> bool:
    node = snapshot.by_node.get(pod.spec.node)
    if node is not None and not older(snapshot, node.meta.created, _YOUNG_NODE):
        return True
    often = any(event.count >= _ENOUGH_TIMES for event in standing_events(snapshot, pod))
    return not often and not older(snapshot, scheduled_at(pod), _YOUNG_POD)


def _subject(snapshot: Snapshot, pod: Pod, known: Recognised) -> str:
    written = _written(snapshot, pod)
    if known.cause is table.CONFIG_MISSING and len(known.groups) == 2:
        kind, name = known.groups
        return f"{kind.lower()}/{pod.meta.namespace}/{name}"
    if known.cause in (table.VOLUME_ELSEWHERE, table.VOLUME_FAILS):
        return _claim(snapshot, pod, known.symptom.text) or written
    return f"node/{pod.spec.node}" if known.cause.of_node else written


def _written(snapshot: Snapshot, pod: Pod) -> str:
    """Return the object that a person wrote.

    For a component, this is its DaemonSet or Deployment, whichever operator made that.
    """
    line = snapshot.line(pod.meta)
    if role_of(pod.meta, {}, pod.spec) is None:
        return line[-1]
    return next((text for text in reversed(line) if text.partition("/")[0] in _MAKERS), line[0])


def _claim(snapshot: Snapshot, pod: Pod, text: str) -> str:
    """Return the claim of the volume that the text names, else the pod's only claim; '' if it is unknown."""
    own = [claim for claim in snapshot.volume_claims if claim.meta.namespace == pod.meta.namespace]
    for claim in own:
        if claim.volume and claim.volume in text and claim.meta.name in pod.spec.volume_claims:
            return claim.meta.subject
    only = pod.spec.volume_claims
    named = re.search(r'volume "kube-|hostPath|configmap|secret', text, re.IGNORECASE)
    return f"persistentvolumeclaim/{pod.meta.namespace}/{only[0]}" if len(only) == 1 and named is None else ""


def _found(snapshot: Snapshot, subject: str, stuck: list[RecognisedPod]) -> FoundCause:
    first = stuck[0]
    pod, known = first.pod, first.known
    evidence = [f"{one.pod.subject}: {one.known}" for one in stuck[:3]]
    is_about_image = known.cause.link is Link.PREPARED and "Image" in known.cause.name
    images = list(dict.fromkeys(each.image for each in _containers(stuck)))[:3] if is_about_image else []
    evidence += [f"image {image}" for image in images]
    if known.cause is table.START_KILLED:
        limits = (f"memory limit of {each.name}: {each.limits.get('memory', 'none')}" for each in _containers(stuck))
        evidence += list(dict.fromkeys(limits))[:3]
    evidence += _of_node(snapshot, pod, known.cause)
    look = f"Read all messages about it: {kubectl('describe', pod.meta)}"
    node = snapshot.by_node.get(pod.spec.node)
    remedy = (*_special(known, images, node), *_own(snapshot, known, stuck, node), look)
    affected = tuple(one.pod.subject for one in stuck)
    found = FoundCause(known.cause, subject, tuple(evidence), remedy, affected)
    is_of_claim = known.cause in (table.CLAIM_API, table.CLAIM_FAILS) or OF_CLAIM.search(known.symptom.text)
    return explained(snapshot, found, pod, known.symptom.text) if is_of_claim else found


def _own(snapshot: Snapshot, known: Recognised, stuck: list[RecognisedPod], node: Node | None) -> tuple[str, ...]:
    """Return the steps that end the cause on this node, by the whole message."""
    if node is not None and known.cause is table.RUNTIME_SILENT:
        return (*runtime_steps(node), *keep_version(snapshot, node))
    if known.cause is table.DRIVER_NOT_LOADED and node is not None and distribution_of(node) == GKE:
        return tuple(gke_driver_steps(node))
    if known.cause is table.CDI_UNRESOLVED and known.groups:
        return tuple(_of_device(snapshot, known.groups[0].strip(), [one.pod for one in stuck]))
    named = [*_containers(stuck)]
    if known.cause is table.START_KILLED and named and not any(each.limits.get("memory") for each in named):
        return (table.WITHOUT_LIMIT,)
    system = node.system if node is not None else ""
    fix = fix_of(f"{system}: {known.symptom.text}", table.START_FIXES) or fix_of_error(known.cause.name, known.quote)
    return (fix or known.cause.remedy,)


def _of_device(snapshot: Snapshot, device: str, pods: Sequence[Pod]) -> Iterator[str]:
    """Yield the steps for a CDI device without a specification, by the program that writes it."""
    if device.startswith(_MANAGEMENT):
        named = [pod for pod in pods if pod.spec.runtime_class]
        if named:
            yield "The class is for the operator's own pods; with CDI, GPU pods need none:"
            yield from without_class(snapshot, named)
        yield _OF_MANAGEMENT
    elif device.startswith(_PLUGINS):
        yield from restart_plugin(snapshot, pods[0].spec.node)
    else:
        yield next((fix for start, fix in _BY_VENDOR.items() if device.startswith(start)), table.CDI_UNRESOLVED.remedy)


def _containers(stuck: Iterable[RecognisedPod]) -> Iterator[Container]:
    """Yield the containers that the messages are about."""
    for one in stuck:
        yield from (each for each in one.pod.spec.containers if each.name == one.known.symptom.container)


def _of_node(snapshot: Snapshot, pod: Pod, of: Cause) -> Iterator[str]:
    node = snapshot.by_node.get(pod.spec.node)
    if node is None:
        return
    driver = node.meta.labels.get("nvidia.com/cuda.driver-version.full")
    version = f", driver {driver}" if driver else ""
    machine = (
        f", {_ARCHITECTURE} {node.meta.labels.get(_ARCHITECTURE, 'unknown')}" if of is table.IMAGE_PLATFORM else ""
    )
    yield f"{node.subject}: {node.runtime}{version}{machine}"
    if node.findings:
        named = ", ".join(dict.fromkeys(finding.reason for finding in node.findings[:5]))
        yield f"agent on the node: {named}"


def _special(known: Recognised, images: Sequence[str], node: Node | None) -> Iterator[str]:
    if known.cause is table.IMAGE_PLATFORM and images:
        wanted = node.meta.labels.get(_ARCHITECTURE, "") if node is not None else ""
        look = command("docker", "buildx", "imagetools", "inspect", images[0])
        yield f"List the image's architectures{f'; the node needs {wanted}' if wanted else ''}: {look}"
    if known.cause is table.IMAGE_NEEDS_DRIVER and known.groups:
        yield f"The image requires {known.groups[0]}, set in NVIDIA_REQUIRE_CUDA"


def find_lasting(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield init containers that have run for over an hour."""
    for pod in gpu_pods(snapshot):
        sidecars = {container.name for container in pod.spec.containers if container.sidecar}
        for state in pod.states:
            runs = state.init and state.running and state.name not in sidecars and state.started is not None
            if runs and pod.meta.deleted is None and older(snapshot, state.started, _LASTS):
                message = f"{pod.subject}: init container {state.name} has run since {state.started:%Y-%m-%d %H:%M}Z"
                remedy = (f"Read why it waits: {logs(pod.meta, '-c', state.name, '--tail=50')}",)
                written = _written(snapshot, pod)
                yield FoundCause(table.INIT_LASTS, written, (message,), remedy, (pod.subject,), Certainty.LIKELY)


SEARCHES = (Search(table.CAUSES, ("Pod",), find_not_started), Search((table.INIT_LASTS,), ("Pod",), find_lasting))
