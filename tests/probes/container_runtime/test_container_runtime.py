"""The container runtime of the kubelet, and its surroundings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import read_container_runtime
from gpu_healthcheck.healthcheck.probes.container_runtime.cri import NOT_HERE
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    ContainerRuntime,
    Handler,
    RuntimeAnswer,
    RuntimeBinary,
    RuntimeConfiguration,
)
from gpu_healthcheck.sim.container_runtime import DISTRIBUTIONS, NVIDIA_V2, TOOLKIT_PROGRAM
from gpu_healthcheck.sim.node import SimulatedNode

STANDARD = "/run/containerd/containerd.sock"
FILE = "/etc/containerd/config.toml"
SNAP, SNAP_SINCE_1_36 = "/var/lib/k8s-containerd/k8s-containerd", "/var/lib/k8s-containerd"
K3S_SOCKET = "/run/k3s/containerd/containerd.sock"
MICROK8S_SOCKET = "/var/snap/microk8s/common/run/containerd.sock"
FLAG, FIELD = "--container-runtime-endpoint of kubelet", "containerRuntimeEndpoint in"
RANCHER = "/var/lib/rancher"
# Name, unit, the kubelet's socket, its source, and the file.
EXPECTED = {
    "kubeadm": ("kubeadm", "containerd.service", STANDARD, FLAG, FILE),
    "eks-al2023": (
        *("EKS AL2023", "containerd.service", STANDARD),
        *(f"{FIELD} /etc/kubernetes/kubelet/config.json", FILE),
    ),
    "eks-al2023-containerd-1": (
        *("EKS AL2023", "containerd.service", STANDARD),
        *(f"{FIELD} /etc/kubernetes/kubelet/config.json", FILE),
    ),
    "eks-al2": ("EKS AL2", "containerd.service", STANDARD, FLAG, FILE),
    "eks-ubuntu": ("EKS Ubuntu", "containerd.service", STANDARD, FLAG, FILE),
    "bottlerocket": (
        *("Bottlerocket", "containerd.service", STANDARD),
        *(f"{FIELD} /etc/kubernetes/kubelet/config", FILE),
    ),
    "k3s": (
        *("k3s", "k3s-agent.service", K3S_SOCKET),
        f"{FIELD} {RANCHER}/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf",
        f"{RANCHER}/k3s/agent/etc/containerd/config.toml",
    ),
    "rke2": (
        *("RKE2", "rke2-agent.service", K3S_SOCKET),
        f"{FIELD} {RANCHER}/rke2/agent/etc/kubelet.conf.d/00-rke2-defaults.conf",
        f"{RANCHER}/rke2/agent/etc/containerd/config.toml",
    ),
    "microk8s": (
        *("MicroK8s", "snap.microk8s.daemon-containerd.service", MICROK8S_SOCKET),
        "default of kubelite",
        "/var/snap/microk8s/6089/args/containerd.toml",
    ),
    "k8s-snap": (
        *("Canonical Kubernetes", "snap.k8s.containerd.service", f"{SNAP}{STANDARD}", FLAG),
        f"{SNAP}{FILE}",
    ),
    "k8s-snap-since-1.36": (
        *("Canonical Kubernetes", "snap.k8s.containerd.service", f"{SNAP_SINCE_1_36}{STANDARD}", FLAG),
        f"{SNAP_SINCE_1_36}{FILE}",
    ),
    "k8s-snap-in-the-standard-place": (*("Canonical Kubernetes", "snap.k8s.containerd.service", STANDARD, FLAG, FILE),),
    "two-containerds": (
        *("Canonical Kubernetes", "snap.k8s.containerd.service", f"{SNAP}{STANDARD}", FLAG, f"{SNAP}{FILE}"),
    ),
    "aks": ("AKS", "containerd.service", STANDARD, FLAG, FILE),
    "gke": ("GKE", "containerd.service", STANDARD, "default of kubelet", FILE),
    "k0s": (
        *("k0s", "k0sworker.service", "/run/k0s/containerd.sock"),
        *(f"{FIELD} /var/lib/k0s/kubelet-config.yaml", "/etc/k0s/containerd.toml"),
    ),
    "talos": ("Talos", "", STANDARD, f"{FIELD} /etc/kubernetes/kubelet.yaml", "/etc/cri/containerd.toml"),
    "openshift": ("OpenShift", "crio.service", "/run/crio/crio.sock", FLAG, "/etc/crio/crio.conf"),
    "docker": (
        *("", "cri-docker.service", "/run/cri-dockerd.sock"),
        *(f"{FIELD} /var/lib/kubelet/config.yaml", "/etc/docker/daemon.json"),
    ),
}


def read(node: SimulatedNode) -> ContainerRuntime:
    return read_container_runtime(Host(node.root))


def test_every_simulated_distribution_is_expected_here() -> None:
    assert sorted(EXPECTED) == sorted(DISTRIBUTIONS)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_kubelets_runtime_is_the_process_that_listens_on_its_socket(distribution: str, node: SimulatedNode) -> None:
    node.run_kubernetes(distribution)

    seen = read(node)

    result = (seen.distribution, seen.unit, seen.socket, seen.known_from, seen.path)
    assert result == EXPECTED[distribution]
    assert seen.pid
    assert seen.since_boot is not None
    assert (seen.live, seen.on_disk, seen.why_not_live, seen.why_not_loaded) == (None, None, NOT_HERE, NOT_HERE)


def test_a_host_without_a_kubelet_has_no_runtime(node: SimulatedNode) -> None:
    node.run_kubernetes("kubeadm")
    node.stop_kubernetes()
    assert (read(node).path, read(node).why_none) == ("", "no kubelet runs on this node")


def test_a_tree_without_processes_has_no_runtime(tmp_path: Path) -> None:
    assert read_container_runtime(Host(tmp_path)).why_none == "no kubelet is visible"


def test_processes_that_cannot_be_read_are_an_error(node: SimulatedNode) -> None:
    node.run_kubernetes("kubeadm")
    shutil.rmtree(node.root / "proc")
    (node.root / "proc").symlink_to("proc")
    with pytest.raises(ProbeError, match="proc"):
        read(node)


@pytest.mark.parametrize(("socket", "not_found"), [("/run/other.sock", False), ("/run/foo/containerd.sock", True)])
def test_an_unknown_runtime_is_named_and_not_judged(socket: str, not_found: bool, node: SimulatedNode) -> None:
    node.run_kubernetes("kubeadm")
    (pid,) = (file.parent.name for file in node.root.glob("proc/*/comm") if file.read_text().strip() == "kubelet")
    node.write_value(f"proc/{pid}/cmdline", f"/usr/bin/kubelet\0--container-runtime-endpoint=unix://{socket}\0")

    seen = read(node)

    assert (seen.path, seen.not_found) == ("", not_found)
    assert seen.why_none == f"the kubelet's runtime is at {socket}: an unknown runtime"


def test_a_runtime_that_does_not_run_is_known_by_its_socket_alone(node: SimulatedNode) -> None:
    node.run_kubernetes("two-containerds")
    for file in node.root.glob("proc/*/comm"):
        if file.read_text().strip() == "containerd":
            shutil.rmtree(file.parent)

    seen = read(node)

    assert (seen.path, seen.pid) == (f"{SNAP}{FILE}", 0)


def test_another_containerds_file_with_nvidias_handler_is_kept_apart(node: SimulatedNode) -> None:
    node.run_kubernetes("two-containerds")

    seen = read(node)

    assert seen.path == f"{SNAP}{FILE}"
    assert seen.others == (FILE,)
    assert {(one.file, one.handler, one.config) for one in seen.definitions} == {(FILE, "nvidia", FILE)}


def test_a_containerd_in_a_container_is_no_other_runtime_of_the_node(node: SimulatedNode) -> None:
    node.run_kubernetes("two-containerds")
    for file in node.root.glob("proc/*/comm"):
        if file.read_text().strip() == "containerd" and f"{SNAP}" not in (file.parent / "cmdline").read_text():
            (file.parent / "ns/mnt").unlink()
            (file.parent / "ns/mnt").symlink_to("mnt:[4026539999]")
            (file.parent / "cmdline").write_text("containerd\0--config\0/etc/other.toml\0")
    node.put_file("etc/other.toml", NVIDIA_V2)

    assert read(node).others == (FILE,)


@pytest.mark.parametrize(
    ("distribution", "template"),
    [
        ("k3s", f"{RANCHER}/k3s/agent/etc/containerd/config-v3.toml.tmpl"),
        ("rke2", f"{RANCHER}/rke2/agent/etc/containerd/config-v3.toml.tmpl"),
        ("microk8s", "/var/snap/microk8s/6089/args/containerd-template.toml"),
        ("kubeadm", ""),
    ],
)
def test_a_generated_file_has_its_template(distribution: str, template: str, node: SimulatedNode) -> None:
    node.run_kubernetes(distribution)
    assert read(node).template == template


@pytest.mark.parametrize(("driver", "expected"), [("nvidia", True), ("vfio-pci", False), ("nouveau", False)])
def test_gpus_of_another_driver_are_for_no_container(driver: str, expected: bool, node: SimulatedNode) -> None:
    for gpu in node.gpus:
        link = node.root / f"sys/bus/pci/devices/{gpu.address}/driver"
        link.unlink()
        link.symlink_to(f"../../drivers/{driver}")
    assert read(node).for_gpus is expected


def test_a_captured_tree_without_sys_shows_no_gpus(node: SimulatedNode) -> None:
    shutil.rmtree(node.root / "sys")
    assert read(node).for_gpus is None


def test_programs_and_specifications_are_those_of_the_runtimes_own_configuration(node: SimulatedNode) -> None:
    program = f"/{TOOLKIT_PROGRAM}"
    answer = RuntimeAnswer(on_disk=RuntimeConfiguration((Handler("nvidia", binary=program),)))

    seen = read_container_runtime(Host(node.root, ask_container_runtime=lambda _: answer))

    assert seen.programs == (RuntimeBinary(program, program, True, "x86_64"),)
