"""Causes in a node's container runtime.

Components depend on the runtime too, and name these causes as the origin of their own failures.
"""

from __future__ import annotations

from diagnosis.model import Cause, CauseSeverity, Link
from healthcheck.checks import container_runtime, default_runtime

MISSING = Cause(
    "RuntimeHandlerMissing",
    CauseSeverity.HIGH,
    Link.RUNTIME,
    "The container runtime that the node's kubelet uses lacks the handler that the pods' RuntimeClass names.",
    "Configure NVIDIA's toolkit for that container runtime and restart it: `nvidia-ctk runtime configure`, or the GPU "
    "operator's values `toolkit.env`.",
    'containerd: `no runtime for "…" is configured`; CRI-O: `failed to find runtime handler … from runtime list`',
)
ELSEWHERE = Cause(
    "ToolkitConfiguresAnotherRuntime",
    CauseSeverity.HIGH,
    Link.RUNTIME,
    "NVIDIA's toolkit writes its handler into the configuration of a container runtime that the kubelet does not use.",
    "Set the toolkit to the file and socket of the kubelet's runtime: CONTAINERD_CONFIG and CONTAINERD_SOCKET.",
    "GPU operator, `toolkit.env`; the host paths of its toolkit's DaemonSet",
)
CLASS_MISSING = Cause(
    "RuntimeClassMissing",
    CauseSeverity.HIGH,
    Link.ADMITTED,
    "Pods name a RuntimeClass that does not exist: the API server refuses to create them.",
    "Create the RuntimeClass, or remove its name from the pod template.",
    '`RuntimeClass "…" not found`, an event FailedCreate of the pods\' controller',
)
UNLOADABLE = tuple(
    Cause(one.name, CauseSeverity.HIGH, Link.RUNTIME, one.meaning, one.action, one.source)
    for one in (container_runtime.MALFORMED, container_runtime.CRI_DISABLED, default_runtime.UNDEFINED)
)
"""Reasons of the agent's findings: with these files the container runtime does not serve the kubelet."""


def unloadable(node: str) -> tuple[tuple[Cause, str], ...]:
    """Return the causes that explain any lack of a container runtime on the node `node/NAME`."""
    return tuple((cause, node) for cause in UNLOADABLE)
