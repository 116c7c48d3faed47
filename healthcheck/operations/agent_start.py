"""Fixes of an agent whose pod is refused or does not start, by the words of kubelet, scheduler and controllers."""

from __future__ import annotations


def start_fix(reason: str, message: str) -> str:
    """Return the fix of the first row whose words are in reason or message; '' if none is known."""
    text = f"{reason}: {message}".lower()
    return next((fix for words, fix in _FIXES if any(word in text for word in words)), "")


_FIXES = (
    (
        ("imagepull", "imagename", "invalidimage", "imageneverpull", "registryunavailable"),
        (
            "Set image.repository (chart) or the overlay's image to an image that this node can pull, and"
            " imagePullSecrets if its registry needs a login."
        ),
    ),
    (
        ("match these scopes",),
        "Apply the whole installation: its ResourceQuota in the namespace gpu-healthcheck covers system-node-critical.",
    ),
    (
        ("exceeded quota", "must specify limits", "limitrange", "maximum "),
        "Raise or remove the ResourceQuota or LimitRange in the namespace gpu-healthcheck.",
    ),
    (
        ("podsecurity", "violates pod security"),
        (
            "Allow the privileged level: `kubectl label namespace gpu-healthcheck"
            " pod-security.kubernetes.io/enforce=privileged --overwrite`"
        ),
    ),
    (
        ("priorityclass", "priority class", "priorityclassname"),
        "Create the PriorityClass, or remove it from the DaemonSet.",
    ),
    (
        ("denied the request", "admission webhook", "validatingadmissionpolicy", "is forbidden", "failedcreate"),
        (
            "Exempt the namespace gpu-healthcheck from this admission rule: the agent needs a privileged pod with the"
            " host's /dev, /sys and /proc."
        ),
    ),
    (
        ("insufficient", "unschedulable", "outof", "evicted", "preempting"),
        "Make room on the node for the agent's requests (chart: agent.resources).",
    ),
)
"""Words of a reason or message, and the fix."""
