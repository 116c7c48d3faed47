from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.diagnosis.component_states import (
    NAMESPACE,
    PLUGIN,
    daemon,
    gpu_node,
    operand,
    operator,
)
from tests.diagnosis.states import GPU, Object, consequences, judged, node, pod, results, waiting

A, B = gpu_node("a"), gpu_node("b")
PLAIN = node("b", None, labels={"feature.node.kubernetes.io/pci-10de.present": "true"})
OTHER = "nvidia-device-plugin"
IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.18.0"
HAMI = {"app.kubernetes.io/component": "hami-device-plugin"}
TAINTED = gpu_node("b", None, taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
MIG = {GPU: "0", "nvidia.com/mig-1g.10gb": "56"}


def alone(*nodes: Object, labels: dict[str, str] | None = None) -> list[Object]:
    """The plugin's own chart, which selects all nodes."""
    names = labels or {"app.kubernetes.io/name": "nvidia-device-plugin"}
    pods = [
        operand(OTHER, node["metadata"]["name"], namespace="kube-system", labels=names, owner=("DaemonSet", OTHER))
        for node in nodes
    ]
    return [daemon(OTHER, wanted=len(nodes), namespace="kube-system", labels=names, selector={}, tolerations=[]), *pods]


def only_on_a(b: Object) -> list[Object]:
    """The operator's cluster, without operands on b."""
    return [
        entry for entry in operator(A, b) if not (entry["kind"] == "Pod" and entry["metadata"]["name"].endswith("-b"))
    ]


BY_TYPE = node("b", None, labels={"node.kubernetes.io/instance-type": "g5.xlarge"})


def by_affinity() -> list[Object]:
    """The plugin's own chart, which selects nodes by labels of feature discovery, and runs nowhere."""
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": ["true"]}]}
        for key in ("feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present")
    ]
    plugin = alone()[0]
    plugin["spec"]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    return [plugin, pod("dns", 0, on="a", namespace="kube-system")]


