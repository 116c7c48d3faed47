"""Pods of the node by UID: malformed and endless answers of the kubelet and of the container runtime."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.probes.kubelet_pods import (
    MOST_PODS,
    PODS_API,
    LocalPod,
    by_uid,
    pods_of_kubelet,
    pods_of_runtime,
    read_pods,
)
from tests.host.grpc_server import answers_to, serving

RUNTIME = "/run/containerd/containerd.sock"


def entry(uid: object = "u", name: object = "p", namespace: object = "n") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "name": name, "namespace": namespace}}


HOSTILE = [entry(uid="../x"), entry(uid="x" * 65), entry(uid="u\n"), entry(name=""), entry(name="x" * 254), {}]


@pytest.mark.parametrize(("read", "key"), [(pods_of_kubelet, "pods"), (pods_of_runtime, "items")])
def test_malformed_and_endless_pods_of_the_node_are_left_out(read: Callable[..., Any], key: str) -> None:
    many = [entry(uid=f"u-{number}") for number in range(MOST_PODS + 1000)]
    kept = by_uid(read({key: [*HOSTILE, entry(), *many]}))

    assert len(kept) == MOST_PODS
    assert (kept["u"].namespace, kept["u"].name) == ("n", "p")
    assert {uid for uid in kept if not uid.startswith("u")} == set()


def test_a_pod_of_the_runtime_has_unknown_tolerations() -> None:
    (found,) = by_uid(pods_of_runtime({"items": [entry()]})).values()

    assert found == LocalPod("n", "p", None)


CARD = "GPU-01234567-89ab-cdef-0123-456789abcdef"
CARDS = frozenset({CARD})
HAMIS = {"annotations": [{"key": "hami.io/vgpu-devices-allocated", "value": f"{CARD}[0-2],NVIDIA,3000,30:;"}]}


WAITS, MAY_NOT = (
    {"annotations": [{"key": "gpu-healthcheck.aws-samples.io/waiting", "value": value}]} for value in ("expected", "no")
)


@pytest.mark.parametrize(
    ("read", "answer", "expected"),
    [
        (pods_of_runtime, {"items": [entry() | WAITS]}, LocalPod("n", "p", expects_waiting=True)),
        (pods_of_runtime, {"items": [entry() | MAY_NOT]}, LocalPod("n", "p")),
        (
            pods_of_kubelet,
            {"pods": [{"metadata": entry()["metadata"] | WAITS}]},
            LocalPod("n", "p", (), expects_waiting=True),
        ),
        (pods_of_kubelet, {"pods": [{"metadata": entry()["metadata"] | MAY_NOT}]}, LocalPod("n", "p", ())),
        (
            pods_of_runtime,
            {"items": [entry() | {"created_at": "1764400000999999999"}]},
            LocalPod("n", "p", started=1764400000),
        ),
        (
            pods_of_kubelet,
            {"pods": [entry() | {"status": {"startTime": {"seconds": "1764400000"}}}]},
            LocalPod("n", "p", (), started=1764400000),
        ),
        (pods_of_runtime, {"items": [entry() | HAMIS]}, LocalPod("n", "p", None, CARDS)),
        (
            pods_of_kubelet,
            {"pods": [{"metadata": entry()["metadata"] | HAMIS}]},
            LocalPod("n", "p", (), CARDS),
        ),
        (pods_of_runtime, {"items": [entry() | {"state": 1}]}, LocalPod("n", "p", has_ended=True)),
        (pods_of_runtime, {"items": [entry(), entry() | {"state": 1}]}, LocalPod("n", "p")),
        (pods_of_runtime, {"items": [entry() | {"state": 1}, entry()]}, LocalPod("n", "p")),
        (
            pods_of_kubelet,
            {"pods": [entry() | {"status": {"phase": "Failed"}}]},
            LocalPod("n", "p", (), has_ended=True),
        ),
        (pods_of_kubelet, {"pods": [entry() | {"status": {"phase": "Running"}}]}, LocalPod("n", "p", ())),
    ],
)
def test_annotations_start_and_end_of_a_pod_are_known(
    read: Callable[..., Any], answer: dict[str, Any], expected: LocalPod
) -> None:
    assert by_uid(read(answer)) == {"u": expected}


def test_a_socket_that_the_kubelet_left_behind_is_no_obstacle(short_root: Path) -> None:
    left = short_root / PODS_API.lstrip("/")
    left.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    runtime = short_root / RUNTIME.lstrip("/")
    runtime.parent.mkdir(parents=True)
    with serving(runtime, answers_to("pod-sandboxes", {"items": [entry()]})):
        assert read_pods(short_root, RUNTIME) == {"u": LocalPod("n", "p")}
    with pytest.raises(ProbeError, match="pods-api"):
        read_pods(short_root, "")
