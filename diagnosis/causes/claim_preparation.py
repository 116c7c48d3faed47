"""Explain why the kubelet does not prepare a pod's claims: API versions, registration, or the driver itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from diagnosis.causes.pod_startup_table import CLAIM_API
from diagnosis.facts.commands import command, kubectl, logs, pods_on
from diagnosis.facts.components import Component, Role, components, is_ready
from diagnosis.facts.efa import NETWORK_DRIVERS, claim_of
from diagnosis.model import Certainty, FoundCause
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import Pod

_API = "resource.k8s.io"
_VERSIONS = ("v1alpha3", "v1beta1", "v1beta2", "v1")
_REQUESTED = ((34, "v1"), (32, "v1beta1"), (31, "v1alpha3"))
"""API version of the claims that a kubelet requests, by its first minor version: pkg/kubelet/cm/dra/manager.go."""
_MINOR = re.compile(r"v?1\.(\d{1,3})\b", re.ASCII)
_LOSES_DRIVERS = re.compile(r"v?1\.34\.[01](?!\d)", re.ASCII)
"""Kubelets that forget a driver whose connection was idle: kubernetes/kubernetes issue 133920, fixed in 1.34.2."""
_UNREGISTERED = re.compile(
    r"\\?\"?([a-z0-9.-]{1,253})\\?\"? (?:is not registered|not found in the list of registered)", re.ASCII
)
_NOT_OURS = re.compile(
    r"resourceclaims\S{0,40} \\?\"[^\"\\]{1,253}\\?\" not found|: not allocated|is not allowed to use resource ?claim",
    re.IGNORECASE,
)
"""Texts of the kubelet about a claim that was deleted, or is not allocated or reserved for the pod."""
_HOST_IMEX = "host nvidia-imex daemon readiness"
"""Text of NVIDIA's driver in its host-managed mode."""


def explained(snapshot: Snapshot, found: FoundCause, pod: Pod, text: str) -> FoundCause:
    """Return the result about a claim with the facts and steps that its text calls for."""
    node = snapshot.by_node.get(pod.spec.node)
    if found.cause is CLAIM_API:
        return _of_versions(snapshot, found, node)
    look = f"Read all messages about it: {kubectl('describe', pod.meta)}"
    return replace(found, remedy=(*_steps(snapshot, pod, node, text), look))


def _of_versions(snapshot: Snapshot, found: FoundCause, node: Node | None) -> FoundCause:
    """Add the versions of kubelet and API server, and which of them to upgrade."""
    kubelet = node.kubelet if node is not None else ""
    requested, served = _requested(kubelet), _served(snapshot)
    evidence = [*found.evidence]
    if requested:
        evidence.append(f"{found.subject}: the kubelet is {kubelet}, and requests claims of {_API}/{requested}")
    if served:
        evidence.append(f"the API server's newest version of claims is {_API}/{served}")
    else:
        evidence.append("which versions of claims the API server serves is not visible")
    certain = requested and served and requested != served
    steps = tuple(_of_skew(node, requested, served)) if node is not None and certain else (found.cause.remedy,)
    check = f"List the versions that the API server serves: {command('kubectl', 'get', '--raw', f'/apis/{_API}')}"
    retry = "The kubelet tries again by itself: the pod then starts. The DRA driver has no part in this."
    certainty = Certainty.PROVEN if certain else Certainty.LIKELY
    return replace(found, evidence=tuple(evidence), remedy=(check, *steps, retry), certainty=certainty)


def _of_skew(node: Node, requested: str, served: str) -> Iterator[str]:
    if _VERSIONS.index(requested) > _VERSIONS.index(served):
        yield (
            "The kubelet is newer than the API server, which Kubernetes does not support. Upgrade the control plane to "
            f"{_minor(node.kubelet)} or newer. Otherwise give {node.name} a kubelet of the control plane's version: in "
            "a managed cluster, set the version of its node pool; move the node's pods away first."
        )
        return
    yield f"Upgrade the kubelet of {node.name} to 1.34 or newer; move the node's pods away first."
    if requested.startswith("v1beta"):
        flag = f"`--runtime-config={_API}/{requested}=true`"
        yield f"Until then, start each kube-apiserver with {flag}, which serves the version that the kubelet requests."