SICK: list[tuple[str, list[Object], tuple[str, str]]] = [
    ("nothing registered", operator(A, gpu_node("b", None)), ("GpusNotOffered", "node/b")),
    ("capacity and allocatable 0", operator(A, gpu_node("b", 0)), ("GpusNotOffered", "node/b")),
    ("all unhealthy", operator(A, gpu_node("b", allocatable={GPU: "0"})), ("UnhealthyGpus", "node/b")),
    (
        "all unhealthy, beside a network device of that name",
        operator(A, gpu_node("b", allocatable={GPU: "0", "rdma/gpu0": "1"}, capacity={"rdma/gpu0": "1"})),
        ("UnhealthyGpus", "node/b"),
    ),
    ("one unhealthy", operator(A, gpu_node("b", allocatable={GPU: "7"})), ("UnhealthyGpus", "node/b")),
    (
        "one MIG instance unhealthy",
        operator(A, gpu_node("b", allocatable={**MIG, "nvidia.com/mig-1g.10gb": "55"}, capacity=MIG)),
        ("UnhealthyGpus", "node/b"),
    ),
    (
        "fewer than counted",
        operator(A, gpu_node("b", 7, labels={"nvidia.com/gpu.count": "8"})),
        ("FewerGpusThanLabelled", "node/b"),
    ),
    (
        "fewer than shared",
        operator(A, gpu_node("b", 28, labels={"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "4"})),
        ("FewerGpusThanLabelled", "node/b"),
    ),
    ("nothing but nodes is visible", [gpu_node("a", None)], ("GpusNotOffered", "node/a")),
    (
        "no plugin at all",
        [gpu_node("a", None), gpu_node("b", None), pod("dns", 0, on="a", namespace="kube-system")],
        ("DevicePluginMissing", f"resource/{GPU}"),
    ),
    (
        "by its type",
        [
            node("a", None, labels={"node.kubernetes.io/instance-type": "ml.p5.48xlarge"}),
            pod("dns", 0, on="a", namespace="kube-system"),
        ],
        ("DevicePluginMissing", f"resource/{GPU}"),
    ),
    ("not selected", only_on_a(PLAIN), ("DevicePluginMissing", "node/b")),
    ("not by its affinity", [BY_TYPE, *by_affinity()], ("DevicePluginMissing", "node/b")),
    ("not tolerated", only_on_a(TAINTED), ("DevicePluginMissing", f"daemonset/{NAMESPACE}/{PLUGIN}")),
    ("two plugins", [*operator(A, B), *alone(A, B)], ("TwoDevicePlugins", f"daemonset/kube-system/{OTHER}")),
    ("beside HAMi's", [*operator(A), *alone(A, labels=HAMI)], ("TwoDevicePlugins", f"daemonset/{NAMESPACE}/{PLUGIN}")),
]


@pytest.mark.parametrize(("state", "expected"), [pair[1:] for pair in SICK], ids=[pair[0] for pair in SICK])
def test_the_advertised_gpus_of_a_node_are_shown(state: list[Object], expected: tuple[str, str]) -> None:
    assert results(judged(*state)) == [expected]


HEALTHY: list[tuple[str, list[Object]]] = [
    ("shared", operator(gpu_node("a", 32, labels={"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "4"}))),
    (
        "shared under another name",
        operator(
            gpu_node("a", 0, allocatable={"nvidia.com/gpu.shared": "32"}, capacity={"nvidia.com/gpu.shared": "32"})
        ),
    ),
    (
        "cut by MIG, some whole",
        operator(
            gpu_node(
                "a",
                4,
                allocatable={"nvidia.com/mig-1g.10gb": "28"},
                capacity={"nvidia.com/mig-1g.10gb": "28"},
                labels={"nvidia.com/gpu.count": "8"},
            )
        ),
    ),
    ("cut by MIG, none whole", operator(gpu_node("a", 8, allocatable=MIG, capacity=MIG))),
    (
        "HAMi's places on cards",
        [
            gpu_node("a", 80, labels={"nvidia.com/gpu.count": "8"}, annotations={"hami.io/node-nvidia-register": "[]"}),
            *alone(A, labels=HAMI),
        ],
    ),
    (
        "switched off by a person",
        [*operator(A), gpu_node("b", None, labels={"nvidia.com/gpu.deploy.device-plugin": "false"})],
    ),
    ("no operands at all", [*operator(A), gpu_node("b", None, labels={"nvidia.com/gpu.deploy.operands": "false"})]),
    (
        "paused for an upgrade",
        [
            *operator(A),
            gpu_node("b", None, labels={"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}),
        ],
    ),
    (
        "for virtual machines",
        [*operator(A), gpu_node("b", None, labels={"nvidia.com/gpu.workload.config": "vm-passthrough"})],
    ),
    ("a new node", [*operator(A), gpu_node("b", None, age=3)]),
    (
        "a node that does not answer to be judged",
        [*operator(A), gpu_node("b", None, metadata={"deletionTimestamp": "2026-11-22T11:59:00Z"})],
    ),
    ("a plugin of the host's own", [node("a"), pod("x", 8, on="a")]),
    ("a plugin that has just started", [*operator(A), gpu_node("b", None, age=20), operand(PLUGIN, "b", age=2)]),
    ("no GPU node", [node("a", None)]),
    ("a node that offers none and has none", [node("a", None, capacity={GPU: "0"}, allocatable={GPU: "0"})]),
    ("AMD's", [node("a", None, labels={"node.kubernetes.io/instance-type": "g4ad.xlarge"})]),
]


@pytest.mark.parametrize("state", [pair[1] for pair in HEALTHY], ids=[pair[0] for pair in HEALTHY])
def test_intended_states_have_no_causes(state: list[Object]) -> None:
    assert results(judged(*state)) == []


LOG = (f"pod/{NAMESPACE}/{PLUGIN}-b", f"{PLUGIN}-ctr")
WITHOUT = operator(A, gpu_node("b", allocatable={GPU: "0"}))
MPS = (
    "E0610 main.go:301] Failed to start plugin: error waiting for MPS daemon: error checking MPS daemon health: exit 1"
)


def mps(*, wanted: int = 0, **changes: Any) -> Object:
    """The chart's DaemonSet of the MPS control daemon."""
    selector = {"nvidia.com/mps.capable": "true"}
    labels = {"app.kubernetes.io/name": "nvidia-device-plugin"}
    return daemon("x-mps-control-daemon", wanted=wanted, labels=labels, selector=selector, image=IMAGE, **changes)


def remedy_of(log: str, *state: Object) -> tuple[str, ...]:
    """Return the remedy of node b, whose plugin has this log and has never registered."""
    (problem,) = judged(*state, logs={LOG: log}).problems
    assert (problem.found.cause.name, problem.found.subject) == ("GpusNotOffered", "node/b")
    return problem.found.remedy


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            (
                "E0506 factory.go:112] Incompatible strategy detected auto\nI0506 main.go:381] No devices found. "
                "Waiting indefinitely."
            ),
            "run it with the nvidia runtime",
        ),
        (
            (
                "I1128 server.go:120] Could not register device plugin: rpc error: code = Unknown desc = device plugin "
                "already connected: /var/lib/kubelet/device-plugins/nvidia-gpu.sock"
            ),
            "restart the kubelet on the node",
        ),
        ("E0401 main.go:310] Could not contact Kubelet. Did you enable the device plugin feature gate?", "on k0s"),
        ("E0401 main.go:123] error starting plugins: unable to load config: unable to finalize config", "invalid"),
        ("E0401 main.go:173] Failed to initialize NVML: Driver Not Loaded. Waiting: error", "module is not loaded"),
    ],
)
def test_plugin_that_never_registered_has_the_fix_of_its_log(log: str, words: str) -> None:
    first, restart = remedy_of(log, *WITHOUT)

    assert words in first
    assert f"delete pod {PLUGIN}-b" in restart


def test_plugin_that_selects_by_affinity_gets_the_label_that_needs_no_discovery() -> None:
    state = by_affinity()
    (problem,) = judged(BY_TYPE, *state).problems
    assert problem.found.remedy[0] == "Label the node: `kubectl label node b nvidia.com/gpu.present=true`"

    labelled = node("b", None, labels={**BY_TYPE["metadata"]["labels"], "nvidia.com/gpu.present": "true"})
    assert "requires" not in " ".join(judged(labelled, *state).problems[0].found.evidence)


def test_mps_daemon_that_selects_no_node_is_given_its_label() -> None:
    label = {"nvidia.com/mps.capable": "true"}
    first, *_ = remedy_of(MPS, *WITHOUT, mps())
    runs = operand("x-mps-control-daemon", "b", image=IMAGE, labels={"app.kubernetes.io/name": "nvidia-device-plugin"})
    labelled = operator(A, gpu_node("b", allocatable={GPU: "0"}, labels=label))

    assert f"daemonset/{NAMESPACE}/x-mps-control-daemon" in first
    assert "`kubectl label node b nvidia.com/mps.capable=true --overwrite`" in first
    assert "chart and the GPU operator run" in remedy_of(MPS, *WITHOUT)[0]
    (hidden,) = judged(*WITHOUT, logs={LOG: MPS}, missing=["DaemonSet"]).problems
    assert "nvidia.com/mps.capable=true: `kubectl get daemonsets -A`" in hidden.found.remedy[0]
    assert "logs x-mps-control-daemon-b" in remedy_of(MPS, *labelled, mps(wanted=1), runs)[0]
    assert results(judged(*operator(A, gpu_node("b", labels=label)), mps(wanted=1), runs, logs={LOG: MPS})) == []


def test_plugin_that_registered_after_the_failure_reports_unhealthy_gpus() -> None:
    log = f"{MPS}\nI0610 server.go:146] Registered device plugin for 'nvidia.com/gpu' with Kubelet"
    (problem,) = judged(*WITHOUT, mps(), logs={LOG: log}).problems

    assert problem.found.cause.name == "UnhealthyGpus"
    assert not any("MPS" in line for line in (*problem.found.evidence, *problem.found.remedy))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("E1128 main.go:1] specified config a100-mps does not exist", "names no key of the plugin's ConfigMap"),
        ("E1128 main.go:1] using MPS requires --mps-root to be specified", "Helm chart"),
        ("E0904 main.go:84] error getting GPU device minor number: Not Supported", "sharing.timeSlicing instead"),
        (
            "E0723 main.go:182] at least one device with migEnabled=true was not configured correctly: device 0",
            "set another value, then this one",
        ),
        ("E1128 main.go:1] failed to construct resource managers: invalid device discovery strategy", "nvidia runtime"),
    ],
)
def test_plugin_that_does_not_start_has_the_fix_of_its_log(line: str, words: str) -> None:
    states = [waiting("CrashLoopBackOff", name=f"{PLUGIN}-ctr", restartCount=9)]
    state = [*only_on_a(gpu_node("b", None)), operand(PLUGIN, "b", states=states, conditions=[])]
    (problem,) = [each for each in judged(*state, logs={LOG: line}).problems if PLUGIN in str(each.found)]

    assert any(words in step for step in problem.found.remedy)


def test_plugin_that_offers_nothing_is_a_consequence_of_the_mps_daemon() -> None:
    crash = [waiting("CrashLoopBackOff", name="mps-control-daemon-ctr", restartCount=9)]
    labels = {"app.kubernetes.io/name": "nvidia-device-plugin"}
    crashes = operand("x-mps-control-daemon", "b", image=IMAGE, labels=labels, states=crash, conditions=[])
    (problem,) = judged(*WITHOUT, mps(wanted=1), crashes).problems

    assert problem.found.cause.name == "MpsDaemonNotReady"
    assert consequences(problem) == [("UnhealthyGpus", "node/b")]


def test_rejections_are_a_consequence_of_two_plugins() -> None:
    words = f"Allocate failed due to requested number of devices unavailable for {GPU}. Requested: 1, Available: 0"
    lost = pod("lost", on="a", phase="Failed", status={"reason": "UnexpectedAdmissionError", "message": words})

    (problem,) = judged(*operator(A), *alone(A), lost).problems
    assert problem.found.cause.name == "TwoDevicePlugins"
    assert consequences(problem) == [("GpusUnavailableAtAdmission", "node/a")]
    assert results(judged(*operator(A), lost)) == [("GpusUnavailableAtAdmission", "node/a")]


def removal(*state: Object) -> str:
    (found,) = [problem.found for problem in judged(*state).problems if problem.found.cause.name == "TwoDevicePlugins"]
    return found.remedy[0]


def test_second_plugin_is_removed_where_it_is_installed_from() -> None:
    marks = {"meta.helm.sh/release-name": "nvdp", "meta.helm.sh/release-namespace": "plugins"}
    second, *pods = alone(A)
    by_helm = deepcopy(second)
    by_helm["metadata"]["labels"]["helm.sh/chart"] = "nvidia-device-plugin-0.17.1"
    by_helm["metadata"]["annotations"] = marks

    assert f"`kubectl -n kube-system delete daemonset {OTHER}`" in removal(*operator(A), second, *pods)
    assert "`helm uninstall nvdp -n plugins`" in removal(*operator(A), by_helm, *pods)
    policy = (
        """`kubectl patch clusterpolicy cluster-policy --type=merge -p '{"spec":{"devicePlugin":{"enabled":false}}}'`"""
    )
    assert policy in removal(*operator(A), *alone(A, labels=HAMI))
