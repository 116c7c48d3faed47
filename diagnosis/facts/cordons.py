"""Owners of a cordon, by the labels and annotations that they write, and how each of them lifts it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from diagnosis.facts.commands import command, kubectl
from diagnosis.snapshot.nodes import Node


class _Owner(Struct, frozen=True):
    """Program that cordons nodes. `marks`: its keys, with the values that it has while a node is in service."""

    name: str
    marks: tuple[tuple[str, tuple[str, ...]], ...]
    finish: str
    """How the owner's work on the node ends."""


_UNSET = ("", "false", "none", "unknown")
_DONE = ("upgrade-done", "upgrade-required")
_OWNERS = (
    _Owner(
        "NVSentinel",
        (
            ("k8saas.nvidia.com/cordon-", ()),
            ("dgxc.nvidia.com/nvsentinel-state", ("remediation-succeeded",)),
            ("quarantineHealthEventIsCordoned", ()),
        ),
        "it lifts its cordon when the fault that it reports as a condition of the node has ended",
    ),
    _Owner(
        "kured",
        (("weave.works/kured-reboot-in-progress", ()), ("kured.dev/reboot-in-progress", ())),
        "it lifts its cordon after the reboot; if that does not come, read the log of kured's pod on the node",
    ),
    _Owner(
        "the GPU operator",
        (("nvidia.com/gpu.deploy.", ("true", "false", "pre-installed")),),
        "it lifts its cordon after its change of driver or MIG; if that lasts, read the log of its pods on the node",
    ),
    _Owner(
        "NVIDIA's network operator",
        (("nvidia.com/ofed-driver-upgrade-state", _DONE),),
        "it lifts its cordon after the driver's upgrade; if that lasts, check its driver pod on the node",
    ),
    _Owner(
        "the SR-IOV network operator",
        tuple((f"sriovnetwork.openshift.io/{one}", ("Idle", "Drain_Disabled")) for one in ("state", "current-state")),
        "it lifts its cordon when the node's devices are configured; if that lasts, read its config daemon's log",
    ),
    _Owner(
        "OpenShift's machine config operator",
        (("machineconfiguration.openshift.io/state", ("Done",)),),
        "it lifts its cordon after the update; if that lasts, see `kubectl get machineconfigpools`",
    ),
    _Owner(
        "the upgrade of AKS",
        (("kubernetes.azure.com/upgrade-status", ()),),
        "it could not drain the node: end what blocks the drain, then repeat the upgrade of the pool, which removes it",
    ),
    _Owner(
        "medik8s' node maintenance",
        (("medik8s.io/", ()), ("remediation.medik8s.io/", ()), ("nodemaintenance.", ())),
        "delete the NodeMaintenance or remediation of this node: `kubectl get nodemaintenances`",
    ),
)
"""Programs that write why they cordon a node. Karpenter, the autoscalers and terminating clouds write a taint."""
_ABOUT = re.compile(r"(?<!un)cordon|drain|maintenance|quarantine", re.IGNORECASE)
_NOT_ABOUT = (
    "hami.io/",
    "quarantinedNodeUncordoned",
    "sriovnetwork.",
    "machineconfiguration.",
    "nvidia.com/gpu.deploy.",
    "nvidia.com/gpu-driver-",
)
"""Keys of one device, or whose owner is known by its values."""
_MOST_MARKS = 4


def cordon_marks(node: Node) -> tuple[str, ...]:
    """Return labels and annotations about the cordon, as `label key=value`."""
    owner = _owner(node)
    return tuple(f"{kind} {key}={value[:100]}" for kind, key, value in _marks(node, owner))[:_MOST_MARKS]


def uncordon_steps(node: Node) -> Iterator[str]:
    """Yield the steps that end the cordon: through its owner if it is known, otherwise after a question to it."""
    owner, uncordon = _owner(node), command("kubectl", "uncordon", node.name)
    named = ", ".join(cordon_marks(node)[:2])
    if owner is not None:
        yield f"{owner.name} cordoned it ({named}): {owner.finish}"
        yield f"Only if its reason has ended and {owner.name} does not return the node: {uncordon}"
    elif named:
        yield f"Ask the owner that the {named} names to finish; when its reason has ended: {uncordon}"
    else:
        yield f"No label or annotation names who cordoned it: look for its reason: {kubectl('describe', node.meta)}"
        yield f"When that reason has ended: {uncordon}"


def _marks(node: Node, owner: _Owner | None) -> Iterator[tuple[str, str, str]]:
    for kind, marks in (("label", node.meta.labels), ("annotation", node.meta.annotations)):
        for key, value in marks.items():
            general = _ABOUT.search(key) is not None and not key.startswith(_NOT_ABOUT) and value.lower() not in _UNSET
            if general or (owner is not None and _is_mark(owner, key, value)):
                yield kind, key, value


def _owner(node: Node) -> _Owner | None:
    marks = (*node.meta.annotations.items(), *node.meta.labels.items())
    return next((owner for owner in _OWNERS if any(_is_mark(owner, key, value) for key, value in marks)), None)


def _is_mark(owner: _Owner, key: str, value: str) -> bool:
    """Whether this is the owner's key with a value that it has only while it works on the node."""
    return any(key.startswith(start) and value not in (*idle, *_UNSET) for start, idle in owner.marks)
