"""Devices that the kubelet allocated to pods: from its monitoring socket (PodResourcesLister) and its checkpoint.

The socket reports claims (DRA) since Kubernetes 1.34, and never reports claims that only an init container uses. A pod
with a GPU from such a claim, and without a process on this GPU yet, would otherwise not be visible. The checkpoint is
read in the format of Kubernetes 1.32, the first version that NVIDIA's DRA driver supports.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.grpc_socket import NodeSocket
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError
from gpu_healthcheck.healthcheck.text.printable import printable

SOCKETS = ("/var/lib/kubelet/pod-resources/kubelet.sock", "/var/lib/k0s/kubelet/pod-resources/kubelet.sock")
"""Sockets in the kubelet's folder. k0s has a different folder; on MicroK8s, the first path is a link."""
_NVIDIA = "nvidia.com"
DRA_DRIVER = "gpu.nvidia.com"


class ResourceDevices(Struct, frozen=True):
    """Devices of one resource of a device plugin, such as `nvidia.com/gpu`, by the plugin's ids."""

    resource: str
    ids: tuple[str, ...]


class ClaimedDevice(Struct, frozen=True):
    """One device of a DRA driver; `device` is '' if the driver names none."""

    driver: str
    pool: str
    device: str


class DeviceClaim(Struct, frozen=True):
    """A ResourceClaim and its devices."""

    namespace: str
    name: str
    devices: tuple[ClaimedDevice, ...] = ()


class ContainerDevices(Struct, frozen=True):
    """A container with devices. Containers with only CPU and memory are not kept."""

    name: str
    devices: tuple[ResourceDevices, ...] = ()
    claims: tuple[DeviceClaim, ...] = ()


class PodDevices(Struct, frozen=True):
    """A pod with devices. Before Kubernetes 1.34, a kubelet also lists pods that have ended."""

    namespace: str
    name: str
    containers: tuple[ContainerDevices, ...]


def read_pod_resources(host: Host) -> tuple[PodDevices, ...]:
    """Return the pods that hold devices.

    Raises ProbeError: failure to check never means that there are none.
    """
    socket = NodeSocket("pod-resources")
    try:
        return read_answer(*socket.ask(host.root, kubelet_socket(host.root)))
    finally:
        socket.end()


def kubelet_socket(root: Path) -> str:
    """Return the socket of this node's kubelet. Raises ProbeError."""
    return next((path for path in SOCKETS if host_files.is_there(root, path)), SOCKETS[0])


def is_kubelet_here(root: Path) -> bool:
    """Whether this machine is a node: a kubelet's folder exists before its socket and remains afterwards.

    Raises ProbeError if that is unknown.
    """
    return any(host_files.is_there(root, str(Path(socket).parents[1])) for socket in SOCKETS)


def read_answer(answer: Mapping[str, Any]) -> tuple[PodDevices, ...]:
    """Return the pods in a ListPodResourcesResponse."""
    pods = answer.get("pod_resources", ())
    read = (PodDevices(pod.get("namespace", ""), pod.get("name", ""), tuple(_containers(pod))) for pod in pods)
    return tuple(pod for pod in read if pod.containers)


def holds_gpus(pods: Iterable[PodDevices]) -> list[tuple[str, str, int]]:
    """Return `namespace/pod`, resource and number of devices, for each pod and resource of GPUs or parts of GPUs.

    A device counts once, even if an init container used it before the other containers.
    """
    held = []
    for pod in pods:
        ids: dict[str, set[str]] = {}
        for container in pod.containers:
            for resource, device in _gpus(container):
                ids.setdefault(resource, set()).add(device)
        held += [(f"{pod.namespace}/{pod.name}", resource, len(devices)) for resource, devices in ids.items()]
    return held


