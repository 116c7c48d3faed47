"""Compare the paths to which NVIDIA's toolkit writes with those of the kubelet's own runtime. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping

from msgspec import Struct

from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.agent_record import RecordFinding
from diagnosis.snapshot.meta import Meta
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import OTHER_VALUE, PodSpec
from diagnosis.snapshot.workloads import Workload
from healthcheck.checks.runtime_fixes import helm_values

_NAME = "nvidia-container-toolkit"
_CONFIG, _SOCKET = "CONTAINERD_CONFIG", "CONTAINERD_SOCKET"
_OLD_AND_NEW = {_CONFIG: (_CONFIG, "RUNTIME_CONFIG"), _SOCKET: (_SOCKET, "RUNTIME_SOCKET")}
_STANDARD = {_CONFIG: "/etc/containerd/config.toml", _SOCKET: "/run/containerd/containerd.sock"}
_VOLUMES = {_CONFIG: "containerd-config", _SOCKET: "containerd-socket"}
"""Variables of the operator's DaemonSet with paths in the container; the volume has the host's folder."""
_KUBELETS = re.compile(r"the kubelet's \S{1,20} reads (/\S{1,300}?)(?::? |$)")
"""Form of the path in the agent's finding NvidiaRuntimeElsewhere."""
_CRI_SOCKET = "kubeadm.alpha.kubernetes.io/cri-socket"

_RELEASE = re.compile(r"v(1\.\d{1,3})\.", re.ASCII)
"""Kubernetes release in a kubelet's version, as in the names of Bottlerocket's variants."""

_AT_START = "Install the package nvidia-container-toolkit on the node; {} finds it when it starts: `{}`"
_CONFIGURE = (
    "Install NVIDIA's container toolkit on the node, with the GPU operator or as a package, and configure it for {}: "
    "`nvidia-ctk runtime configure --runtime={}`"
)
_WAYS = (
    ("docker://", _CONFIGURE.format("Docker", "docker --set-as-default && systemctl restart docker")),
    ("+rke2", _AT_START.format("rke2", "systemctl restart rke2-agent") + ", on a server rke2-server"),
    ("+k3s", _AT_START.format("k3s", "systemctl restart k3s") + ", on an agent k3s-agent"),
    (
        "+k0s",
        _CONFIGURE.format(
            "k0s",
            "containerd --config=/etc/k0s/containerd.d/nvidia.toml --config-source=file && systemctl restart 'k0s*'",
        ),
    ),
    ("microk8s.io/cluster", "Install it with MicroK8s: `microk8s enable nvidia`"),
    (
        "k8sd.io/role",
        _CONFIGURE.format(
            "Canonical Kubernetes",
            "containerd --config=/etc/containerd/config.toml --drop-in-config=/etc/containerd/conf.d/99-nvidia.toml"
            " && snap restart k8s.containerd",
        )
        + ", both files under containerd-base-dir if the cluster sets one",
    ),
    (
        "bottlerocket",
        (
            "Boot the node from Bottlerocket's NVIDIA variant (`aws-k8s-VERSION-nvidia`), which has the handler: "
            "its files are read-only."
        ),
    ),
    (
        "talos (",
        (
            "Boot Talos with the extension nvidia-container-toolkit-production, which has the handler: its files "
            "are read-only."
        ),
    ),
    (
        "-gke.",
        (
            "GKE nodes have no such handler and need none: remove runtimeClassName from the pods; GKE's device "
            "plugin injects the GPU."
        ),
    ),
    (
        "cri-o://",
        _CONFIGURE.format(
            "CRI-O", "crio --drop-in-config=/etc/crio/crio.conf.d/99-nvidia.toml && systemctl restart crio"
        ),
    ),
)
"""Advice by a text of the node that identifies its distribution. `nvidia-ctk` needs the toolkit's package."""


class RuntimeFiles(Struct, frozen=True):
    """File and socket of a container runtime; '' if unknown. `more`: further variables that it needs."""

    config: str
    socket: str
    known_from: str
    more: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return " with ".join(filter(None, (self.config, self.socket)))

    def same(self, other: RuntimeFiles) -> bool:
        """Whether both are the same, as far as both are known."""
        pairs = ((self.config, other.config), (self.socket, other.socket))
        return all(not text or not two or _resolved(text) == _resolved(two) for text, two in pairs)

    def helm(self, namespace: str, others: Mapping[str, str]) -> str:
        """Return the command that sets this target for the operator's toolkit and keeps its other variables."""
        own = {_CONFIG: self.config, _SOCKET: self.socket, **dict(self.more)}
        alias = {name for key in own for name in _OLD_AND_NEW.get(key, (key,))}
        kept = {name: value for name, value in others.items() if name not in alias and value != OTHER_VALUE}
        return f"`{helm_values({**kept, **{name: value for name, value in own.items() if value}}, namespace)}`"


