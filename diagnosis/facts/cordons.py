"""Owners of a cordon, by the labels and annotations that they write, and how each of them lifts it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from gpu_healthcheck.diagnosis.facts.commands import command, kubectl
from gpu_healthcheck.diagnosis.snapshot.nodes import Node

_UNSET = ("", "false", "none", "unknown")
_MARKS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("k8saas.nvidia.com/cordon-", "NVSentinel", ()),
    ("dgxc.nvidia.com/nvsentinel-state", "NVSentinel", ("remediation-succeeded",)),
    ("quarantineHealthEventIsCordoned", "NVSentinel", ()),
    ("weave.works/kured-reboot-in-progress", "kured", ()),
    ("kured.dev/reboot-in-progress", "kured", ()),
    ("nvidia.com/gpu.deploy.", "the GPU operator", ("true", "false", "pre-installed")),
    ("nvidia.com/ofed-driver-upgrade-state", "NVIDIA's network operator", ("upgrade-done", "upgrade-required")),
    ("sriovnetwork.openshift.io/state", "the SR-IOV network operator", ("Idle", "Drain_Disabled")),
    ("sriovnetwork.openshift.io/current-state", "the SR-IOV network operator", ("Idle", "Drain_Disabled")),
    ("machineconfiguration.openshift.io/state", "OpenShift's machine config operator", ("Done",)),
    ("kubernetes.azure.com/upgrade-status", "the upgrade of AKS", ()),
    ("medik8s.io/", "medik8s' node maintenance", ()),
    ("remediation.medik8s.io/", "medik8s' node maintenance", ()),
    ("nodemaintenance.", "medik8s' node maintenance", ()),
)
"""Beginning of a label or annotation, its owner, and its values while the owner does not work on the node.

Karpenter, the autoscalers and clouds that end a node write a taint."""
_FINISH = {
    "NVSentinel": "when the fault that it reports as a condition of the node has ended",
    "kured": "after the reboot; if that does not come, read the log of its pod on the node",
    "the upgrade of AKS": "by removing the node: end what blocks its drain, then repeat the pool's upgrade",
    "medik8s' node maintenance": "when the node's object is deleted: `kubectl get nodemaintenances`",
}
_USUALLY = "when its change of the node is done; if that lasts, read the log of its pods on the node"
"""Times at which an owner lifts its cordon."""
_ABOUT = re.compile(r"(?<!un)cordon|drain|maintenance|quarantine", re.IGNORECASE)
_NOT_ABOUT = (
    *("hami.io/", "quarantinedNodeUncordoned", "nvidia.com/gpu-driver-", "machineconfiguration.", "sriovnetwork."),
    *(start for start, *_ in _MARKS),
)
"""Keys of one device, or whose owner is known by its values."""
_MOST_MARKS = 4


def cordon_marks(node: Node) -> tuple[str, ...]:
    """Return labels and annotations about the cordon, as `label key=value`."""
    kinds = (("label", node.meta.labels), ("annotation", node.meta.annotations))
    marks = ((kind, key, value) for kind, values in kinds for key, value in values.items())
    shown = (f"{kind} {key}={value[:100]}" for kind, key, value in marks if _is_about(key, value))
    return tuple(islice(shown, _MOST_MARKS))


def uncordon_steps(node: Node) -> Iterator[str]:
    """Yield the steps that end the cordon: through its owner if it is known, otherwise after a question to it."""
    marks = (*node.meta.labels.items(), *node.meta.annotations.items())
    owner = next(filter(None, (_owner(key, value) for key, value in marks)), "")
    named, uncordon = ", ".join(cordon_marks(node)[:2]), command("kubectl", "uncordon", node.name)
    if owner:
        yield f"{owner} cordoned it ({named}), and lifts its cordon {_FINISH.get(owner, _USUALLY)}"
        yield f"Only if its reason has ended and {owner} does not return the node: {uncordon}"
    elif named:
        yield f"Ask the owner that the {named} names to finish; when its reason has ended: {uncordon}"
    else:
        yield f"No label or annotation names who cordoned it: look for its reason: {kubectl('describe', node.meta)}"
        yield f"When that reason has ended: {uncordon}"


def _is_about(key: str, value: str) -> bool:
    general = _ABOUT.search(key) is not None and not key.startswith(_NOT_ABOUT) and value.lower() not in _UNSET
    return general or bool(_owner(key, value))


def _owner(key: str, value: str) -> str:
    """Return the owner of a label or annotation that it writes only while it works on the node; '' if it is none."""
    return next((name for start, name, idle in _MARKS if key.startswith(start) and value not in (*idle, *_UNSET)), "")
