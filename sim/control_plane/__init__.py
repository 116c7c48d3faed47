"""A real control plane on loopback for tests, demo and bench: etcd, kube-apiserver and others."""

from gpu_healthcheck.sim.cluster_objects import DEVICE_TAINT_RULES
from gpu_healthcheck.sim.control_plane.build import ControlPlaneError, binaries, find_binaries
from gpu_healthcheck.sim.control_plane.install import MANIFESTS, install, install_device_taints, unbound_token
from gpu_healthcheck.sim.control_plane.plane import Answer, ControlPlane

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