def toolkits(snapshot: Snapshot) -> tuple[Workload, ...]:
    """Return the DaemonSets that install the toolkit on nodes.

    If DaemonSets are not visible, they are derived from their pods.
    """
    seen = tuple(workload for workload in snapshot.daemon_sets if _NAME in workload.meta.name)
    if seen or snapshot.sees("DaemonSet"):
        return seen
    made = {
        (pod.meta.namespace, pod.meta.owner.name): pod.spec
        for pod in snapshot.pods
        if pod.meta.owner is not None and pod.meta.owner.kind == "DaemonSet" and _NAME in pod.meta.owner.name
    }
    return tuple(Workload(Meta("DaemonSet", namespace, name), spec) for (namespace, name), spec in made.items())


def target_of(toolkit: Workload) -> RuntimeFiles | None:
    """Return the target on the host from volumes and variables; None if they do not contain it."""
    if toolkit.spec is None:
        return None
    config, socket = (_on_host(toolkit.spec, key) for key in (_CONFIG, _SOCKET))
    return RuntimeFiles(config, socket, "its host paths") if config or socket else None


def by_hand(node: Node | None) -> str:
    """Return the manual steps that install NVIDIA's handler on a node without the GPU operator.

    The steps depend on the distribution.
    """
    message = f"{node.kubelet} {node.runtime} {node.system}".lower() if node is not None else ""
    for sign, words in _WAYS:
        if sign in message or (node is not None and sign in node.meta.labels):
            release = _RELEASE.match(node.kubelet) if node is not None else None
            return words.replace("VERSION", release[1]) if release else words
    seen = node.inventory.runtime if node is not None else None
    config = f" --config={shlex.quote(seen.config)}" if seen is not None and seen.config else ""
    return _CONFIGURE.format("the kubelet's runtime", f"containerd{config} && systemctl restart containerd")


def handlers_of(node: Node) -> frozenset[str] | None:
    """Return the handlers from the kubelet, else from our agent there; None if neither reports them."""
    if node.handlers is not None:
        return node.handlers
    seen = node.inventory.runtime
    return frozenset(seen.handlers) if seen is not None and seen.handlers is not None else None


def written_elsewhere(node: Node) -> tuple[str, ...]:
    """Return files with NVIDIA's handler that the runtime does not read, if no file that it reads has the handler."""
    seen = node.inventory.runtime
    if seen is None or not seen.config or seen.config in (seen.nvidia_in or ()):
        return ()
    return tuple(text for text in seen.nvidia_in or () if text in (seen.others or ()))


def where_it_should_write(node: Node | None, finding: RecordFinding | None) -> RuntimeFiles | None:
    """Return the target of the kubelet's own runtime; None if it is unknown.

    The sources are our agent, and the node's properties that identify its distribution.
    """
    if node is None:
        return None
    match = _KUBELETS.search(finding.detail) if finding is not None else None
    if match is not None:
        return RuntimeFiles(match[1], _socket_of(node), "by the agent on the node")
    known = _by_distribution(node)
    if known is not None:
        return known
    seen = node.inventory.runtime
    if seen is not None and (seen.config or seen.socket):
        return RuntimeFiles(seen.config or "", _socket_of(node), "by the agent on the node")
    socket = _socket_of(node)
    return RuntimeFiles("", socket, f"annotation {_CRI_SOCKET}") if socket else None


def _by_distribution(node: Node) -> RuntimeFiles | None:
    version, labels = f"{node.kubelet} {node.runtime}", node.meta.labels
    rancher = "rke2" if "+rke2" in version else "k3s" if "+k3s" in version or "-k3s" in version else ""
    if rancher:
        # Both write their own file at each start, with NVIDIA's handler if they find its program. The file that the
        # toolkit writes does not matter, but which of the node's containerds it restarts does.
        return RuntimeFiles("", "/run/k3s/containerd/containerd.sock", f"{rancher}, by its version {node.kubelet}")
    if "+k0s" in version:
        config, program = "/etc/k0s/containerd.d/nvidia.toml", "/var/lib/k0s/bin/containerd"
        more = (("RUNTIME_EXECUTABLE_PATH", program),)
        return RuntimeFiles(config, "/run/k0s/containerd.sock", f"k0s, by its version {node.kubelet}", more)
    if labels.get("microk8s.io/cluster") == "true":
        config = "/var/snap/microk8s/current/args/containerd-template.toml"
        return RuntimeFiles(config, "/var/snap/microk8s/common/run/containerd.sock", "MicroK8s, by its label")
    return None


def _on_host(spec: PodSpec, key: str) -> str:
    """Return the file's path on the node: the mounted folder, and the name from the variable."""
    named = [
        container.env.get(name, "") for container in spec.containers if not container.init for name in _OLD_AND_NEW[key]
    ]
    value = next((text for text in named if text and text != OTHER_VALUE), "")
    folder = spec.host_volumes.get(_VOLUMES[key], "")
    if not folder:
        return value
    name = posixpath.basename(value or _STANDARD[key])
    return posixpath.join(folder, name)


def _socket_of(node: Node) -> str:
    """Return the socket from our agent there, else from kubeadm's annotation; '' if neither has it."""
    seen = node.inventory.runtime
    if seen is not None and seen.socket:
        return seen.socket
    return node.meta.annotations.get(_CRI_SOCKET, "").removeprefix("unix://")


def _resolved(path: str) -> str:
    """Replace `/var/run` by `/run`, which is the same on all distributions."""
    clean = posixpath.normpath(path)
    return clean.removeprefix("/var") if clean.startswith("/var/run/") else clean
