"""The container runtime that the kubelet uses, how we know, and what its files let it start."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from healthcheck.model import Host, Probe
from healthcheck.probes.runtime import containerd, cri, host_files, processes
from healthcheck.probes.runtime.facts import CdiSpec, Configuration, ContainerRuntime, Program
from healthcheck.probes.runtime.processes import CONTAINERD, CRIO, STANDARD_SOCKET, Endpoint, Process

K3S, RKE2, MICROK8S, K0S, K8S_SNAP, GKE = "k3s", "RKE2", "MicroK8s", "k0s", "Canonical Kubernetes", "GKE"
_GKE_FOLDER = "/home/kubernetes/bin"
"""Where GKE puts what it brings, the driver that its device plugin mounts into pods included."""
_SEARCHED = (
    "/usr/local/sbin/",
    "/usr/local/bin/",
    "/usr/sbin/",
    "/usr/bin/",
    "/sbin/",
    "/bin/",
    "/snap/bin/",
    "/snap/microk8s/current/usr/bin/",
)
"""Where a service looks for a program that is named without its folder (systemd's default PATH), and the snaps'."""
_MOST_SPECS = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a distribution keeps its containerd's file and socket."""

    distribution: str
    config: str
    socket: str


LAYOUTS = (
    Layout(K3S, "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock"),
    Layout(RKE2, "/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock"),
    Layout(
        MICROK8S, "/var/snap/microk8s/current/args/containerd.toml", "/var/snap/microk8s/common/run/containerd.sock"
    ),
    Layout(K0S, "/etc/k0s/containerd.toml", "/run/k0s/containerd.sock"),
    Layout(
        K8S_SNAP,
        "/var/lib/k8s-containerd/k8s-containerd/etc/containerd/config.toml",
        "/var/lib/k8s-containerd/k8s-containerd/run/containerd/containerd.sock",
    ),
    Layout("", containerd.STANDARD_FILE, STANDARD_SOCKET),
)
"""The standard one is the last: on a node of the others it is some other program's."""


def read_container_runtime(host: Host) -> ContainerRuntime:
    return cri.with_live(host, _of_node(host.root))


def _of_node(root: Path) -> ContainerRuntime:
    found = processes.find(root)
    kubelet = processes.kubelet_of(found)
    if kubelet is not None:
        return _of_kubelet(root, kubelet, found)
    if processes.are_the_hosts(root):
        return ContainerRuntime(None, "no kubelet runs on this node")
    layout = next((one for one in LAYOUTS if _exists(root, one.config)), None)
    if layout is None:
        return ContainerRuntime(None, "no kubelet, and no configuration of containerd where one usually lies")
    source = f"assumed, since no kubelet is to be seen: the place of {layout.distribution or 'most distributions'}"
    return _with(root, _read(root, layout.config), Endpoint(layout.socket, source), None, found)


def _of_kubelet(root: Path, kubelet: Process, found: Sequence[Process]) -> ContainerRuntime:
    endpoint = processes.endpoint_of(root, kubelet)
    runtimes = [one for one in found if one.name in (CONTAINERD, CRIO)]
    holder = processes.holder_of(root, kubelet, endpoint.socket, runtimes) or next(
        (one for one in runtimes if one.name == CONTAINERD and _socket_of(root, one) == endpoint.socket), None
    )
    if holder is not None and holder.name == CONTAINERD:
        return _with(root, _configured(root, holder), endpoint, holder.started, found)
    layouts = [one for one in LAYOUTS if one.socket == endpoint.socket]
    layout = next((one for one in layouts if _exists(root, one.config)), None)
    if holder is not None or layout is None:
        told = f"the kubelet's runtime is at {endpoint.socket}: not a containerd that we know"
        return ContainerRuntime(None, told, endpoint.socket, endpoint.source)
    return _with(root, _read(root, layout.config), endpoint, None, found)


def _with(
    root: Path, used: Configuration, endpoint: Endpoint, started: float | None, found: Sequence[Process]
) -> ContainerRuntime:
    own = {_real(root, used.path), *(_real(root, one.path) for one in used.files)}
    paths = [_config_path(one) for one in found if one.name == CONTAINERD] + [one.config for one in LAYOUTS]
    elsewhere = {_real(root, path): path for path in reversed(paths) if _real(root, path) not in own}
    others = tuple(_read(root, path) for path in dict.fromkeys(reversed(elsewhere.values())) if _exists(root, path))
    named = dict.fromkeys(one.binary for one in used.handlers if one.binary)
    return ContainerRuntime(
        used,
        socket=endpoint.socket,
        known_from=endpoint.source,
        started=started,
        distribution=_distribution(root, used.path),
        others=others,
        programs=tuple(_program(root, name) for name in named),
        cdi_specs=tuple(_gpu_specs(root, used.cdi_folders)),
    )


def _config_path(process: Process) -> str:
    return process.flag("--config", "-c") or containerd.STANDARD_FILE


def _configured(root: Path, process: Process) -> Configuration:
    return _read(root, _config_path(process))


def _read(root: Path, path: str) -> Configuration:
    return containerd.read_configuration(root, path)


def _socket_of(root: Path, process: Process) -> str:
    told = process.flag("--address", "-a") or _configured(root, process).address or STANDARD_SOCKET
    return processes.socket_path(root, told)


def _real(root: Path, path: str) -> str:
    try:
        return host_files.resolve(root, path)
    except OSError:
        return path


def _exists(root: Path, path: str) -> bool:
    try:
        return host_files.below(root, path).exists()
    except OSError:
        return False


def _distribution(root: Path, config: str) -> str:
    for layout in LAYOUTS:
        if layout.distribution and _real(root, layout.config) == _real(root, config):
            return layout.distribution
    return GKE if _exists(root, _GKE_FOLDER) else ""


def _program(root: Path, named: str) -> Program:
    folders = ("",) if "/" in named else _SEARCHED
    path = next((f"{folder}{named}" for folder in folders if host_files.is_executable(root, f"{folder}{named}")), "")
    return Program(named, path, executable=bool(path))


def _gpu_specs(root: Path, folders: Sequence[str]) -> Iterator[CdiSpec]:
    """The files that describe devices of NVIDIA's for pods; those for the operator's own pods are none."""
    named = [path for folder in folders for path in host_files.matches(root, f"{folder}/*")]
    for path in [path for path in named if path.endswith((".json", ".yaml", ".yml"))][:_MOST_SPECS]:
        spec = _document(root, path)
        if _is_of_gpus(spec):
            yield CdiSpec(path, spec["kind"])


def _is_of_gpus(spec: Any) -> bool:
    if not isinstance(spec, dict) or not isinstance(kind := spec.get("kind"), str) or not spec.get("devices"):
        return False
    vendor = kind.partition("/")[0]
    return (vendor == "nvidia.com" or vendor.endswith(".nvidia.com")) and vendor != "management.nvidia.com"


def _document(root: Path, path: str) -> Any:
    try:
        raw, _ = host_files.read(root, path)
        return json.loads(raw) if path.endswith(".json") else yaml.load(raw, Loader=_YAML)  # noqa: S506
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None


_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe one in C where PyYAML was built with it: a specification may have thousands of lines."""

CONTAINER_RUNTIME = Probe("container-runtime", read_container_runtime, ContainerRuntime)
