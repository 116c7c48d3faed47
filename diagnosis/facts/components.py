"""Recognise the components that GPUs need by labels, images and names, and assess their state. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import Enum
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.facts.gpu_nodes import gpu_nodes
from gpu_healthcheck.diagnosis.facts.placement import selects, tolerates
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.meta import Meta
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, Taint
from gpu_healthcheck.diagnosis.snapshot.pods import Container, Pod, PodSpec, Toleration
from gpu_healthcheck.diagnosis.snapshot.workloads import Workload
from gpu_healthcheck.healthcheck.node.label_selector import Expression

_DAEMON = tuple(
    Toleration(f"node.kubernetes.io/{key}", "Exists", "", "")
    for key in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
)
"""Tolerations that the DaemonSet controller adds to its pods."""
_HOST_NETWORK = Toleration("node.kubernetes.io/network-unavailable", "Exists", "", "")
_NODE_NAME = "metadata.name"
DOMAIN_LABEL = "resource.nvidia.com/computeDomain"
"""Label with the UID of a ComputeDomain: of its nodes, of its DaemonSet, and of the pods of that."""
_OWNED_TESTS = ("nvidia-cuda-validator", "nvidia-device-plugin-validator")
"""Pods that the operator's validator creates and owns: they run once, and do not count as its pods."""
_KINDS = {"daemonset": "DaemonSet", "deployment": "Deployment", "statefulset": "StatefulSet"}
YOUNG = timedelta(minutes=10)
"""Minimum age of a node or pod to judge it: images are gigabytes, a driver may be built first."""


class Role(Enum):
    """Role of a component, in the order in which one waits for another. The value is shown to people."""

    OPERATOR = "GPU operator"
    NODE_FEATURES = "node feature discovery"
    DRIVER = "driver"
    TOOLKIT = "container toolkit"
    DEVICE_PLUGIN = "device plugin"
    MPS = "MPS control daemon"
    GPU_FEATURES = "GPU feature discovery"
    DCGM = "DCGM"
    EXPORTER = "DCGM exporter"
    MIG_MANAGER = "MIG manager"
    VALIDATOR = "operator validator"
    CUDA_VALIDATOR = "CUDA validator"
    SANDBOX = "devices for virtual machines"
    DRA_DRIVER = "DRA driver"
    DOMAIN_DAEMON = "ComputeDomain daemon"
    EFA_PLUGIN = "EFA device plugin"
    NETWORK_DRA = "network DRA driver"
    RDMA_PLUGIN = "RDMA shared device plugin"
    SRIOV_PLUGIN = "SR-IOV device plugin"
    HAMI_SCHEDULER = "HAMi scheduler"
    HAMI_PLUGIN = "HAMi device plugin"
    AGENT = "GPU health agent"
    SWEEPER = "GPU health sweeper"


class Health(Enum):
    """Health of a component."""

    WORKING = "working"
    PARTLY = "partly"
    """Some of its pods are not ready."""
    DOWN = "down"
    IDLE = "not wanted"
    """It needs no pod: it selects no node, or is scaled to zero."""
    UNKNOWN = "not visible"


class Component(Struct, frozen=True):
    """One workload, or the common properties of its pods if the workload is not visible.

    `wanted`, `made` and `ready` are numbers of pods; None if unknown.
    """

    role: Role
    meta: Meta
    version: str
    wanted: int | None
    made: int | None
    ready: int | None
    spec: PodSpec
    pods: tuple[Pod, ...] = ()

    @property
    def subject(self) -> str:
        return self.meta.subject

    @property
    def health(self) -> Health:
        if self.wanted is None or self.ready is None:
            return Health.UNKNOWN
        if not self.wanted:
            return Health.IDLE
        return Health.WORKING if self.ready >= self.wanted else Health.PARTLY if self.ready else Health.DOWN

    def pod_on(self, node: str) -> Pod | None:
        """Return the component's newest pod on the node that has not ended."""
        there = [pod for pod in self.pods if pod.spec.node == node and not pod.over]
        return max(there, key=lambda pod: (pod.meta.deleted is None, str(pod.meta.created)), default=None)


@lru_cache(maxsize=1)
def components(snapshot: Snapshot) -> tuple[Component, ...]:
    """Return all recognised components, sorted by role and name."""
    owned = _by_owner(snapshot)
    found = []
    for workload in snapshot.workloads:
        if workload.meta.kind in _KINDS.values() and workload.spec is not None:
            pods = owned.pop(workload.subject, [])
            role = role_of(workload.meta, workload.template_labels, workload.spec)
            if role is not None:
                found.append(_of_workload(role, workload, pods))
    found += filter(None, (_of_pods(subject, pods) for subject, pods in owned.items()))
    order = list(Role)
    return tuple(sorted(found, key=lambda component: (order.index(component.role), component.subject)))


