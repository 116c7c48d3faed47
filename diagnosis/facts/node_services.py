"""Services of a node, by its runtime and distribution: the kubelet and the container runtime. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, pods_on
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import (
    BOTTLEROCKET,
    EKS_AL2023,
    GKE,
    K0S,
    K3S,
    K8S_SNAP,
    MICROK8S,
    OPENSHIFT,
    RKE2,
    TALOS,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD, CRIO, DOCKER

SERVER = "node-role.kubernetes.io/control-plane"
_DISTRIBUTIONS = (
    ("+rke2", RKE2),
    ("+k3s", K3S),
    ("+k0s", K0S),
    ("microk8s.io/cluster", MICROK8S),
    ("k8sd.io/role", K8S_SNAP),
    ("bottlerocket", BOTTLEROCKET),
    ("talos (", TALOS),
    ("-gke.", GKE),
    ("amazon linux 2023", EKS_AL2023),
    ("node.openshift.io/os_id", OPENSHIFT),
    ("red hat enterprise linux coreos", OPENSHIFT),
)
"""Distributions by a text of the node's versions, or by a label."""
_KINDS = (("docker://", DOCKER), ("cri-o://", CRIO))
_BY_ROLE = {K3S: ("k3s", "k3s-agent"), RKE2: ("rke2-server", "rke2-agent"), K0S: ("k0scontroller", "k0sworker")}
"""Units of a server and of an agent node that also run the kubelet."""
_KUBELETS = {MICROK8S: "snap.microk8s.daemon-kubelite", K8S_SNAP: "snap.k8s.kubelet"}
_RUNTIMES = {MICROK8S: "snap.microk8s.daemon-containerd", K8S_SNAP: "snap.k8s.containerd"}
_OF_KINDS = {CRIO: ("crio",), DOCKER: ("docker", "cri-docker")}
_DATA = {K3S: "/var/lib/rancher/k3s", RKE2: "/var/lib/rancher/rke2"}
_CONFIGURATIONS = {
    CONTAINERD: "`containerd config dump`; often the file is NVIDIA's drop-in conf.d/99-nvidia.toml: its `version` may "
    "not be higher than that of config.toml",
    CRIO: "`crio config`; often the file is one that `nvidia-ctk` wrote: /etc/crio/crio.conf, or one in crio.conf.d",
    DOCKER: "`dockerd --validate --config-file=/etc/docker/daemon.json`",
}
"""Commands of the runtimes that name a file that they refuse."""
_DOWN = re.compile(
    r"container runtime (?:is down|not ready|status check)|runtime is not ready|RuntimeReady=false"
    r"|(?:containerd|crio|cri-dockerd|dockershim)\S{0,40}\.sock",
    re.IGNORECASE,
)
_NO_NETWORK = re.compile(
    r"network not ready|NetworkReady=false|NetworkPluginNotReady|cni (?:plugin|config)", re.IGNORECASE
)
_PLEG = re.compile(r"PLEG is not healthy", re.IGNORECASE)
"""Texts of the kubelet's condition Ready=False."""


def distribution_of(node: Node) -> str:
    """Return the Kubernetes distribution of the node; '' if nothing of the node names it."""
    versions = f"{node.kubelet} {node.runtime.replace('-k3s', '+k3s')} {node.system}".lower()
    return next((name for sign, name in _DISTRIBUTIONS if sign in versions or sign in node.meta.labels), "")


def runtime_kind(node: Node | None) -> str:
    """Return the kind of the kubelet's runtime, as the kubelet reports it; containerd if it does not."""
    versions = node.runtime if node is not None else ""
    return next((kind for sign, kind in _KINDS if versions.startswith(sign)), CONTAINERD)


def unit_of_role(node: Node, distribution: str) -> str:
    """Return the unit that runs the kubelet, and containerd, on a node of this distribution; '' if it has none."""
    units = _BY_ROLE.get(distribution)
    return units[0 if SERVER in node.meta.labels else 1] if units is not None else ""


def runtime_is_down(node: Node) -> bool:
    """Whether the kubelet itself reports that its container runtime does not answer."""
    ready = node.condition("Ready", "False")
    return ready is not None and _DOWN.search(ready.message) is not None


