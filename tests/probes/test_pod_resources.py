"""Which pods hold GPUs, from a kubelet's own socket: every name that a GPU goes by, and nothing that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.checks.examine import read_probes
from gpu_healthcheck.healthcheck.model import Check, Host, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes.pod_resources import (
    POD_RESOURCES,
    SOCKETS,
    ClaimedDevice,
    ContainerDevices,
    DeviceClaim,
    PodDevices,
    ResourceDevices,
    holds_gpus,
    read_answer,
    read_pod_resources,
)
from tests.captures.saving import saved_and_read
from tests.host.grpc_server import Json, answers_to, serving

GPU, UUID = "nvidia.com/gpu", "GPU-8f2e6c1a-0000-4000-8000-000000000000"


def given(resource: str, *ids: str) -> Json:
    return {"resource_name": resource, "device_ids": list(ids)}


def pod(name: str, *containers: Json) -> Json:
    return {"name": name, "namespace": "ml", "containers": list(containers)}


def listed(*pods: Json) -> tuple[PodDevices, ...]:
    return read_answer({"pod_resources": list(pods)})


def with_devices(*devices: Json) -> Json:
    return {"name": "main", "devices": list(devices)}


def claimed(driver: str, *devices: str) -> Json:
    resources = [{"driver_name": driver, "pool_name": "node-1", "device_name": device} for device in devices]
    return {"claim_namespace": "ml", "claim_name": "train-gpu", "claim_resources": resources}


def test_a_kubelet_is_asked_over_its_socket(short_root: Path) -> None:
    answer = {
        "pod_resources": [
            pod("web", {"name": "nginx"}),
            pod(
                "train",
                {"name": "sidecar"},
                with_devices(given(GPU, "a"), given(GPU, "b"), given("vpc.amazonaws.com/efa", "e")),
            ),
            pod("dra", {"name": "main", "dynamic_resources": [claimed("gpu.nvidia.com", "gpu-0")]}),
        ]
    }
    with serving(short_root / SOCKETS[0][1:], answers_to("pod-resources", answer)):
        pods = read_pod_resources(Host(short_root))
    devices = (ResourceDevices(GPU, ("a", "b")), ResourceDevices("vpc.amazonaws.com/efa", ("e",)))
    claim = DeviceClaim("ml", "train-gpu", (ClaimedDevice("gpu.nvidia.com", "node-1", "gpu-0"),))
    assert pods == (
        PodDevices("ml", "train", (ContainerDevices("main", devices),)),
        PodDevices("ml", "dra", (ContainerDevices("main", claims=(claim,)),)),
    )
    assert holds_gpus(pods) == [("ml/train", GPU, 2), ("ml/dra", "gpu.nvidia.com", 1)]


def test_the_folder_of_k0s_is_known(short_root: Path) -> None:
    with serving(short_root / SOCKETS[1][1:], answers_to("pod-resources", {})):
        assert read_pod_resources(Host(short_root)) == ()


def test_the_folder_of_microk8s_is_a_link(short_root: Path) -> None:
    (short_root / "var/lib").mkdir(parents=True)
    (short_root / "var/lib/kubelet").symlink_to("/var/snap/kubelet")
    with serving(short_root / "var/snap/kubelet/pod-resources/kubelet.sock", answers_to("pod-resources", {})):
        assert read_pod_resources(Host(short_root)) == ()


def test_a_socket_that_is_not_there_is_no_idle_node(short_root: Path) -> None:
    with pytest.raises(ProbeError, match=f"{SOCKETS[0]}: No such file or directory"):
        read_pod_resources(Host(short_root))

    idle = Check("idle", "1-dcgm-diag-l2", (POD_RESOURCES,), lambda *_: iter(()), ())
    assert isinstance(read_probes(Host(short_root), (idle,)).unread(POD_RESOURCES), Unobserved)


def test_a_kubelet_that_refuses_is_no_idle_node(short_root: Path) -> None:
    with serving(short_root / SOCKETS[0][1:], {}), pytest.raises(ProbeError, match="UNIMPLEMENTED"):
        read_pod_resources(Host(short_root))


def test_the_facts_come_back_from_a_file() -> None:
    facts = listed(pod("train", with_devices(given(GPU, "a"))), pod("dra", {"dynamic_resources": [claimed("d", "x")]}))
    assert saved_and_read(facts, POD_RESOURCES.facts) == facts


@pytest.mark.parametrize(
    ("resource", "ids"),
    [
        (GPU, (UUID,)),
        (GPU, (f"{UUID}::0", f"{UUID}::1")),  # time slicing, MPS
        (GPU, (f"{UUID}-0", f"{UUID}-7")),  # HAMi
        ("nvidia.com/gpu.shared", (f"{UUID}::3",)),
        ("nvidia.com/mig-1g.10gb", ("MIG-1",)),
        ("nvidia.com/mig-1g.10gb.me", ("MIG-1",)),
        ("nvidia.com/mig-2g.20gb.shared", ("MIG-1::0",)),
        ("nvidia.com/gpumem", ("1", "2")),
        ("nvidia.com/gpucores", ("1",)),
        ("nvidia.com/vgpu", ("1",)),
        ("nvidia.com/GA100_A100_PCIE_40GB_GPU", ("1",)),
        ("amd.com/gpu", ("1",)),
        ("example.org/gpu", ("1",)),
        ("team-a.nvidia.com/whole", ("1",)),
    ],
)
def test_what_is_a_gpu_or_part_of_one(resource: str, ids: tuple[str, ...]) -> None:
    assert holds_gpus(listed(pod("p", with_devices(given(resource, *ids))))) == [("ml/p", resource, len(ids))]


@pytest.mark.parametrize(
    "resource",
    [
        "vpc.amazonaws.com/efa",
        "hugepages-2Mi",
        "nvidia.com/hostdev",
        "nvidia.com/sriov_rdma",
        "rdma/hca_shared_devices",
        "aws.amazon.com/neuron",
        "smarter-devices/fuse",
        "notnvidia.com/x",
        "nvidia.com.evil.org/mig-1g.5gb",
        "gpu",
        "",
    ],
)
def test_what_is_none(resource: str) -> None:
    assert holds_gpus(listed(pod("p", with_devices(given(resource, "1"))))) == []


def test_a_device_that_an_init_container_had_before_counts_once() -> None:
    pods = listed(pod("p", with_devices(given(GPU, "a", "b")), with_devices(given(GPU, "a"), given(GPU, "c"))))
    assert holds_gpus(pods) == [("ml/p", GPU, 3)]


def test_resource_without_devices_has_no_owner() -> None:
    assert holds_gpus(listed(pod("p", with_devices(given(GPU))))) == []


def test_claims_count_by_their_driver() -> None:
    pods = listed(
        pod("p", {"dynamic_resources": [claimed("gpu.nvidia.com", "gpu-0", "gpu-1-mig-1g10gb-0")]}),
        pod(
            "q", {"dynamic_resources": [claimed("compute-domain.nvidia.com", "channel-0"), claimed("dra.net", "eth1")]}
        ),
    )
    assert holds_gpus(pods) == [("ml/p", "gpu.nvidia.com", 2)]
