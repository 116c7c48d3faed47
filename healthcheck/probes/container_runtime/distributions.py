"""Kubernetes distributions: their distinguishing marks, and the paths of their runtime's files."""

from __future__ import annotations

import posixpath
from itertools import chain
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD, CRIO
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import K0S as K0S_PROGRAM
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import K3S as K3S_PROGRAM
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import KUBELITE, Process
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import RKE2 as RKE2_PROGRAM

K3S, RKE2, MICROK8S, K0S, K8S_SNAP = "k3s", "RKE2", "MicroK8s", "k0s", "Canonical Kubernetes"
GKE, AKS, BOTTLEROCKET, TALOS, OPENSHIFT = "GKE", "AKS", "Bottlerocket", "Talos", "OpenShift"
EKS_AL2023, EKS_AL2, EKS_UBUNTU, KUBEADM = "EKS AL2023", "EKS AL2", "EKS Ubuntu", "kubeadm"
STANDARD_FILE, STANDARD_SOCKET = "/etc/containerd/config.toml", "/run/containerd/containerd.sock"
"""Defaults of containerd's --config, and of the kubelet's --container-runtime-endpoint on Linux."""
CRIO_FILE, CRIO_FOLDER, CRIO_SOCKET = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d", "/run/crio/crio.sock"
CRIO_UNREAD = "/etc/crio/conf.d"
"""Folder that CRI-O does not read, and the default of `nvidia-ctk` 1.18 to 1.19.0 (nvidia-container-toolkit pull 1829).
"""
_TEMPLATES = ("config-v3.toml.tmpl", "config.toml.tmpl")
"""Templates for schema 3 and schema 2, next to the file that k3s and RKE2 generate. The first existing one is used."""


class RuntimePaths(Struct, frozen=True):
    """Paths of the file and the socket of a container runtime that a distribution includes.

    `kubelet_folder` contains the kubelet's drop-ins.
    """

    distribution: str
    config: str
    socket: str
    kind: str = CONTAINERD
    kubelet_folder: str = ""


def _ranchers(distribution: str, name: str) -> RuntimePaths:
    folder = f"/var/lib/rancher/{name}/agent/etc"
    config = f"{folder}/containerd/config.toml"
    return RuntimePaths(
        distribution, config, "/run/k3s/containerd/containerd.sock", kubelet_folder=f"{folder}/kubelet.conf.d"
    )


def _k8s_snap(base: str) -> RuntimePaths:
    return RuntimePaths(K8S_SNAP, f"{base}{STANDARD_FILE}", f"{base}{STANDARD_SOCKET}")


_MICROK8S_DATA, _MICROK8S_COMMON = "/var/snap/microk8s/current", "/var/snap/microk8s/common"
LAYOUTS = (
    _ranchers(K3S, "k3s"),
    _ranchers(RKE2, "rke2"),
    RuntimePaths(
        MICROK8S,
        f"{_MICROK8S_DATA}/args/containerd.toml",
        f"{_MICROK8S_COMMON}/run/containerd.sock",
    ),
    RuntimePaths(K0S, "/etc/k0s/containerd.toml", "/run/k0s/containerd.sock"),
    # Folder of the option containerd-base-dir, with and without a subfolder (1.35, 1.36).
    _k8s_snap("/var/lib/k8s-containerd/k8s-containerd"),
    _k8s_snap("/var/lib/k8s-containerd"),
    RuntimePaths(TALOS, "/etc/cri/containerd.toml", STANDARD_SOCKET),
    RuntimePaths("", STANDARD_FILE, STANDARD_SOCKET),
    RuntimePaths("", CRIO_FILE, CRIO_SOCKET, CRIO),
)
"""Layouts of container runtimes. A distribution with its own runtime comes before the standard paths."""
_KUBELETS = (
    (K3S_PROGRAM, "/var/lib/rancher/k3s/", "", K3S),
    (RKE2_PROGRAM, "/var/lib/rancher/rke2/", "rke2-", RKE2),
    (KUBELITE, "/snap/microk8s/", "snap.microk8s.", MICROK8S),
    (K0S_PROGRAM, "/var/lib/k0s/", "k0s", K0S),
    ("", "/snap/k8s/", "snap.k8s.", K8S_SNAP),
    ("", "/snap/kubelet-eks/", "snap.kubelet-eks.", EKS_UBUNTU),
    ("", "/home/kubernetes/bin/", "", GKE),
)
"""Process name, folder of the program, and beginning of the service's name of each distribution's kubelet."""
_MARKS = (
    ("/home/kubernetes/bin", GKE),
    ("/etc/kubernetes/azure.json", AKS),
    ("/etc/cri/conf.d", TALOS),
    ("/var/lib/bottlerocket", BOTTLEROCKET),
    ("/etc/kubernetes/kubelet/config", BOTTLEROCKET),
    ("/etc/machine-config-daemon", OPENSHIFT),
    ("/etc/eks/kubelet/environment", EKS_AL2023),
    ("/etc/kubernetes/kubelet/config.json", EKS_AL2023),
    ("/var/snap/kubelet-eks", EKS_UBUNTU),
    ("/etc/kubernetes/kubelet/kubelet-config.json", EKS_AL2),
    ("/var/snap/k8s/common/args", K8S_SNAP),
    ("/var/lib/kubelet/kubeadm-flags.env", KUBEADM),
)
"""Path that only nodes of this distribution have, for distributions whose runtime uses the standard paths."""


def by_kubelet(kubelet: Process) -> str:
    """Return the distribution of a kubelet, by its program and its service; '' if they do not identify it."""
    name = kubelet.name.partition("-")[0]
    by_name = (distribution for program, _, _, distribution in _KUBELETS if program == name)
    by_unit = (distribution for _, _, unit, distribution in _KUBELETS if unit and kubelet.unit.startswith(unit))
    by_folder = (distribution for _, folder, _, distribution in _KUBELETS if kubelet.program.startswith(folder))
    return next(chain(by_name, by_unit, by_folder), "")


def by_files(root: Path, config: str) -> str:
    """Return the distribution by its runtime's configuration path, else by marks unique to its nodes.

    '' means none.
    """
    real = host_files.resolved(root, config)
    for layout in LAYOUTS:
        if layout.distribution and host_files.resolved(root, layout.config) == real:
            return layout.distribution
    return next((name for mark, name in _MARKS if host_files.exists(root, mark)), "")


def layout_of(distribution: str) -> RuntimePaths | None:
    """Return the distribution's own layout; None if its runtime uses the standard paths."""
    return next((layout for layout in LAYOUTS if layout.distribution == distribution and distribution), None)


def template_of(root: Path, distribution: str, config: str) -> str:
    """Return the template from which the service generates `config` at its start; '' without one.

    The template need not exist.
    """
    folder = posixpath.dirname(config)
    if distribution == MICROK8S:
        return f"{folder}/containerd-template.toml"
    if distribution not in (K3S, RKE2):
        return ""
    there = [name for name in _TEMPLATES if host_files.exists(root, f"{folder}/{name}")]
    return f"{folder}/{[*there, _TEMPLATES[0]][0]}"