def lacking(component: Component, nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the nodes that a DaemonSet selects and on which it has no ready pod."""
    if component.meta.kind != "DaemonSet":
        return ()
    ready = {pod.spec.node for pod in component.pods if is_ready(pod)}
    return tuple(sorted(node.name for node in nodes if node.name not in ready and is_for(component.spec, node)))


class ComponentRow(Struct, frozen=True):
    """Row of the component table: a component with the GPU nodes on which it should work and does not."""

    component: Component
    lacking: tuple[str, ...] = ()


def component_table(snapshot: Snapshot) -> tuple[ComponentRow, ...]:
    """Return all components, without the validator's tests.

    The nodes that each component lacks are included if pods and nodes are visible.
    """
    nodes = gpu_nodes(snapshot) if snapshot.sees("Node") and snapshot.sees_all_pods else ()
    every = (component for component in components(snapshot) if component.role is not Role.CUDA_VALIDATOR)
    return tuple(ComponentRow(component, lacking(component, nodes)) for component in every)


def role_of(meta: Meta, labels: Mapping[str, str], spec: PodSpec) -> Role | None:
    """Return the role by the object's labels, else by its name, else by the image that it runs."""
    words = {**labels, **meta.labels}
    if DOMAIN_LABEL in words:
        return Role.DOMAIN_DAEMON
    for key in ("app", "app.kubernetes.io/component", "app.kubernetes.io/name", "k8s-app", "name"):
        role = _LABELS.get((key, words.get(key, "")))
        if role is not None:
            return _narrowed(role, meta.name)
    if words.get("app.kubernetes.io/name") == "gpu-healthcheck":
        return {"agent": Role.AGENT, "sweeper": Role.SWEEPER}.get(words.get("app.kubernetes.io/component", ""))
    if meta.name.startswith(_STEMS):
        return _narrowed(next(role for stem, role in _NAMES if meta.name.startswith(stem)), meta.name)
    return next((role for container in spec.containers if not container.init if (role := _by_image(container))), None)


def is_for(spec: PodSpec, node: Node) -> bool:
    """Whether a DaemonSet with this pod spec should have a pod on the node."""
    return selects(spec, node) and not refused(spec, node)


def refused(spec: PodSpec, node: Node) -> tuple[Taint, ...]:
    """Return the node's taints that keep a DaemonSet's pods off."""
    also = (*_DAEMON, _HOST_NETWORK) if spec.host_network else _DAEMON
    tolerations = (*spec.tolerations, *also)
    blocking = (taint for taint in node.taints if taint.effect != "PreferNoSchedule")
    return tuple(taint for taint in blocking if not tolerates(tolerations, taint))


def is_ready(pod: Pod) -> bool:
    """Whether the pod runs, is not being deleted, and all its containers are ready as far as known."""
    condition = pod.condition("Ready")
    if pod.phase != "Running" or pod.meta.deleted is not None:
        return False
    if condition is not None:
        return condition.status == "True"
    return all(state.ready for state in pod.states if not state.init)


def _by_owner(snapshot: Snapshot) -> dict[str, list[Pod]]:
    """Return pods by the subject of their owner: the Deployment, not its ReplicaSet."""
    between = {each.subject: each.meta.owner for each in snapshot.workloads if each.meta.kind == "ReplicaSet"}
    owned: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        owner = pod.meta.owner
        subject = pod.subject
        if owner is not None and pod.meta.labels.get("app") not in _OWNED_TESTS:
            subject = f"{owner.kind.lower()}/{pod.meta.namespace}/{owner.name}"
            if owner.kind == "ReplicaSet":
                above = between.get(subject)
                name = above.name if above is not None else owner.name.rpartition("-")[0]
                subject = f"deployment/{pod.meta.namespace}/{name}"
        owned[subject].append(pod)
    return owned


def _of_workload(role: Role, workload: Workload, pods: list[Pod]) -> Component:
    assert workload.spec is not None
    # The pods show the actual state; the workload's own count may lag behind.
    ready = sum(map(is_ready, pods)) if any(not pod.over for pod in pods) else workload.ready or 0
    return Component(
        role,
        workload.meta,
        version_of(workload.spec, role),
        workload.wanted,
        workload.made,
        ready,
        workload.spec,
        tuple(pods),
    )


def _of_pods(subject: str, pods: list[Pod]) -> Component | None:
    """Return the component for these pods, if only the pods are visible."""
    living = [pod for pod in pods if not pod.over]
    if not living:
        return None
    first = living[0]
    role = role_of(first.meta, {}, first.spec)
    if role is None:
        return None
    kind, _, name = subject.partition("/")
    meta = Meta(_KINDS.get(kind, first.meta.kind), first.meta.namespace, name.rpartition("/")[2])
    number, ready = len(living), sum(map(is_ready, living))
    spec = replace(first.spec, affinity=_of_template(first.spec))
    return Component(role, meta, version_of(spec, role), number, number, ready, spec, tuple(pods))


def _of_template(spec: PodSpec) -> tuple[tuple[Expression, ...], ...] | None:
    """Return the node affinity without the node name that the DaemonSet controller adds to each pod."""
    terms = tuple(tuple(each for each in term if each.key != _NODE_NAME) for term in spec.affinity or ())
    return terms if terms and all(terms) else None


def version_of(spec: PodSpec, role: Role | None = None) -> str:
    """Return the version from the image of the first running container.

    HAMi's scheduler is the second container: the first one is Kubernetes' own scheduler, which calls it.
    """
    running = [container for container in spec.containers if not container.init]
    if role is Role.HAMI_SCHEDULER:
        running.sort(key=lambda container: "extender" not in container.name)
    return tag_of(next((container.image for container in running), ""))


def tag_of(image: str) -> str:
    """Return the image's tag, or the beginning of its digest."""
    name, _, digest = image.partition("@")
    return name.rpartition("/")[2].partition(":")[2] or digest[:19]


def _narrowed(role: Role, name: str) -> Role | None:
    """Return the role by name among the device plugin chart's DaemonSets, which share labels and image."""
    if role is Role.DEVICE_PLUGIN and "gpu-feature-discovery" in name:
        return Role.GPU_FEATURES
    if role is Role.DEVICE_PLUGIN and "mps-control-daemon" in name:
        return Role.MPS
    return role


def _by_image(container: Container) -> Role | None:
    stem = container.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    role = _IMAGES.get(stem)
    return _narrowed(role, container.name) if role is not None else None


_LABELS: dict[tuple[str, str], Role] = {
    ("app", "gpu-operator"): Role.OPERATOR,
    ("app.kubernetes.io/component", "gpu-operator"): Role.OPERATOR,
    ("app", "nvidia-driver-daemonset"): Role.DRIVER,
    ("app.kubernetes.io/component", "nvidia-driver"): Role.DRIVER,
    ("k8s-app", "nvidia-driver-installer"): Role.DRIVER,
    ("app", "nvidia-container-toolkit-daemonset"): Role.TOOLKIT,
    ("app", "nvidia-device-plugin-daemonset"): Role.DEVICE_PLUGIN,
    ("app.kubernetes.io/component", "gpu-feature-discovery"): Role.GPU_FEATURES,
    ("app.kubernetes.io/name", "nvidia-device-plugin"): Role.DEVICE_PLUGIN,
    ("k8s-app", "nvidia-gpu-device-plugin"): Role.DEVICE_PLUGIN,
    ("name", "nvidia-device-plugin-ds"): Role.DEVICE_PLUGIN,
    ("app", "nvidia-device-plugin-mps-control-daemon"): Role.MPS,
    ("app", "gpu-feature-discovery"): Role.GPU_FEATURES,
    ("app.kubernetes.io/name", "gpu-feature-discovery"): Role.GPU_FEATURES,
    ("app.kubernetes.io/name", "node-feature-discovery"): Role.NODE_FEATURES,
    ("app", "nfd"): Role.NODE_FEATURES,
    ("app", "nvidia-dcgm"): Role.DCGM,
    ("app", "nvidia-dcgm-exporter"): Role.EXPORTER,
    ("app.kubernetes.io/name", "dcgm-exporter"): Role.EXPORTER,
    ("app", "nvidia-mig-manager"): Role.MIG_MANAGER,
    ("app", "nvidia-operator-validator"): Role.VALIDATOR,
    ("app", "nvidia-cuda-validator"): Role.CUDA_VALIDATOR,
    ("app", "nvidia-device-plugin-validator"): Role.CUDA_VALIDATOR,
    ("app", "nvidia-sandbox-device-plugin-daemonset"): Role.SANDBOX,
    ("app", "nvidia-sandbox-validator"): Role.SANDBOX,
    ("app", "nvidia-vfio-manager"): Role.SANDBOX,
    ("app", "nvidia-vgpu-manager-daemonset"): Role.SANDBOX,
    ("app", "nvidia-vgpu-device-manager"): Role.SANDBOX,
    ("app.kubernetes.io/name", "nvidia-dra-driver-gpu"): Role.DRA_DRIVER,
    ("app.kubernetes.io/name", "dra-driver-nvidia-gpu"): Role.DRA_DRIVER,
    ("app.kubernetes.io/name", "nvidia-dra-driver"): Role.DRA_DRIVER,
    ("name", "aws-efa-k8s-device-plugin"): Role.EFA_PLUGIN,
    ("app.kubernetes.io/name", "aws-efa-k8s-device-plugin"): Role.EFA_PLUGIN,
    ("k8s-app", "aws-dranet"): Role.NETWORK_DRA,
    ("app.kubernetes.io/name", "aws-dranet"): Role.NETWORK_DRA,
    ("app.kubernetes.io/name", "aws-net-k8s-dra-plugin"): Role.NETWORK_DRA,
    ("app", "rdma-shared-dp"): Role.RDMA_PLUGIN,
    ("name", "rdma-shared-dp-ds"): Role.RDMA_PLUGIN,
    ("app", "sriovdp"): Role.SRIOV_PLUGIN,
    ("app", "sriov-device-plugin"): Role.SRIOV_PLUGIN,
    ("app.kubernetes.io/component", "hami-scheduler"): Role.HAMI_SCHEDULER,
    ("app.kubernetes.io/component", "hami-device-plugin"): Role.HAMI_PLUGIN,
}
_NAMES = (
    ("nvidia-driver-daemonset", Role.DRIVER),
    ("nvidia-driver-installer", Role.DRIVER),
    ("nvidia-gpu-driver-", Role.DRIVER),
    ("nvidia-container-toolkit-daemonset", Role.TOOLKIT),
    ("nvidia-device-plugin-mps-control-daemon", Role.MPS),
    ("nvidia-device-plugin", Role.DEVICE_PLUGIN),
    ("nvidia-gpu-device-plugin", Role.DEVICE_PLUGIN),
    ("gpu-feature-discovery", Role.GPU_FEATURES),
    ("nvidia-dcgm-exporter", Role.EXPORTER),
    ("dcgm-exporter", Role.EXPORTER),
    ("nvidia-dcgm", Role.DCGM),
    ("nvidia-mig-manager", Role.MIG_MANAGER),
    ("nvidia-operator-validator", Role.VALIDATOR),
    ("nvidia-cuda-validator", Role.CUDA_VALIDATOR),
    ("nvidia-dra-validator", Role.VALIDATOR),
    ("nvidia-sandbox-", Role.SANDBOX),
    ("nvidia-vgpu-", Role.SANDBOX),
    ("nvidia-dra-driver-", Role.DRA_DRIVER),
    ("dra-driver-nvidia-gpu", Role.DRA_DRIVER),
    ("aws-efa-k8s-device-plugin", Role.EFA_PLUGIN),
    ("aws-dranet", Role.NETWORK_DRA),
    ("aws-net-k8s-dra-plugin", Role.NETWORK_DRA),
    ("rdma-shared-dp", Role.RDMA_PLUGIN),
    ("kube-sriov-device-plugin", Role.SRIOV_PLUGIN),
    ("sriov-device-plugin", Role.SRIOV_PLUGIN),
    ("gpu-healthcheck-agent", Role.AGENT),
    ("gpu-healthcheck-sweeper", Role.SWEEPER),
    ("hami-scheduler", Role.HAMI_SCHEDULER),
    ("hami-device-plugin", Role.HAMI_PLUGIN),
)
"""Name prefixes, the longer ones first."""
_STEMS = tuple(stem for stem, _ in _NAMES)
_IMAGES = {
    "gpu-operator": Role.OPERATOR,
    "k8s-device-plugin": Role.DEVICE_PLUGIN,
    "nvidia-gpu-device-plugin": Role.DEVICE_PLUGIN,
    "container-toolkit": Role.TOOLKIT,
    "gpu-feature-discovery": Role.GPU_FEATURES,
    "node-feature-discovery": Role.NODE_FEATURES,
    "dcgm-exporter": Role.EXPORTER,
    "k8s-mig-manager": Role.MIG_MANAGER,
    "k8s-dra-driver-gpu": Role.DRA_DRIVER,
    "dra-driver-nvidia-gpu": Role.DRA_DRIVER,
    "aws-efa-k8s-device-plugin": Role.EFA_PLUGIN,
    "dranet": Role.NETWORK_DRA,
    "networking-device-dra-plugin": Role.NETWORK_DRA,
    "k8s-rdma-shared-dev-plugin": Role.RDMA_PLUGIN,
    "sriov-network-device-plugin": Role.SRIOV_PLUGIN,
}
