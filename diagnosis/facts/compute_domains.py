"""ComputeDomains of NVIDIA's DRA driver: which pods use one. Pure."""

from __future__ import annotations

import re

from diagnosis.facts.efa import claim_of
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.pods import Pod

_CHANNEL = re.compile(r"compute-?domain|\bimex\b", re.IGNORECASE)
"""DeviceClass, driver and usual names of claims of an IMEX channel: `compute-domain-default-channel.nvidia.com`."""


def claims_channel(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a claim of the pod is for an IMEX channel: by its class or device, or by name if it is not visible."""
    for name, source in pod.spec.claims.items():
        claim = claim_of(snapshot, pod, name)
        texts = (name, source) if claim is None else (*claim.devices, *(each.device_class for each in claim.requests))
        if any(map(_CHANNEL.search, texts)):
            return True
    return False
