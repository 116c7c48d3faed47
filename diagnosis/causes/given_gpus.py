"""Determine the GPUs of a running pod from the kubelet's report, its claims, or HAMi's grant. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from diagnosis.facts.gpu_nodes import GPU_DRIVERS, is_device
from diagnosis.facts.gpu_requests import gpu_claims, gpus_of
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.agent_record import RecordFinding
from diagnosis.snapshot.dra import ResourceClaim, SliceDevice
from diagnosis.snapshot.pods import AllocatedDevice, Container, Pod
from healthcheck.memory.findings import gpu_address
from healthcheck.node.device_pools import address_of

_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
"""Pattern of a device plugin's ID; a replica of a shared GPU has a suffix."""
_UNHEALTHY = "Unhealthy"


class AllocatedGpu(Struct, frozen=True):
    """One GPU, or a part of one.

    `uuids` has the UUID of the GPU or MIG instance; for an instance also the UUID of the GPU, if known.
    """

    shown: str
    uuids: frozenset[str] = frozenset()
    address: str = ""

    def has(self, finding: RecordFinding) -> bool | None:
        """Whether the finding is about this GPU; None if the two have no identifier to compare."""
        uuid, address = finding.about.get("uuid", "").lower(), gpu_address(finding.subject)
        if uuid in self.uuids or (address and address == self.address):
            return True
        comparable = any(text[:4] == uuid[:4] for text in self.uuids) or (address and self.address)
        return False if comparable else None


def given_gpus(snapshot: Snapshot, pod: Pod) -> tuple[AllocatedGpu, ...] | None:
    """Return the pod's GPUs; None if a container has GPUs and no source identifies them."""
    by_hami = tuple(_by_uuid(share.card) for share in pod.shares)
    if by_hami:
        return by_hami
    found: list[AllocatedGpu] = []
    for container in pod.spec.containers:
        if container.init and not container.sidecar:
            continue
        own = [*_by_kubelet(snapshot, pod, container), *_by_claims(snapshot, pod, container)]
        if not own and (gpus_of(container) or _claims_gpus(snapshot, pod, container)):
            return None
        found += own
    return tuple(dict.fromkeys(found)) or None


def unhealthy_gpus(pod: Pod) -> Iterator[AllocatedDevice]:
    """Yield the pod's GPUs that the kubelet reports as unhealthy.

    Their device plugin or DRA driver reported them to the kubelet.
    """
    for state in pod.states:
        yield from (each for each in state.devices if state.running and _is_gpu(each) and each.health == _UNHEALTHY)


def _by_kubelet(snapshot: Snapshot, pod: Pod, container: Container) -> Iterator[AllocatedGpu]:
    for state in pod.states:
        if state.name == container.name:
            for device in filter(_is_gpu, state.devices):
                yield (
                    _by_device(snapshot, device.name) if device.resource.startswith("claim:") else _by_uuid(device.name)
                )


def _by_claims(snapshot: Snapshot, pod: Pod, container: Container) -> Iterator[AllocatedGpu]:
    for name in container.claims:
        claim = _claims(snapshot).get((pod.meta.namespace, pod.claim_names.get(name, pod.spec.claims.get(name, ""))))
        devices = claim.devices if claim is not None else ()
        yield from (_by_device(snapshot, device) for device in devices if device.partition("/")[0] in GPU_DRIVERS)


def _claims_gpus(snapshot: Snapshot, pod: Pod, container: Container) -> bool:
    return any(
        (pod.meta.namespace, pod.spec.claims.get(claim, "")) in gpu_claims(snapshot) for claim in container.claims
    )


def _is_gpu(device: AllocatedDevice) -> bool:
    if device.resource.startswith("claim:"):
        return device.name.partition("/")[0] in GPU_DRIVERS
    return is_device(device.resource)


def _by_uuid(name: str) -> AllocatedGpu:
    found = _UUID.search(name)
    uuid = found[0] if found else name.partition("::")[0]
    return AllocatedGpu(uuid, frozenset((uuid.lower(),)))


def _by_device(snapshot: Snapshot, name: str) -> AllocatedGpu:
    device = _devices(snapshot).get(name)
    if device is None:
        return AllocatedGpu(name)
    named = _uuids(device.attributes)
    return AllocatedGpu(
        next(iter(named), name), frozenset(text.lower() for text in named), address_of(device.attributes)
    )


def _uuids(attributes: Mapping[str, str]) -> tuple[str, ...]:
    fields = {key.rpartition("/")[2]: value for key, value in attributes.items()}
    return tuple(filter(None, (fields.get("uuid", ""), fields.get("parentUUID", ""))))


@lru_cache(maxsize=1)
def _claims(snapshot: Snapshot) -> Mapping[tuple[str, str], ResourceClaim]:
    """Return claims that have devices, by namespace and name."""
    return {(claim.meta.namespace, claim.meta.name): claim for claim in snapshot.claims if claim.devices}


@lru_cache(maxsize=1)
def _devices(snapshot: Snapshot) -> Mapping[str, SliceDevice]:
    """Return the devices by driver/pool/device."""
    slices = (resource_slice for pool in snapshot.pools.values() for resource_slice in pool)
    return {
        f"{resource_slice.driver}/{resource_slice.pool}/{device.name}": device
        for resource_slice in slices
        for device in resource_slice.devices
    }
