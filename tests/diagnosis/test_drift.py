"""Changes between two snapshots that can stop a GPU pod."""

from __future__ import annotations

from gpu_healthcheck.diagnosis.answers.drift import changes
from tests.diagnosis.states import GPU, container, node, obj, snapshot


def _daemon(image: str, config: str) -> dict[str, object]:
    env = [{"name": "CONTAINERD_CONFIG", "value": config}]
    spec = {"containers": [container("toolkit", image=image, env=env)], "volumes": [{"hostPath": {"path": config}}]}
    return obj("DaemonSet", "toolkit", "gpu-operator", spec={"template": {"spec": spec}})


def test_changes_have_both_values() -> None:
    old = snapshot(
        node("a"), node("gone"), _daemon("toolkit:1", "/etc/a"), obj("RuntimeClass", "nvidia", handler="nvidia")
    )
    new = snapshot(
        node("a", runtime="containerd://2.2.0", handlers=("", "runc"), allocatable={GPU: "0"}, cordoned=True),
        node("new"),
        _daemon("toolkit:2", "/etc/b"),
        obj("RuntimeClass", "nvidia", handler="Nvidia"),
    )
    assert [str(change) for change in changes(old, new)] == [
        "node/a: allocatable nvidia.com/gpu: 8 → 0",
        "node/a: container runtime: containerd://2.1.4 → containerd://2.2.0",
        "node/a: cordoned: false → true",
        "node/a: runtime handlers: nvidia, runc → runc",
        "node/a: taints: (none) → node.kubernetes.io/unschedulable:NoSchedule",
        "node/gone: gone: there → (none)",
        "node/new: new: (none) → there",
        "daemonset/gpu-operator/toolkit: CONTAINERD_CONFIG of toolkit: /etc/a → /etc/b",
        "daemonset/gpu-operator/toolkit: host paths: /etc/a → /etc/b",
        "daemonset/gpu-operator/toolkit: image of toolkit: toolkit:1 → toolkit:2",
        "runtimeclass/nvidia: handler: nvidia → Nvidia",
    ]


def test_changes_of_equal_states_are_none() -> None:
    assert changes(snapshot(node("a")), snapshot(node("a"))) == ()


def test_changes_omit_kinds_that_one_state_does_not_see() -> None:
    assert changes(snapshot(node("a")), snapshot(missing=("Node",))) == ()
