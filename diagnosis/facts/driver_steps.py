"""Steps for a node whose driver is not complete: without its NVLink fabric, or on GKE without the driver. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, logs, pods_on
from gpu_healthcheck.diagnosis.facts.components import Role, components, role_of
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE

_CONTAINER = "nvidia-driver-ctr"
_DEPLOYED = "nvidia.com/gpu.deploy.driver"
_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", INSTANCE_TYPE)
_RACK = re.compile(r"GB[23]00|NVL72", re.IGNORECASE)
"""Products of a rack whose switches are in trays of their own, with the fabric manager on those."""
_MANAGED = re.compile(r"\bB[123]00\b", re.IGNORECASE)
"""Products whose switches are managed over InfiniBand devices of the host, by NVLSM beside the fabric manager."""


INSTALLER = "nvidia-driver-installer"
"""Init container of GKE's device plugin. It installs the driver, or waits until another program has."""
_VERSION, _POOL = "cloud.google.com/gke-gpu-driver-version", "cloud.google.com/gke-nodepool"
_ACCELERATOR = "cloud.google.com/gke-accelerator"
_MANIFESTS = "https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/master"
"""https://cloud.google.com/kubernetes-engine/docs/how-to/gpus#installing_drivers; issues 402, 407 of that repository.
"""


def fabric_steps(snapshot: Snapshot, node: Node) -> Iterator[str]:
    """Yield the steps that end CUDA's error 802 on the node."""
    product = next((node.meta.labels[label] for label in _LABELS if label in node.meta.labels), "")
    pod = _driver(snapshot, node)
    if _RACK.search(product):
        yield f"See on {node.name} whether the GPUs have joined the fabric: `nvidia-smi -q | grep -A 3 Fabric`"
        yield "The fabric manager of this product runs on the rack's switch trays (NMX-C), not here: check it there"
        return
    if pod is not None:
        yield from _in_a_container(pod, product)
    elif node.meta.labels.get(_DEPLOYED) == "true" and any(each.role is Role.DRIVER for each in components(snapshot)):
        yield f"Read the log of the driver's pod on the node, which runs the fabric manager: {pods_on(node.name)}"
    else:
        yield from _on_the_host(product)


def _driver(snapshot: Snapshot, node: Node) -> Pod | None:
    pods = (pod for pod in snapshot.pods_on.get(node.name, ()) if not pod.over)
    return next((pod for pod in pods if role_of(pod.meta, {}, pod.spec) is Role.DRIVER), None)


def _in_a_container(pod: Pod, product: str) -> Iterator[str]:
    names = [container.name for container in pod.spec.containers if not container.init]
    container = _CONTAINER if _CONTAINER in names or not names else names[0]
    nvlsm = ", with NVLSM" if _MANAGED.search(product) else ""
    read = logs(pod.meta, "-c", container, "--tail=200")
    yield f"The driver and its fabric manager{nvlsm} run in {pod.subject}: read there why it does not start: {read}"
    if nvlsm:
        yield _modules()
    yield f"When its reason is fixed, start it again; that evicts the node's GPU pods: {kubectl('delete', pod.meta)}"


def _on_the_host(product: str) -> Iterator[str]:
    nvlsm = " and nvlsm" if _MANAGED.search(product) else ""
    yield "Read on the node why the fabric manager does not run: `journalctl -u nvidia-fabricmanager -n 100 --no-pager`"
    if nvlsm:
        yield _modules()
    yield (
        f"Install nvidia-fabricmanager{nvlsm} in the exact version of the driver, then start it now and at each boot: "
        "`systemctl enable --now nvidia-fabricmanager`"
    )


def _modules() -> str:
    load = command("modprobe", "-a", "mlx5_ib", "ib_umad")
    return (
        f"It manages the NVSwitches over InfiniBand devices of the host: load their modules there, {load}, and at each "
        "boot by a file in /etc/modules-load.d; Ubuntu's cloud kernels have them in the package linux-modules-extra"
    )


def installer_steps(node: Node | None, pod: Pod) -> Iterator[str]:
    """Yield the steps for a plugin whose init container waits for the driver."""
    yield f"Read the installer's last lines: {logs(pod.meta, '-c', INSTALLER, '--tail=20')}"
    if node is not None and _ACCELERATOR in node.meta.labels:
        yield from gke_driver_steps(node)


def gke_driver_steps(node: Node) -> Iterator[str]:
    """Yield the steps after which the node has a driver, unless GKE installs it."""
    labels = node.meta.labels
    if labels.get(_VERSION, "disabled") != "disabled":
        yield f"GKE itself installs this node's driver, by its label {_VERSION}: if that lasts, replace the node"
        return
    system = "ubuntu" if "ubuntu" in node.system.lower() else "cos"
    apply = command("kubectl", "apply", "-f", f"{_MANIFESTS}/{INSTALLER}/{system}/daemonset-preloaded.yaml")
    yield (
        f'The node has no label {_VERSION}: its pool was made without automatic installation of the driver ("GPU '
        f"driver auto installation is disabled\"). Install it by Google's DaemonSet: {apply}"
    )
    accelerator = f"type={labels.get(_ACCELERATOR, 'TYPE')},count=COUNT,gpu-driver-version=default"
    where = (labels.get(_POOL, "POOL"), "--cluster=CLUSTER", "--location=LOCATION", f"--accelerator={accelerator}")
    yield (
        "Or let GKE install it, with the pool's other accelerator settings kept; this creates its nodes anew: "
        f"{command('gcloud', 'container', 'node-pools', 'update', *where)}"
    )
    yield f"With node auto-provisioning, the pods select it: nodeSelector {_VERSION}: default"
