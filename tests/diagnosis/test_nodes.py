"""GPU nodes that do not answer, and pods that should be gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.component_states import TOOLKIT, operator
from tests.diagnosis.states import Object, ago, condition, consequences, event, judged, node, obj, pod, results, waiting

SILENT = "Unknown"


def lease(name: str, minutes: float) -> Object:
    return obj("Lease", name, "kube-node-lease", spec={"holderIdentity": name, "renewTime": ago(minutes)})


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_gpu_node_that_is_not_ready(status: str) -> None:
    diagnosis = judged(node("a", ready=status), pod("x", on="a"))

    assert results(diagnosis) == [("NodeNotReady", "node/a")]
    assert "pod/team/x" in diagnosis.problems[0].found.affected


def test_unready_node_without_gpus_is_ignored() -> None:
    assert not results(judged(node("a", None, ready="False"), node("b")))


def test_node_that_joins_or_is_upgraded_is_ignored() -> None:
    joins = node("a", ready="False")
    joins["metadata"]["creationTimestamp"] = ago(3)
    upgrading = node("b", ready="False", cordoned=True, labels={"nvidia.com/gpu-driver-upgrade-state": "pod-restart"})
    flaps = node("c", ready="True")
    flaps["status"]["conditions"] = [condition("Ready", "Unknown", minutes=1)]

    assert not results(judged(joins))
    assert not results(judged(upgrading))
    assert not results(judged(flaps))


def test_stale_lease_beside_renewed_ones_is_reported() -> None:
    nodes = [node(name) for name in "abc"]

    assert results(judged(*nodes, lease("a", 9), lease("b", 0), lease("c", 0))) == [("NodeNotReady", "node/a")]
    assert not results(judged(*nodes, lease("a", 9), lease("b", 9), lease("c", 9)))


def test_pods_bound_to_a_missing_node_are_reported() -> None:
    bound = pod("x", on="a", phase="Pending")

    assert results(judged(node("b"), bound)) == [("GpuNodeGone", "node/a")]
    assert not results(judged(node("b"), pod("x", on="a", phase="Pending", age=2)))
    assert not results(judged(node("b"), pod("x", on="a")))
    assert not results(judged(bound, missing=["Node"]))


def test_pods_that_an_unready_node_does_not_delete_are_affected() -> None:
    pods = [pod(f"x-{number}", on="a", metadata={"deletionTimestamp": ago(45)}) for number in range(4)]

    diagnosis = judged(node("a", ready="Unknown"), *pods)
    assert results(diagnosis) == [("NodeNotReady", "node/a")]
    assert consequences(diagnosis.problems[0]) == [
        ("TerminatingPodHoldsGpus", f"pod/team/x-{number}") for number in range(4)
    ]


def test_pod_that_is_being_deleted_is_ignored() -> None:
    ends = pod("x", on="a", metadata={"deletionTimestamp": ago(3)})
    ended = pod("y", on="a", phase="Succeeded", metadata={"deletionTimestamp": ago(90), "finalizers": ["a/b"]})

    assert not results(judged(node("a"), ends, ended))


def test_kubelet_without_a_report_about_a_pod_is_reported() -> None:
    bound = pod("x", on="a", phase="Pending", age=30)

    assert results(judged(node("a"), bound)) == [("KubeletDoesNotAct", "node/a")]
    assert results(judged(node("a"), bound, lease("a", 25))) == [("KubeletDoesNotAct", "node/a")]
    heard = event(bound, "Pulling", "Pulling image", warning=False, minutes=29)
    assert not results(judged(node("a"), bound, heard))
    assert not results(judged(node("a"), pod("x", on="a", phase="Pending", age=4)))
    assert not results(judged(node("a"), bound, missing=["Event"]))


DOWN = "[container runtime is down, PLEG is not healthy: pleg was last seen active 9m3s ago; threshold is 3m0s]"
REFUSED = (
    "Failed to create pod sandbox: rpc error: code = Unavailable desc = connection error: desc = "
    '"transport: Error while dialing: dial unix /run/containerd/containerd.sock: connect: connection refused"'
)
NO_HANDLER = 'Failed to create pod sandbox: no runtime for "nvidia" is configured'
SERVER = {"node-role.kubernetes.io/control-plane": "true"}


def unready(message: str, reason: str = "KubeletNotReady", **changes: Any) -> Object:
    entry = node("a", **changes)
    status = "Unknown" if reason == "NodeStatusUnknown" else "False"
    entry["status"]["conditions"] = [condition("Ready", status, reason, message)]
    return entry


def test_runtime_that_is_down_is_one_problem_without_older_events() -> None:
    waits = pod("x", on="a", phase="Pending", states=[waiting("ContainerCreating")])
    refused = event(waits, "FailedCreatePodSandBox", REFUSED, count=40)
    older = event(waits, "FailedCreatePodSandBox", NO_HANDLER, count=2, minutes=15)

    diagnosis = judged(unready(DOWN), waits, refused, older)

    assert results(diagnosis) == [("ContainerRuntimeUnreachable", "node/a")]
    assert consequences(diagnosis.problems[0]) == [("NodeNotReady", "node/a")]
    steps = diagnosis.problems[0].found.steps
    assert "`journalctl -u containerd -n 100 --no-pager`" in steps[0]
    assert "`containerd config dump`" in steps[1]
    assert "kubelet`" not in " ".join(steps)
    assert results(judged(unready(DOWN), waits, older)) == [("NodeNotReady", "node/a")]
    assert results(judged(node("a", handlers=None), waits, older)) == [("RuntimeHandlerMissing", "node/a")]


def test_missing_handler_of_a_node_that_was_lost_since_is_no_cause() -> None:
    waits = pod("x", on="a", phase="Pending", age=500, states=[waiting("ContainerCreating")])
    silent = unready("Kubelet stopped posting node status.", "NodeStatusUnknown", handlers=None)  # for 300 minutes
    older, younger = (event(waits, "FailedCreatePodSandBox", NO_HANDLER, count=9, minutes=at) for at in (400, 200))

    assert results(judged(silent, waits, older)) == [("NodeNotReady", "node/a")]
    assert ("RuntimeHandlerMissing", "node/a") in results(judged(silent, waits, younger))


UNREADY: list[tuple[str, Object, str, str]] = [
    ("containerd", unready(DOWN), "journalctl -u containerd ", "systemctl restart containerd`"),
    ("CRI-O", unready(DOWN, runtime="cri-o://1.33.1"), "`crio config`", "systemctl restart crio`"),
    ("Docker", unready("container runtime is down", runtime="docker://28.1.0"), "dockerd --validate", "cri-docker`"),
    ("k3s", unready(DOWN, kubelet="v1.33.4+k3s1"), "agent/containerd/containerd.log", "systemctl restart k3s-agent`"),
    ("RKE2", unready(DOWN, kubelet="v1.33.4+rke2r1", labels=SERVER), "journalctl -u rke2-server", "rke2-server`"),
    ("Talos", unready(DOWN, system="Talos (v1.11.0)"), "talosctl -n a logs cri", "replace the node"),
    (
        *("OpenShift", unready(DOWN, runtime="cri-o://1.31.4", system="Red Hat Enterprise Linux CoreOS 418")),
        *("oc debug node/a -- chroot /host journalctl -u crio", "systemctl restart crio`"),
    ),
    (
        *("k3s with CRI-O", unready(DOWN, kubelet="v1.33.4+k3s1", runtime="cri-o://1.33.1")),
        *("journalctl -u crio", "systemctl restart crio`"),
    ),
    (
        *(
            "the network",
            unready("container runtime network not ready: NetworkReady=false: cni plugin not initialized"),
        ),
        *("network plugin's pod", "/etc/cni/net.d"),
    ),
    ("PLEG", unready("PLEG is not healthy: pleg was last seen active 5m ago"), "crictl ps -a", "kubectl cordon a"),
    (
        *("PLEG of Talos", unready("PLEG is not healthy: pleg was last seen", system="Talos (v1.11.0)")),
        *("talosctl -n a logs cri", "reboot the node"),
    ),
    (
        *("the kubelet", unready("Kubelet stopped posting node status.", "NodeStatusUnknown")),
        *("kubectl describe node a", "`systemctl status kubelet`"),
    ),
    (
        *("k3s' kubelet", unready("Kubelet stopped posting node status.", "NodeStatusUnknown", kubelet="v1.33.4+k3s1")),
        *("kubectl describe node a", "`systemctl status k3s-agent`"),
    ),
]


@pytest.mark.parametrize(("state", "first", "last"), [row[1:] for row in UNREADY], ids=[row[0] for row in UNREADY])
def test_steps_for_an_unready_node_are_for_the_part_that_fails(state: Object, first: str, last: str) -> None:
    (problem,) = judged(state).problems
    steps = problem.found.steps

    assert problem.found.cause.name == "NodeNotReady"
    assert first in " ".join(steps[:2])
    assert last in steps[-1]
    other = {"containerd.sock", "systemctl restart containerd"} if "cri-o" in str(state) else {"crio"}
    assert not any(word in " ".join(steps) for word in other)


@pytest.mark.parametrize(
    ("changes", "by_toolkit"),
    [
        ({"runtime": "containerd://2.3.2"}, True),
        ({"runtime": "containerd://1.7.28"}, False),
        ({"runtime": "containerd://2.1.5-k3s1", "kubelet": "v1.34.1+rke2r1"}, False),
        ({"runtime": "cri-o://1.33.1"}, False),
    ],
)
def test_toolkit_keeps_the_version_of_the_file_that_containerd_2_reads(changes: Object, by_toolkit: bool) -> None:
    (problem,) = judged(*operator(unready(DOWN, **changes), only=(TOOLKIT,))).problems
    steps = problem.found.steps

    assert problem.found.cause.name == "NodeNotReady"
    assert ("RUNTIME_CONFIG_SOURCE" in steps[-1] and "99-nvidia.toml /root/" in steps[-1]) is by_toolkit
