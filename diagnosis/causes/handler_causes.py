"""Causes that lie in a node's container runtime: components wait for it too, and name them as what they follow from."""

from __future__ import annotations

from diagnosis.cause import Cause, Link, Severity

MISSING = Cause(
    "RuntimeHandlerMissing",
    Severity.HIGH,
    Link.RUNTIME,
    "The container runtime that the node's kubelet uses has no handler of the name that the pods' RuntimeClass names.",
    "Configure NVIDIA's toolkit for that container runtime, and restart it: `nvidia-ctk runtime configure`, or the GPU "
    "operator's values `toolkit.env`.",
    'containerd: `no runtime for "…" is configured`; CRI-O: `failed to find runtime handler … from runtime list`',
)
ELSEWHERE = Cause(
    "ToolkitConfiguresAnotherRuntime",
    Severity.HIGH,
    Link.RUNTIME,
    "NVIDIA's toolkit writes its handler into the configuration of another container runtime than the kubelet's.",
    "Give the toolkit the file and the socket of the kubelet's own: CONTAINERD_CONFIG and CONTAINERD_SOCKET.",
    "GPU operator, `toolkit.env`; the host paths of its toolkit's DaemonSet",
)
CLASS_MISSING = Cause(
    "RuntimeClassMissing",
    Severity.HIGH,
    Link.ADMITTED,
    "Pods name a RuntimeClass that does not exist: the API server refuses to make them.",
    "Create the RuntimeClass, or take its name out of the pods' template.",
    '`RuntimeClass "…" not found`, an event FailedCreate of what makes the pods',
)
