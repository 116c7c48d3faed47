"""A real control plane on loopback for tests, demo and bench: etcd, kube-apiserver and others."""

from sim.control_plane.build import ControlPlaneError, binaries, find_binaries
from sim.control_plane.install import MANIFESTS, install, install_device_taints, unbound_token
from sim.control_plane.objects import DEVICE_TAINT_RULES
from sim.control_plane.plane import Answer, ControlPlane

__all__ = [
    "DEVICE_TAINT_RULES",
    "MANIFESTS",
    "Answer",
    "ControlPlane",
    "ControlPlaneError",
    "binaries",
    "find_binaries",
    "install",
    "install_device_taints",
    "unbound_token",
]
