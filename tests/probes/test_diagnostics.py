"""Which processes are DCGM's tests: ours and the node's own, whatever others call theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.probes import diagnostics
from gpu_healthcheck.sim.host_services import Container
from gpu_healthcheck.sim.node import SimulatedNode

OURS, THEIRS = "0a1b2c3d-4e5f-4a6b-8c7d-0123456789ab", "ffffffff-4e5f-4a6b-8c7d-0123456789ab"
SCOPE = "f" * 64


def systemd(uid: str, below: str = "") -> str:
    pod = f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
    return f"0::/kubepods.slice/kubepods-besteffort.slice/{pod}/cri-containerd-{SCOPE}.scope{below}"


def cgroupfs(uid: str) -> str:
    return f"0::/kubepods/burstable/pod{uid}/{SCOPE}"


def version_1(uid: str) -> str:
    group = f"/kubepods/pod{uid}/{SCOPE}"
    return f"3:memory:{group}\n2:cpu,cpuacct:{group}\n1:name=systemd:{group}"


def logs(root: Path, namespace: str, uid: str, name: str = "sweep-1") -> None:
    (root / f"var/log/pods/{namespace}_{name}_{uid}").mkdir(parents=True)


@pytest.fixture
def with_logs(node: SimulatedNode) -> SimulatedNode:
    logs(node.root, "gpu-healthcheck", OURS)
    logs(node.root, "default", THEIRS, "gpu-healthcheck")
    return node


def found(node: SimulatedNode) -> frozenset[int]:
    return diagnostics.find(node.root, "gpu-healthcheck")


@pytest.mark.parametrize("name", ["nvvs", "dcgmi", "nv-hostengine", "nvbandwidth"])
def test_a_service_of_the_node_is(with_logs: SimulatedNode, name: str) -> None:
    with_logs.services.start(name, 60.0)

    assert len(found(with_logs)) == 1


def test_a_program_of_another_name_is_none(with_logs: SimulatedNode) -> None:
    with_logs.services.start("all_reduce_perf", 60.0)
    with_logs.services.start_in_container(900, "python3", Container(systemd(OURS)))

    assert found(with_logs) == frozenset()


@pytest.mark.parametrize(
    ("cgroup", "is_ours"),
    [
        *((form(uid), uid == OURS) for form in (systemd, cgroupfs, version_1) for uid in (OURS, THEIRS)),
        (f"0::/../../pod{OURS}/{SCOPE}", True),
        (f"0::/../../pod{THEIRS}/{SCOPE}", False),
        # A process in a pod may create groups within its own.
        (systemd(THEIRS, f"/kubepods-pod{OURS.replace('-', '_')}.slice"), False),
        (f"{systemd(THEIRS)}\n1:name=systemd:/kubepods/pod{OURS}/{SCOPE}", False),
        (f"0::/system.slice/docker-{SCOPE}.scope", False),
        ("0::/kubepods.slice/kubepods-besteffort.slice", False),
        ("", False),
    ],
)
def test_in_a_pod_the_namespace_of_the_pod_decides(with_logs: SimulatedNode, cgroup: str, is_ours: bool) -> None:
    with_logs.services.start_in_container(900, "nvvs", Container(cgroup))

    assert found(with_logs) == (frozenset({900}) if is_ours else frozenset())


def test_a_pod_that_two_namespaces_claim_is_nobodys(with_logs: SimulatedNode) -> None:
    logs(with_logs.root, "default", OURS)
    with_logs.services.start_in_container(900, "nvvs", Container(systemd(OURS)))

    assert found(with_logs) == frozenset()


def test_a_dead_process_is_none(with_logs: SimulatedNode) -> None:
    with_logs.services.start_in_container(900, "nvvs", Container("0::/"))
    assert found(with_logs) == {900}
    stat = with_logs.root / "proc/900/stat"
    stat.write_text(stat.read_text().replace(") S ", ") Z "))

    assert found(with_logs) == frozenset()


def test_without_the_hosts_numbers_there_is_none(with_logs: SimulatedNode) -> None:
    with_logs.services.start("nvvs", 60.0)
    with_logs.hide_host_processes()

    assert found(with_logs) == frozenset()


def test_unknown_pods_are_reported_as_unknown(node: SimulatedNode) -> None:
    node.services.start_in_container(900, "nvvs", Container(systemd(OURS)))

    with pytest.raises(OSError, match="pods"):
        found(node)