def _containers(pod: Mapping[str, Any]) -> Iterator[ContainerDevices]:
    for container in pod.get("containers", ()):
        # The kubelet lists the devices of each NUMA node separately.
        given: dict[str, tuple[str, ...]] = {}
        for devices in container.get("devices", ()):
            resource = devices.get("resource_name", "")
            given[resource] = given.get(resource, ()) + tuple(devices.get("device_ids", ()))
        claims = tuple(_claim(claim) for claim in container.get("dynamic_resources", ()))
        if given or claims:
            yield ContainerDevices(
                container.get("name", ""),
                tuple(ResourceDevices(*resource_ids) for resource_ids in given.items()),
                claims,
            )


def _claim(claim: Mapping[str, Any]) -> DeviceClaim:
    devices = tuple(
        ClaimedDevice(entry.get("driver_name", ""), entry.get("pool_name", ""), entry.get("device_name", ""))
        for entry in claim.get("claim_resources", ())
    )
    return DeviceClaim(claim.get("claim_namespace", ""), claim.get("claim_name", ""), devices)


def _gpus(container: ContainerDevices) -> Iterator[tuple[str, str]]:
    """Yield resource and device. A claim has no resource: its driver is used instead."""
    for devices in container.devices:
        if is_gpu(devices.resource):
            yield from ((devices.resource, device_id) for device_id in devices.ids)
    for claim in container.claims:
        yield from (
            (device.driver, f"{device.pool}/{device.device}") for device in claim.devices if device.driver == DRA_DRIVER
        )


def is_gpu(resource: str) -> bool:
    """Whether the resource is a GPU, a share or a MIG instance: of NVIDIA, HAMi or another vendor, or renamed."""
    domain, _, name = resource.partition("/")
    if domain == _NVIDIA:
        return "gpu" in name.lower() or name.startswith("mig-")
    return name == "gpu" or domain.endswith(f".{_NVIDIA}")


POD_RESOURCES = Probe("pod-resources", read_pod_resources, tuple[PodDevices, ...])


FILES = tuple(f"{Path(socket).parents[1]}/dra_manager_state" for socket in SOCKETS)
_LONGEST = 253


def read_gpu_holders(host: Host) -> list[tuple[str, str, int]]:
    """Return owner, resource and count of GPU allocations.

    Raises ProbeError: failure to check never means that there are none.
    """
    pods = read_pod_resources(host)
    entries = {
        (claim.namespace, claim.name) for pod in pods for container in pod.containers for claim in container.claims
    }
    kept = [claim for claim in read_claims(host.root) if claim[:2] not in entries]
    return [*holds_gpus(pods), *((f"the claim {where}/{name}", DRA_DRIVER, count) for where, name, count in kept)]


def read_claims(root: Path) -> list[tuple[str, str, int]]:
    """Return namespace, name and number of GPUs of each claim, also of claims that a driver still prepares.

    Raises ProbeError.
    """
    return [claim for file in FILES for claim in _claims(root, file)]


def are_claimed(root: Path) -> bool:
    """Whether NVIDIA's DRA driver manages this machine's GPUs.

    The driver then has a folder next to the kubelet's folder. Raises ProbeError if that is unknown.
    """
    return any(host_files.is_there(root, f"{Path(file).parent}/plugins/{DRA_DRIVER}") for file in FILES)


def _claims(root: Path, file: str) -> Iterator[tuple[str, str, int]]:
    try:
        raw, _ = host_files.read(root, file)
    except (FileNotFoundError, NotADirectoryError):
        return  # a kubelet without claims
    except OSError as error:
        raise ProbeError(f"{file}: {error.strerror}") from error
    try:
        for claim in json.loads(json.loads(raw)["Data"])["ClaimInfoStateList"] or []:
            if (count := _gpus_of_checkpoint(claim)) is not None:
                yield _word(claim["Namespace"]), _word(claim["ClaimName"]), count
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ProbeError(f"{file} is not a readable checkpoint: {type(error).__name__}: {error}") from error


def _gpus_of_checkpoint(claim: Mapping[str, Any]) -> int | None:
    """Return the number of GPUs of a claim; None if it is not for GPUs."""
    drivers = claim["DriverState"]
    if DRA_DRIVER not in drivers:
        return None
    return len((drivers[DRA_DRIVER] or {}).get("Devices") or ()) or 1


def _word(text: object) -> str:
    return printable(str(text), _LONGEST)