def steps_until_ready(node: Node) -> Iterator[str]:
    """Yield the steps for a node that is not ready, by the part that its kubelet names."""
    ready = node.condition("Ready", "False")
    message = ready.message if ready is not None else ""
    if _DOWN.search(message):
        yield from runtime_steps(node)
    elif _NO_NETWORK.search(message):
        yield f"Read the log of the network plugin's pod on the node: {pods_on(node.name)}"
        yield "The kubelet waits until that pod has written its file to /etc/cni/net.d; restart neither of the two"
    elif _PLEG.search(message):
        yield from _slow_runtime(node)
    else:
        yield f"Check the node's state: {kubectl('describe', node.meta)}"
        status = command("talosctl", "-n", node.name, "service", "kubelet")
        status = status if distribution_of(node) == TALOS else f"`systemctl status {kubelet_unit(node)}`"
        yield f"Then check whether the machine runs, and its kubelet: {status}"


def kubelet_unit(node: Node) -> str:
    """Return the service that runs the kubelet."""
    distribution = distribution_of(node)
    return unit_of_role(node, distribution) or _KUBELETS.get(distribution, "kubelet")


def runtime_steps(node: Node) -> Iterator[str]:
    """Yield the steps that bring back a container runtime that does not run."""
    kind, units = runtime_kind(node), _runtime_units(node)
    distribution = distribution_of(node) if kind == CONTAINERD else ""
    data = _DATA.get(distribution, "")
    log = f"; containerd's own log: {data}/agent/containerd/containerd.log" if data else ""
    yield f"Read on {node.name} why {kind} does not run: {_journal(node, units)}{log}"
    if distribution in (TALOS, BOTTLEROCKET):
        yield "Its files can't be changed by hand: correct the machine's settings, or reboot or replace the node"
        return
    template = (
        f"{data}/agent/etc/containerd/config.toml is made from the template beside it (config.toml.tmpl, "
        "config-v3.toml.tmpl); move away one that NVIDIA's toolkit wrote there"
    )
    yield f"Check its configuration, above all what was changed last: {template if data else _CONFIGURATIONS[kind]}"
    restart = restart_of(*units)
    yield f"Correct the file that is at fault; then `{restart}`: the kubelet recovers on its own, without a restart"


def _slow_runtime(node: Node) -> Iterator[str]:
    units, kind = _runtime_units(node), runtime_kind(node)
    if distribution_of(node) in (TALOS, BOTTLEROCKET):
        yield f"Read on {node.name} what keeps {kind} from answering in time: {_journal(node, units)}"
        yield f"If it does not recover, reboot the node: {command('kubectl', 'cordon', node.name)}, drain, reboot"
        return
    yield f"Find on {node.name} what keeps {kind} from answering in time: `crictl ps -a`, {_journal(node, units)}"
    yield "Find processes that hang in the kernel, such as a program on a lost GPU: `ps -eo state,pid,args | grep '^D'`"
    kubelet = kubelet_unit(node)
    also = f"; if that is not enough, the kubelet: `{restart_of(kubelet)}`" if kubelet not in units else ""
    yield f"If there is none, restart {kind}: `{restart_of(*units)}`{also}"
    yield f"If there is one, only a reboot ends it: {command('kubectl', 'cordon', node.name)}, drain, reboot"


def _runtime_units(node: Node) -> tuple[str, ...]:
    kind = runtime_kind(node)
    if kind in _OF_KINDS:
        return _OF_KINDS[kind]
    distribution = distribution_of(node)
    return (unit_of_role(node, distribution) or _RUNTIMES.get(distribution, "containerd"),)


def restart_of(*units: str) -> str:
    """Return the command that restarts services, of systemd or of snapd."""
    if units[0].startswith("snap."):
        return f"snap restart {units[0].removeprefix('snap.')}"
    return f"systemctl restart {' '.join(units)}"


def _journal(node: Node, units: tuple[str, ...]) -> str:
    """Return the command that prints the service's last lines, as the node's distribution offers it."""
    distribution, words = distribution_of(node), f"journalctl -u {' -u '.join(units)} -n 100"
    if distribution == TALOS:
        return command("talosctl", "-n", node.name, "logs", "cri")
    if distribution == OPENSHIFT:
        debug = command("oc", "debug", f"node/{node.name}", "--", "chroot", "/host", *words.split())
        return f"{debug}, or over SSH if no pod starts there"
    if distribution == BOTTLEROCKET:
        return f"`sheltie {words}` in the admin container"
    return f"`{words} --no-pager`"
