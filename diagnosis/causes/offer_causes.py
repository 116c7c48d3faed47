"""Causes why a node offers no GPUs, or only some. Pods that wait for a GPU name them as the origin."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from diagnosis.causes.mig_causes import GEOMETRY, MIG_GUIDE
from diagnosis.causes.unready_components import NOT_READY, VALIDATION
from diagnosis.facts.components import Role, components
from diagnosis.facts.gpu_nodes import GPU, has_nvidia
from diagnosis.model import Cause, CauseSeverity, Link, Origin, origins
from diagnosis.snapshot import Snapshot

MISSING = Cause(
    "DevicePluginMissing",
    CauseSeverity.HIGH,
    None,
    "A node has GPUs and no device plugin that offers them, so no pod gets one there.",
    "Let a device plugin's DaemonSet run on the node: install one, add its toleration, or set the label it selects by.",
    "https://github.com/NVIDIA/k8s-device-plugin",
)
NOT_OFFERED = Cause(
    "GpusNotOffered",
    CauseSeverity.HIGH,
    None,
    "A node has GPUs and offers none: its device plugin detects none, or could not register with the kubelet.",
    "Read the device plugin's log, fix its error, then restart its pod.",
)
UNHEALTHY = Cause(
    "UnhealthyGpus",
    CauseSeverity.HIGH,
    Link.SCHEDULED,
    "A node has GPUs that its device plugin does not advertise, because it considers them unhealthy.",
    (
        "Check the GPUs of the node; when they are healthy, restart its device plugin, which does not check "
        "again on its own."
    ),
    "k8s-device-plugin: an unhealthy device stays so until the plugin restarts",
)
MIG_FAILED = Cause(
    "MigConfigFailed",
    CauseSeverity.HIGH,
    None,
    "The MIG manager could not apply the profiles that the node's label requests.",
    "Read the MIG manager's log; stop the processes on the GPUs, or correct the configuration name.",
    MIG_GUIDE,
)
MIG_PENDING = Cause(
    "MigConfigPending",
    CauseSeverity.MEDIUM,
    None,
    "A requested change of MIG profiles on a node does not complete.",
    "Check the MIG manager pod on the node.",
    MIG_GUIDE,
)
_STACK = (Role.DRIVER, Role.TOOLKIT, Role.DEVICE_PLUGIN)
OFFERS_NONE = (
    *(NOT_READY[role] for role in _STACK),
    *(VALIDATION, GEOMETRY, MIG_FAILED, MISSING, NOT_OFFERED, UNHEALTHY),
)
"""Causes why a node with GPUs may offer none, in the order of the stack."""


@lru_cache(maxsize=1)
def why_not_offered(snapshot: Snapshot) -> tuple[Origin, ...]:
    """Return all possible reasons why no node offers a GPU, each with its subject.

    The result is cached, because it is needed for each waiting pod.
    """
    subjects = [node.subject for node in snapshot.nodes if has_nvidia(node)]
    subjects += stack(snapshot)
    return (MISSING.name, f"resource/{GPU}"), *origins(OFFERS_NONE, *subjects)


def stack(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the workloads that make a node offer GPUs."""
    return tuple(component.subject for component in components(snapshot) if component.role in _STACK)


def why_none_left(node: str, workloads: Iterable[str]) -> tuple[Origin, ...]:
    """Return all possible reasons why a node offers none of its GPUs any more.

    UNHEALTHY is left out, because these reasons explain it: none of the GPUs is reported as healthy.
    """
    return origins((cause for cause in OFFERS_NONE if cause is not UNHEALTHY), node, *workloads)


@lru_cache(maxsize=1)
def why_not_cut(snapshot: Snapshot) -> tuple[Origin, ...]:
    """Return all possible reasons why no node offers a MIG profile."""
    nodes = [node.subject for node in snapshot.nodes if has_nvidia(node)]
    return tuple((cause.name, node) for node in nodes for cause in (GEOMETRY, MIG_FAILED, MIG_PENDING))