def _minor(kubelet: str) -> str:
    found = _MINOR.match(kubelet)
    return f"1.{found[1]}" if found is not None else ""


def _requested(kubelet: str) -> str:
    """Return the version of the claims that this kubelet requests; '' if it is unknown."""
    found = _MINOR.match(kubelet)
    minor = int(found[1]) if found is not None else 0
    return next((version for first, version in _REQUESTED if minor >= first), "")


def _served(snapshot: Snapshot) -> str:
    """Return the newest version in which claims were listed; '' if it is unknown."""
    listed = {claim.api.removeprefix(f"{_API}/") for claim in snapshot.claims}
    return next((version for version in reversed(_VERSIONS) if version in listed), "")


def _steps(snapshot: Snapshot, pod: Pod, node: Node | None, text: str) -> Iterator[str]:
    if _NOT_OURS.search(text):
        yield (
            "The claim was deleted, or no scheduler allocated it for this pod: `spec.nodeName` in the pod's template "
            "bypasses the scheduler. Correct that, then create the pod again: the scheduler allocates its claims anew."
        )
    elif unregistered := _UNREGISTERED.search(text):
        yield from _register(snapshot, pod, node, unregistered[1])
    elif _HOST_IMEX in text:
        yield (
            "The driver is set to use the host's IMEX service: on the node, check `systemctl status nvidia-imex` and "
            "/etc/nvidia-imex/nodes_config.cfg, and start it: `systemctl enable --now nvidia-imex`"
        )
    else:
        driver = _driver_pod(snapshot, pod, text)
        if driver is not None:
            yield f"Read the log of the driver's pod there: {logs(driver.meta, '--all-containers', '--tail=100')}"
        else:
            yield f"Find the driver's pod on the node, and read its log: {pods_on(pod.spec.node)}"


def _register(snapshot: Snapshot, pod: Pod, node: Node | None, driver: str) -> Iterator[str]:
    """Yield the steps after which the kubelet knows the driver."""
    plugin = _driver_pod(snapshot, pod, driver)
    if plugin is None or not is_ready(plugin):
        sets = [each for each in _drivers(snapshot, driver) if each.meta.kind == "DaemonSet"]
        look = kubectl("describe", (plugin or sets[0]).meta) if plugin or sets else pods_on(pod.spec.node)
        yield f"No ready pod of the driver {driver} is on the node: find out why: {look}"
        return
    yield f"{plugin.subject} runs there, and the kubelet does not know its driver {driver}."
    if node is not None and _LOSES_DRIVERS.match(node.kubelet):
        yield (
            f"Kubelet {node.kubelet} forgets drivers after 30 idle minutes: upgrade it to 1.34.2 or newer. Until then, "
            "restart it on the node: `systemctl restart kubelet`"
        )
    else:
        yield (
            f"Make its pod again, so that it registers: {kubectl('delete', plugin.meta)}. If that does not help, "
            "check on the node that the driver's chart has the directory of the kubelet: /var/lib/kubelet by default."
        )


def _driver_pod(snapshot: Snapshot, pod: Pod, text: str) -> Pod | None:
    """Return the pod of the claim's driver on the node."""
    claims = (claim_of(snapshot, pod, name) for name in pod.spec.claims)
    devices = " ".join(device for claim in claims if claim is not None for device in claim.devices)
    there = (each.pod_on(pod.spec.node) for each in _drivers(snapshot, f"{text} {devices}"))
    return next(filter(None, there), None)


def _drivers(snapshot: Snapshot, text: str) -> list[Component]:
    """Return the components of the driver that the text names, else those of NVIDIA's."""
    role = Role.NETWORK_DRA if any(name in text for name in NETWORK_DRIVERS) else Role.DRA_DRIVER
    return [each for each in components(snapshot) if each.role is role]
