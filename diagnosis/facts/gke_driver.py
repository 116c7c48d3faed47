"""Steps for a GKE node whose device plugin waits for a driver that is not installed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts.commands import command, logs
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import Pod

INSTALLER = "nvidia-driver-installer"
"""Init container of GKE's device plugin. It installs the driver, or waits until another program has."""
_VERSION, _POOL = "cloud.google.com/gke-gpu-driver-version", "cloud.google.com/gke-nodepool"
_ACCELERATOR = "cloud.google.com/gke-accelerator"
_MANIFESTS = "https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/master"
"""https://cloud.google.com/kubernetes-engine/docs/how-to/gpus#installing_drivers; issues 402, 407 of that repository.
"""


def installer_steps(node: Node | None, pod: Pod) -> Iterator[str]:
    """Yield the steps for a plugin whose init container waits for the driver."""
    yield f"Read the installer's last lines: {logs(pod.meta, '-c', INSTALLER, '--tail=20')}"
    if node is not None and _ACCELERATOR in node.meta.labels:
        yield from driver_steps(node)


def driver_steps(node: Node) -> Iterator[str]:
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
