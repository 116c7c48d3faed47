"""Explain why the kubelet does not prepare a pod's claims: API versions, registration, or the driver itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes.compute_domains import DOMAIN_NOT_READY, PEER_LOST
from gpu_healthcheck.diagnosis.causes.pod_startup_table import CLAIM_API, IF_HELD
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, logs, pods_on
from gpu_healthcheck.diagnosis.facts.components import DOMAIN_LABEL, Role, is_ready
from gpu_healthcheck.diagnosis.facts.dra_drivers import DRIVER_CALL, daemons_on, domain_of, no_driver, plugin_on
from gpu_healthcheck.diagnosis.facts.efa import NETWORK_DRIVERS, claim_of
from gpu_healthcheck.diagnosis.facts.safe_steps import recreate
from gpu_healthcheck.diagnosis.model import Certainty, FoundCause, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.pods import Pod

_API = "resource.k8s.io"
_VERSIONS = ("v1alpha3", "v1beta1", "v1beta2", "v1")
_REQUESTED = ((34, "v1"), (32, "v1beta1"), (31, "v1alpha3"))
"""API version of the claims that a kubelet requests, by its first minor version: pkg/kubelet/cm/dra/manager.go."""
_MINOR = re.compile(r"v?1\.(\d{1,3})\b", re.ASCII)
_LOSES_DRIVERS = re.compile(r"v?1\.34\.[01](?!\d)", re.ASCII)
"""Kubelets that forget a driver whose connection was idle: kubernetes/kubernetes issue 133920, fixed in 1.34.2."""
_UNREGISTERED = re.compile(r"([a-z0-9.-]{1,253})\S{0,2} (?:is not registered|not found in the list of registered)")
_NOT_OURS = re.compile(
    r"resourceclaims\S{0,40} \S{1,260} not found|: not allocated|is not allowed to use resource ?claim", re.IGNORECASE
)
"""Texts of the kubelet about a claim that was deleted, or is not allocated or reserved for the pod."""
OF_CLAIM = re.compile(r"unresolvable CDI devices k8s\.[a-z0-9.-]{1,253}/(?:claim|device)=")
"""Text of a runtime about a device that a DRA driver has prepared."""
_ANEW = (
    (
        OF_CLAIM,
        (
            "The pod still names the devices of an earlier preparation, which are gone since a reboot of the node or a "
            "change of the driver: the kubelet does not prepare them again for the same pod. Create the pod again. If "
            "a new one fails in the same way, its runtime does not read the driver's folder on the node, /var/run/cdi: "
            "add it to cdi_spec_dirs in containerd's configuration, and restart containerd. Talos has it read-only: "
            "there, give containerd and the driver one folder below /var."
        ),
    ),
    (
        _NOT_OURS,
        (
            "The claim was deleted, or no scheduler allocated it for this pod: `spec.nodeName` in a pod's template "
            "bypasses the scheduler, and before Kubernetes 1.34 kube-scheduler needs the feature gate "
            "DynamicResourceAllocation, too. Then create the pod again, so that its claims are allocated anew."
        ),
    ),
    (
        re.compile("unable to get claim info"),
        (
            "The kubelet has prepared only some of the pod's claims. If running pods share one of them, it is "
            "kubernetes/kubernetes issue 135901: end those first. Then create the pod again."
        ),
    ),
)
"""Steps by texts about pods that must be created again."""
_KNOWN = {
    "the server could not find the requested resource": (
        f"The DRA driver requests a version of {_API} that the API server does not serve: use a release of the driver "
        f"for this version of Kubernetes. List the served versions: `kubectl get --raw /apis/{_API}`"
    ),
    "host nvidia-imex daemon readiness": (
        "The driver is set to use the host's IMEX service. On the node, check `systemctl status nvidia-imex` and "
        "/etc/nvidia-imex/nodes_config.cfg, then start it: `systemctl enable --now nvidia-imex`"
    ),
    "label already exists for a different ComputeDomain": (
        f"A node can be in one ComputeDomain at a time: wait until the pods of the other one have ended there. If that "
        f"domain does not exist any more, remove the label {DOMAIN_LABEL} from the node."
    ),
    "ComputeDomain not found": (
        "The claim is of a ComputeDomain that was deleted: create the domain again if it is missing, then the job, so "
        "that its new claims have the new domain."
    ),
    "already allocated": (
        "A node has one IMEX channel: wait until the pod of the claim named in the message has ended. If no claim has "
        "that UID (`kubectl get resourceclaims -A -o yaml`), upgrade the DRA driver: 0.4 and older may keep it."
    ),
}
"""Steps by texts of the DRA driver."""


def explained(snapshot: Snapshot, found: FoundCause, pod: Pod, text: str) -> FoundCause:
    """Return the result about a claim with the facts and steps that its text calls for."""
    if found.cause is CLAIM_API:
        return _of_versions(snapshot, found, pod.spec.node)
    domain = domain_of(snapshot, pod)
    waits = domain is not None and DRIVER_CALL in text
    because = origins((DOMAIN_NOT_READY, PEER_LOST), domain.subject) if domain is not None and waits else ()
    look = f"Read all messages about it: {kubectl('describe', pod.meta)}"
    return replace(found, remedy=(*_steps(snapshot, pod, text), look), because_of=because)


def _of_versions(snapshot: Snapshot, found: FoundCause, name: str) -> FoundCause:
    """Add the versions of kubelet and API server, and which of them to upgrade."""
    node = snapshot.by_node.get(name)
    kubelet = node.kubelet if node is not None else ""
    minor = int(known[1]) if (known := _MINOR.match(kubelet)) is not None else 0
    requested = next((version for first, version in _REQUESTED if minor >= first), "")
    listed = {claim.api.removeprefix(f"{_API}/") for claim in snapshot.claims}
    served = next((version for version in reversed(_VERSIONS) if version in listed), "")
    asks = (
        f"kubelet {kubelet} requests claims of {_API}/{requested}" if requested else "its kubelet's version is unknown"
    )
    lists = f"{_API}/{served}" if served else "a version that is not visible"
    evidence = f"node/{name}: {asks}; the API server lists them in {lists}"
    is_skew = bool(requested and served) and requested != served
    steps = [f"List the versions that the API server serves: {command('kubectl', 'get', '--raw', f'/apis/{_API}')}"]
    if not is_skew:
        see = command("kubectl", "get", "node", name)
        steps += [f"Compare with the node's version: {see}", found.cause.remedy]
    elif _VERSIONS.index(requested) > _VERSIONS.index(served):
        steps.append(
            "The kubelet is newer than the API server, which Kubernetes does not support. Upgrade the control plane to "
            f"1.{minor} or newer. Otherwise give {name} a kubelet of the control plane's version, in a managed cluster "
            "by the version of its node pool; move its pods away first."
        )
    else:
        steps.append(f"Upgrade the kubelet of {name} to 1.34 or newer; move its pods away first.")
        flag = f"`--runtime-config={_API}/{requested}=true`"
        steps += [f"Until then, start each kube-apiserver with {flag}."] if "beta" in requested else []
    steps.append("The kubelet tries again by itself: the pod then starts. The DRA driver has no part in this.")
    certainty = Certainty.PROVEN if is_skew else Certainty.LIKELY
    return replace(found, evidence=(*found.evidence, evidence), remedy=tuple(steps), certainty=certainty)


def _steps(snapshot: Snapshot, pod: Pod, text: str) -> Iterator[str]:
    claims = (claim_of(snapshot, pod, name) for name in pod.spec.claims)
    drivers = " ".join((text, *(device for claim in claims if claim is not None for device in claim.devices)))
    role = Role.NETWORK_DRA if any(name in drivers for name in NETWORK_DRIVERS) else Role.DRA_DRIVER
    plugin, node = plugin_on(snapshot, pod.spec.node, role), pod.spec.node
    if anew := next((step for words, step in _ANEW if words.search(text)), ""):
        yield anew
        yield from recreate(snapshot, [pod])
    elif unregistered := _UNREGISTERED.search(text):
        yield _register(snapshot, node, role, unregistered[1])
    elif known := next((step for words, step in _KNOWN.items() if words in text), ""):
        yield known
    elif DOMAIN_NOT_READY.texts[0].search(text):
        find = command("kubectl", "get", "pods", "-A", "-o", "wide", "-l", DOMAIN_LABEL)
        daemon = next(daemons_on(snapshot, node), None)
        log = logs(daemon.meta, "--tail=100") if daemon is not None else f"{find} lists the daemons."
        yield f"Read the log of the ComputeDomain's IMEX daemon on {node}: {log}"
        yield IF_HELD
    elif plugin is not None:
        if "empty device edits" in text:
            yield f"The driver's pod has outdated files since a change of the toolkit: {kubectl('delete', plugin.meta)}"
        yield f"Read the log of the driver's pod there: {logs(plugin.meta, '--all-containers', '--tail=100')}"
    else:
        yield f"Find the driver's pod on the node, and read its log: {pods_on(node)}"


def _register(snapshot: Snapshot, name: str, role: Role, driver: str) -> str:
    """Return the step after which the kubelet knows the driver."""
    plugin, node = plugin_on(snapshot, name, role), snapshot.by_node.get(name)
    if plugin is None or not is_ready(plugin):
        return no_driver(snapshot, name, role)
    if node is not None and _LOSES_DRIVERS.match(node.kubelet):
        return (
            f"{plugin.subject} runs there, and kubelet {node.kubelet} forgets a driver after 30 idle minutes: upgrade "
            "it to 1.34.2 or newer. Until then, restart it on the node: `systemctl restart kubelet`"
        )
    return (
        f"{plugin.subject} runs there, and the kubelet does not know {driver}: recreate that pod, so that it "
        f"registers: {kubectl('delete', plugin.meta)}. If that does not help, check that the driver's chart has "
        "the directory of the kubelet: /var/lib/kubelet by default."
    )
