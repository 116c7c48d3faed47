"""Who holds GPUs by the kubelet's own checkpoint of claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.pod_resources import FILES, SOCKETS, read_claims, read_gpu_holders
from tests.host.grpc_server import Json, answers_to, serving

GPU = "gpu.nvidia.com"
HELD = ("ml", "train-gpu", 2)


def kept(drivers: Any, name: str = "train-gpu") -> Json:
    return {"ClaimUID": "u", "ClaimName": name, "Namespace": "ml", "PodUIDs": {"p": {}}, "DriverState": drivers}


def devices(*names: str) -> Json:
    return {"Devices": [{"PoolName": "n", "DeviceName": name, "CDIDeviceIDs": None} for name in names] or None}


def checkpoint(*claims: Json) -> str:
    """Of Kubernetes 1.32 and newer."""
    data = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": claims}
    return json.dumps({"Data": json.dumps(data), "Checksum": 1})


CLAIMED = {"claim_namespace": "ml", "claim_name": "train-gpu"}
SHOWN = {**CLAIMED, "claim_resources": [{"driver_name": GPU, "pool_name": "n", "device_name": "gpu-0"}]}


def keep(root: Path, text: str, file: str = FILES[0]) -> Path:
    place = root / file.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "holders"),
    [
        (checkpoint(kept({GPU: devices("gpu-0", "gpu-1")})), [HELD]),
        (checkpoint(kept({GPU: devices()})), [("ml", "train-gpu", 1)]),  # its driver has not prepared it yet
        (checkpoint(kept({"dra.net": devices("eth1"), GPU: devices("gpu-0", "gpu-1")})), [HELD]),
        (checkpoint(kept({"compute-domain.nvidia.com": devices("channel-0")})), []),
        (checkpoint(), []),
        (json.dumps({"Data": json.dumps({"ClaimInfoStateList": None}), "Checksum": 1}), []),
    ],
)
def test_the_claims_that_a_kubelet_keeps(tmp_path: Path, text: str, holders: list[tuple[str, str, int]]) -> None:
    assert read_claims(keep(tmp_path, text)) == holders


def test_kubelet_without_claims_keeps_none(tmp_path: Path) -> None:
    assert read_claims(tmp_path) == []


def test_the_folder_of_k0s_is_known(tmp_path: Path) -> None:
    assert read_claims(keep(tmp_path, checkpoint(kept({GPU: devices("gpu-0", "gpu-1")})), FILES[1])) == [HELD]


def test_a_claim_that_the_socket_tells_of_counts_once(short_root: Path) -> None:
    container = {"name": "main", "dynamic_resources": [SHOWN]}
    pod = {"name": "train", "namespace": "ml", "containers": [container]}
    keep(short_root, checkpoint(kept({GPU: devices("gpu-0")}), kept({GPU: devices("gpu-1")}, "init")))
    with serving(short_root / SOCKETS[0][1:], answers_to("pod-resources", {"pod_resources": [pod]})):
        assert read_gpu_holders(Host(short_root)) == [("ml/train", GPU, 1), ("the claim ml/init", GPU, 1)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        json.dumps({"version": "v1", "entries": []}),  # of a kubelet before 1.32
        json.dumps({"Data": "", "Checksum": 1}),
        json.dumps({"Data": json.dumps({"kind": "x"}), "Checksum": 1}),
        checkpoint(kept([GPU])),
        checkpoint({"ClaimName": "x"}),
        "x" * (2 << 20),
    ],
    ids=lambda text: text[:20],
)
def test_malformed_checkpoint_is_not_an_idle_node(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProbeError, match="dra_manager_state"):
        read_claims(keep(tmp_path, text))
