"""GPUs that the kubelet allocated to a pod, by the device ids of the device plugins and of NVIDIA's DRA driver."""

from __future__ import annotations

import re
from collections.abc import Iterable

from healthcheck.probes.nvml.gpus import Gpu
from healthcheck.probes.pod_resources import DRA_DRIVER, PodDevices, is_gpu

_WHOLE = re.compile(r"(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:::[0-9]+)?\Z", re.ASCII)
"""Device of NVIDIA's device plugin: a GPU by UUID, or a time-sliced or MPS share of it (`::N`)."""
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/[0-9]+/[0-9]+\Z", re.ASCII)
_BY_MINOR = re.compile(r"nvidia([0-9]{1,3})(?:/(?:gi|vgpu)[0-9]+)*\Z", re.ASCII)
"""Device of GKE's device plugin: the minor number, and a part of the GPU."""
_DRA = re.compile(r"gpu-([0-9]{1,3})(?:-mig-[0-9a-z.+-]+)?\Z", re.ASCII)
"""Device of NVIDIA's DRA driver: the minor number, and a MIG instance."""


def gpus_of_pod(pod: PodDevices, gpus: Iterable[Gpu]) -> frozenset[str] | None:
    """Return the subjects of the pod's GPUs; None if it has none, or if a device cannot be assigned to a GPU.

    HAMi's device ids name no certain GPU: it records the GPUs of a pod in an annotation.
    """
    by_uuid = {gpu.uuid: gpu.subject for gpu in gpus}
    by_minor = {str(gpu.minor): gpu.subject for gpu in gpus if gpu.minor is not None}
    found: set[str] = set()
    for container in pod.containers:
        ids = [text for devices in container.devices if is_gpu(devices.resource) for text in devices.ids]
        claimed = [
            device.device for claim in container.claims for device in claim.devices if device.driver == DRA_DRIVER
        ]
        for text in ids:
            uuid, minor = _WHOLE.match(text) or _OLD_MIG.match(text), _BY_MINOR.match(text)
            found.add((by_uuid.get(uuid[1], "") if uuid else "") or (by_minor.get(minor[1], "") if minor else ""))
        for text in claimed:
            minor = _DRA.match(text)
            found.add(by_minor.get(minor[1], "") if minor else "")
    return frozenset(found) if found and "" not in found else None
