"""Cause for cards with different MIG geometries; a device plugin that exits for this is a consequence."""

from __future__ import annotations

from diagnosis.model import Cause, CauseSeverity

MIG_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html"
GEOMETRY = Cause(
    "MigGeometryInvalid",
    CauseSeverity.HIGH,
    None,
    "The MIG strategy is single, and the node's cards have different profiles: the node offers none of them.",
    "Give all cards of the node the same profile, or set the strategy to mixed.",
    MIG_GUIDE,
)
