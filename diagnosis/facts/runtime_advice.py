"""Files of the kubelet's container runtime, files that NVIDIA's toolkit writes, and the steps that join both. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.commands import command, explain, kubectl
from gpu_healthcheck.diagnosis.facts.crio_advice import (
    crio_steps,
    hook_evidence,
    hook_steps,
    without_class,
    writes_for_containerd,
)
from gpu_healthcheck.diagnosis.facts.node_services import distribution_of, runtime_kind, unit_of_role
from gpu_healthcheck.diagnosis.facts.operator_values import set_toolkit_env
from gpu_healthcheck.diagnosis.facts.symptoms import shortened
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.meta import Meta
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, RecordFinding
from gpu_healthcheck.diagnosis.snapshot.pods import OTHER_VALUE, Pod, PodSpec
from gpu_healthcheck.diagnosis.snapshot.workloads import Workload
from gpu_healthcheck.healthcheck.checks.runtime_fixes import give_handler
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import (
    BOTTLEROCKET,
    CRIO_FOLDER,
    CRIO_SOCKET,
    GKE,
    K0S,
    K3S,
    K8S_SNAP,
    MICROK8S,
    RKE2,
    STANDARD_FILE,
    TALOS,
    layout_of,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD, CRIO, DOCKER, ContainerRuntime

_TOOLKIT = "nvidia-container-toolkit"
_CONFIG, _SOCKET = "CONTAINERD_CONFIG", "CONTAINERD_SOCKET"
_OLD_AND_NEW = {_CONFIG: (_CONFIG, "RUNTIME_CONFIG"), _SOCKET: (_SOCKET, "RUNTIME_SOCKET")}
_STANDARD = {_CONFIG: "/etc/containerd/config.toml", _SOCKET: "/run/containerd/containerd.sock"}
_VOLUMES = {_CONFIG: "containerd-config", _SOCKET: "containerd-socket"}
"""Variables of the operator's DaemonSet with paths in the container; the volume has the host's folder."""
_KUBELETS = re.compile(r"the kubelet's \S{1,20} reads (/\S{1,300}?)(?::? |$)")
"""Form of the path in the agent's finding NvidiaRuntimeElsewhere."""
_OWN_FILE = re.compile(r"\A(/\S{1,300}?): ")
"""Form of the path in the agent's finding NvidiaRuntimeMissing."""
_BY_AGENT = "by the agent on the node"
_CRI_SOCKET = "kubeadm.alpha.kubernetes.io/cri-socket"
_RELEASE = re.compile(r"v(1\.\d{1,3})\.", re.ASCII)
"""Kubernetes release in a kubelet's version, as in the names of Bottlerocket's variants."""
_INSTALL = (
    "Install NVIDIA's container toolkit on the node, with the GPU operator or as a package, and configure it for the "
    "kubelet's runtime"
)
_BY_CONFIGURING = ("NvidiaRuntimeElsewhere", "NvidiaRuntimeMissing", "RuntimeConfigNotLoaded")
"""Findings of the agent that end when the toolkit is configured for the kubelet's runtime, which is then restarted."""


