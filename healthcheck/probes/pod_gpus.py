"""GPUs that the kubelet allocated to a pod, by the device ids of the device plugins and of NVIDIA's DRA driver."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from healthcheck.probes.nvml.gpus import Gpu
from healthcheck.probes.pod_resources import DRA_DRIVER, PodDevices, is_gpu

_WHOLE = re.compile(r"(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:::[0-9]+)?\Z", re.ASCII)
"""Device of NVIDIA's device plugin: a GPU by UUID, or a time-sliced or MPS share of it (`::N`)."""
_MIG = re.compile(r"(MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:::[0-9]+)?\Z", re.ASCII)
"""MIG instance by its own UUID, since R470, or a share of it."""
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/[0-9]+/[0-9]+\Z", re.ASCII)
_BY_MINOR = re.compile(r"nvidia([0-9]{1,3})(?:/(?:gi|vgpu)[0-9]+)*\Z", re.ASCII)
"""Device of GKE's device plugin: the minor number, and a part of the GPU."""
_DRA = re.compile(r"gpu-([0-9]{1,3})(?:-mig-[0-9a-z.+-]+)?\Z", re.ASCII)
"""Device of NVIDIA's DRA driver: the minor number, and a MIG instance."""


def gpus_of_pod(
    pod: PodDevices,
    gpus: Collection[Gpu],
    former: Mapping[str, str] = MappingProxyType({}),
    hami_gpus: Collection[str] = (),
) -> frozenset[str] | None:
    """Return the subjects of the pod's GPUs and MIG instances; None if it has none, or if a device can't be assigned.

    `former`: subjects by UUID of GPUs that may not answer any more. `hami_gpus`: UUIDs by HAMi's annotation, because
    HAMi's device ids name no certain GPU.
    """
    by_id = {**former, **{gpu.uuid: gpu.subject for gpu in gpus}}
    for gpu in gpus:
        by_id |= {uuid: f"{gpu.subject}/gi{instance}" for uuid, instance in (gpu.mig_devices or {}).items()}
    by_minor = {str(gpu.minor): gpu.subject for gpu in gpus if gpu.minor is not None}
    found = {by_id.get(uuid, "") for uuid in hami_gpus}
    for container in pod.containers if not hami_gpus else ():
        ids = [device_id for devices in container.devices if is_gpu(devices.resource) for device_id in devices.ids]
        claimed = [
            device.device for claim in container.claims for device in claim.devices if device.driver == DRA_DRIVER
        ]
        for device_id in ids:
            uuid, minor = (
                _WHOLE.match(device_id) or _MIG.match(device_id) or _OLD_MIG.match(device_id),
                _BY_MINOR.match(device_id),
            )
            found.add((by_id.get(uuid[1], "") if uuid else "") or (by_minor.get(minor[1], "") if minor else ""))
        for device_id in claimed:
            minor = _DRA.match(device_id)
            found.add(by_minor.get(minor[1], "") if minor else "")
    return frozenset(found) if found and "" not in found else None