class RuntimeFiles(Struct, frozen=True):
    """File and socket of a container runtime; '' if unknown. `more`: further variables that it needs."""

    config: str
    socket: str
    known_from: str = ""
    more: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return " with ".join(filter(None, (self.config, self.socket)))

    def same(self, other: RuntimeFiles) -> bool:
        """Whether both are the same, as far as both are known."""
        pairs = ((self.config, other.config), (self.socket, other.socket))
        return all(not path or not two or _resolved(path) == _resolved(two) for path, two in pairs)

    def values(self, others: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the operator's toolkit with this target; its other variables are kept."""
        own = {_CONFIG: self.config, _SOCKET: self.socket, **dict(self.more)}
        alias = {name for key in own for name in _OLD_AND_NEW.get(key, (key,))}
        kept = {name: value for name, value in others.items() if name not in alias and value != OTHER_VALUE}
        return {**kept, **{name: value for name, value in own.items() if value}}


_FROM_FILE = (("RUNTIME_CONFIG_SOURCE", "file"),)
"""Variable with which the toolkit reads containerd's file itself, not its output in containerd's newest version."""
_FILES = {
    # k3s and RKE2 write their own file at each start, with NVIDIA's handler if they find its program. The file that the
    # toolkit writes does not matter, but which of the node's containerds it restarts does.
    K3S: RuntimeFiles("", "/run/k3s/containerd/containerd.sock", "k3s, by its version"),
    RKE2: RuntimeFiles("", "/run/k3s/containerd/containerd.sock", "rke2, by its version"),
    K0S: RuntimeFiles(
        "/etc/k0s/containerd.d/nvidia.toml",
        "/run/k0s/containerd.sock",
        "k0s, by its version",
        (("RUNTIME_EXECUTABLE_PATH", "/var/lib/k0s/bin/containerd"),),
    ),
    # Its containerd imports no drop-in of the toolkit: NVIDIA/gpu-operator issues 1577 and 1679.
    GKE: RuntimeFiles("", "", "GKE, by its version", _FROM_FILE),
    MICROK8S: RuntimeFiles(
        "/var/snap/microk8s/current/args/containerd-template.toml",
        "/var/snap/microk8s/common/run/containerd.sock",
        "MicroK8s, by its label",
    ),
}
"""Files that the toolkit should write on the distributions where they are not the kubelet's own."""


_OF_KINDS = {
    CRIO: RuntimeFiles(CRIO_FOLDER, CRIO_SOCKET, "CRI-O, by its version"),
    DOCKER: RuntimeFiles("/etc/docker/daemon.json", "/run/docker.sock", "Docker, by its version"),
}


@lru_cache(maxsize=1)
def toolkits(snapshot: Snapshot) -> tuple[Workload, ...]:
    """Return the DaemonSets that install the toolkit on nodes.

    If DaemonSets are not visible, they are derived from their pods.
    """
    listed = tuple(workload for workload in snapshot.daemon_sets if _TOOLKIT in workload.meta.name)
    if listed or snapshot.sees("DaemonSet"):
        return listed
    made = {
        (pod.meta.namespace, pod.meta.owner.name): pod.spec
        for pod in snapshot.pods
        if pod.meta.owner is not None and pod.meta.owner.kind == "DaemonSet" and _TOOLKIT in pod.meta.owner.name
    }
    return tuple(Workload(Meta("DaemonSet", namespace, name), spec) for (namespace, name), spec in made.items())


def target_of(toolkit: Workload) -> RuntimeFiles | None:
    """Return the target on the host from volumes and variables; None if they do not contain it."""
    if toolkit.spec is None or not writes_for_containerd(toolkit):
        return None
    config, socket = (_on_host(toolkit.spec, key) for key in (_CONFIG, _SOCKET))
    return RuntimeFiles(config, socket, "its host paths") if config or socket else None


def handlers_of(node: Node) -> frozenset[str] | None:
    """Return the handlers from the kubelet, else from our agent there; None if neither reports them."""
    if node.handlers is not None:
        return node.handlers
    recorded = node.inventory.runtime
    return frozenset(recorded.handlers) if recorded is not None and recorded.handlers is not None else None


def written_elsewhere(node: Node) -> tuple[str, ...]:
    """Return files with NVIDIA's handler that the runtime does not read, if no file that it reads has the handler."""
    recorded = node.inventory.runtime
    if recorded is None or not recorded.config or recorded.config in (recorded.nvidia_in or ()):
        return ()
    return tuple(path for path in recorded.nvidia_in or () if path in (recorded.others or ()))


def where_it_should_write(node: Node | None, finding: RecordFinding | None) -> RuntimeFiles | None:
    """Return the target of the kubelet's own runtime; None if it is unknown.

    The sources are our agent, and the node's properties that identify its distribution.
    """
    if node is None:
        return None
    match = _KUBELETS.search(finding.detail) if finding is not None else None
    socket = _socket_of(node)
    if match is not None:
        return RuntimeFiles(match[1], socket, _BY_AGENT)
    # A distribution brings and configures only its own containerd, not CRI-O or Docker beside it.
    kind = runtime_kind(node)
    files = _FILES.get(distribution_of(node)) if kind == CONTAINERD else _OF_KINDS[kind]
    if files is not None:
        version = f" {node.kubelet}" if "version" in files.known_from else ""
        return RuntimeFiles(files.config, files.socket, f"{files.known_from}{version}", files.more)
    recorded = node.inventory.runtime
    if recorded is not None and (recorded.config or recorded.socket):
        return RuntimeFiles(recorded.config or "", socket, _BY_AGENT)
    return RuntimeFiles("", socket, f"annotation {_CRI_SOCKET}") if socket else None


def by_agent(finding: RecordFinding | None) -> Iterator[str]:
    """Yield our agent's observation as evidence, without its advice.

    Root on the node can write the record, and an administrator would paste a printed command.
    """
    if finding is not None:
        yield f"agent on the node: {finding.reason}: {shortened(_observation(finding.detail), 600)}"


def fix_steps(
    snapshot: Snapshot,
    node: Node | None,
    finding: RecordFinding | None,
    others: Sequence[Node] = (),
    pods: Sequence[Pod] = (),
) -> Iterator[str]:
    """Yield the steps after which `pods` start on the node; on several alike, the first known one of `others`.

    They restore NVIDIA's handler, if the node's runtime needs one. If the operator's toolkit is installed, they change
    the operator's values; it overwrites manual changes.
    """
    example = node or next(iter(others), None)
    if finding is not None and finding.reason not in _BY_CONFIGURING:
        yield f"Check the fault on the node itself: {explain(finding.reason)}"
    if example is not None and hook_evidence(example, toolkits(snapshot)):
        toolkit = next(iter(toolkits(snapshot)), None)
        yield from hook_steps(snapshot, example, pods, toolkit, _by_hand(example, ""))
        return
    if example is None and not snapshot.sees("Node") and not toolkits(snapshot):
        yield (
            "If the node runs k3s or RKE2, only restart that service: it adds the handler itself when NVIDIA's toolkit "
            "is there. MicroK8s and k0s read a file of their own. On others:"
        )
    yield from _handler_steps(snapshot, node, finding, others)
    if runtime_kind(example) == DOCKER and pods:
        yield "An older cri-dockerd knows no handlers and refuses the pods: upgrade it, or rely on the default runtime"
        yield from without_class(snapshot, pods)
    elif node is not None and node.handlers is not None:
        path = "jsonpath={.status.runtimeHandlers[*].name}"
        yield f"Then check that the node reports it: {kubectl('get', node.meta, '-o', path)}"


def _handler_steps(
    snapshot: Snapshot, node: Node | None, finding: RecordFinding | None, others: Sequence[Node]
) -> Iterator[str]:
    known = (where_it_should_write(one, finding if one is node else None) for one in (node, *others))
    should = next((target for target in known if target is not None), None)
    example = node or next(iter(others), None)
    toolkit = next(iter(toolkits(snapshot)), None)
    is_configured = finding is None or finding.reason in _BY_CONFIGURING
    match = _OWN_FILE.match(finding.detail) if finding is not None else None
    recorded = should.config if should is not None and should.known_from == _BY_AGENT else ""
    by_hand = _by_hand(example, match[1] if match is not None else recorded)
    if runtime_kind(example) == CRIO:
        yield from crio_steps(example, toolkit, by_hand if is_configured else "")
    elif toolkit is not None and not _is_fixed(example):
        yield from _by_helm(snapshot, toolkit, should)
    elif is_configured:
        yield by_hand


def _is_fixed(node: Node | None) -> bool:
    """Whether the toolkit can't configure the node: its runtime's files can't be changed, or it has Docker."""
    return node is not None and (runtime_kind(node) == DOCKER or distribution_of(node) in (BOTTLEROCKET, TALOS))


def keep_version(snapshot: Snapshot, node: Node) -> Iterator[str]:
    """Yield the step after which the operator's toolkit writes no file that containerd 2 refuses."""
    toolkit = next(iter(toolkits(snapshot)), None)
    has_own_file = distribution_of(node) in (K3S, RKE2, K0S, MICROK8S, TALOS, BOTTLEROCKET)
    if toolkit is not None and not has_own_file and node.runtime.startswith("containerd://2."):
        change = _set_files(snapshot, toolkit.meta.namespace, RuntimeFiles("", "", more=_FROM_FILE))
        yield (
            "If the journal says that a drop-in's version is higher than that of the root config, the operator's "
            f"toolkit wrote it: let it keep the file's version, {change}, and move its file away on {node.name}: "
            "`mv /etc/containerd/conf.d/99-nvidia.toml /root/ && systemctl restart containerd`"
        )


def set_target(snapshot: Snapshot, namespace: str, should: RuntimeFiles | None) -> Iterator[str]:
    """Yield the step that sets the operator's toolkit to the runtime of a node's kubelet, if that is known."""
    if should is not None:
        yield f"Set the toolkit to the kubelet's runtime: {_set_files(snapshot, namespace, should)}"


def _set_files(snapshot: Snapshot, namespace: str, files: RuntimeFiles) -> str:
    policy = next((cluster_policy.toolkit_env for cluster_policy in snapshot.cluster_policies), {})
    return set_toolkit_env(snapshot, namespace, files.values(policy))


def _by_helm(snapshot: Snapshot, toolkit: Workload, should: RuntimeFiles | None) -> Iterator[str]:
    namespace = toolkit.meta.namespace
    yield from set_target(snapshot, namespace, should)
    if should is None:
        logs = command("kubectl", "-n", namespace, "logs", f"daemonset/{toolkit.meta.name}", "--all-containers")
        yield f"Check in the toolkit's log whether it wrote the handler, and to which file: {logs}"
        yield (
            "If `pgrep -a containerd` on the node shows another file or socket for the kubelet's containerd "
            "(--config, --address), replace CONFIG and SOCKET by them: "
            f"{_set_files(snapshot, namespace, RuntimeFiles('CONFIG', 'SOCKET'))}"
        )


def _by_hand(node: Node | None, config: str) -> str:
    """Return the steps that install NVIDIA's handler on the node without the GPU operator."""
    kind = runtime_kind(node)
    # Distributions bring and configure only their own containerd, not CRI-O or Docker beside it.
    distribution = distribution_of(node) if node is not None and kind == CONTAINERD else ""
    # Canonical Kubernetes has the standard file unless the cluster sets containerd-base-dir.
    layout = layout_of(distribution) if distribution != K8S_SNAP else None
    unit = unit_of_role(node, distribution) if node is not None and distribution in (K3S, RKE2) else ""
    runtime = ContainerRuntime(
        config or (layout.config if layout is not None else STANDARD_FILE),
        kind,
        unit=unit,
        distribution=distribution,
    )
    steps = give_handler(runtime, with_operator=False)
    release = _RELEASE.match(node.kubelet) if node is not None else None
    steps = steps.replace("VERSION", release[1]) if release else steps
    if steps.startswith("`nvidia-ctk"):
        return f"{_INSTALL}: {steps}"
    return f"Run on the node: {steps}" if steps.startswith("`") else f"{steps[:1].upper()}{steps[1:]}"


def _observation(detail: str) -> str:
    """Return a finding's detail without its advice, which starts with the clause that contains the first command."""
    command_at = detail.find("`")
    if command_at < 0:
        return detail
    mark = max(detail.rfind(": ", 0, command_at), detail.rfind("; ", 0, command_at))
    return detail[:mark] if mark > 0 else detail


def _on_host(spec: PodSpec, key: str) -> str:
    """Return the file's path on the node: the mounted folder, and the name from the variable."""
    named = [
        container.env.get(name, "") for container in spec.containers if not container.init for name in _OLD_AND_NEW[key]
    ]
    value = next((path for path in named if path and path != OTHER_VALUE), "")
    folder = spec.host_volumes.get(_VOLUMES[key], "")
    return posixpath.join(folder, posixpath.basename(value or _STANDARD[key])) if folder else value


def _socket_of(node: Node) -> str:
    """Return the socket from our agent there, else from kubeadm's annotation; '' if neither has it."""
    recorded = node.inventory.runtime
    if recorded is not None and recorded.socket:
        return recorded.socket
    return node.meta.annotations.get(_CRI_SOCKET, "").removeprefix("unix://")


def _resolved(path: str) -> str:
    """Replace `/var/run` by `/run`, which is the same on all distributions."""
    clean = posixpath.normpath(path)
    return clean.removeprefix("/var") if clean.startswith("/var/run/") else clean
