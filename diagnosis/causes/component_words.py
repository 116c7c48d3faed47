"""Explain the last messages of a component's pod, matched on text common to its versions."""

from __future__ import annotations

_TELLING = ("error", "fail", "fatal", "panic", "could not", "unable to", "cannot", "can't", "no devices", "refused")
_LONGEST = 400
_HINTS = (
    (
        ("no runtime for",),
        "The kubelet's container runtime lacks that handler: check which file the toolkit writes, then restart it.",
    ),
    (
        ("Could not resolve Linux kernel version", "kernel source tree", "kernel-headers", "linux-headers"),
        (
            "The headers of the node's kernel are missing: use a driver image for that kernel, give the node access "
            "to its package repository, or install the driver on the host."
        ),
    ),
    (
        ("Key was rejected by service", "Required key not available"),
        "Secure Boot refuses the unsigned module: use signed, precompiled drivers, or turn Secure Boot off.",
    ),
    (("nouveau",), "The driver nouveau uses the GPU: block it on the host, and reboot the node."),
    (
        (
            "nvidia is in use",
            "driver is in use",
            "Could not unload NVIDIA driver kernel modules",
            "Failed to uninstall nvidia driver",
        ),
        "A process still uses the old driver: drain the node's GPU pods, stop host programs that use it, or reboot.",
    ),
    (
        ("Driver/library version mismatch",),
        "The driver's libraries and the loaded module have different versions: drain the node and reboot it.",
    ),
    (
        ("ERROR_LIBRARY_NOT_FOUND", "libnvidia-ml.so", "Incompatible strategy", "Incompatible platform"),
        (
            "Its own container has no driver: run it with the nvidia runtime (RuntimeClass or default "
            "runtime), or correct its setting for the driver root."
        ),
    ),
    (
        ("more than one MIG device type present", "same migEnabled value"),
        "The MIG strategy is single and the cards have different profiles: give all the same profile, or use mixed.",
    ),
    (
        ("driver not loaded", "couldn't communicate with the NVIDIA driver", "NVIDIA-SMI has failed"),
        "The driver's kernel module is not loaded on the node.",
    ),
    (
        ("no such host", "Temporary failure resolving", "Could not resolve host", "i/o timeout"),
        "The node does not reach a name server or a repository: check its network and its firewall.",
    ),
    (
        ("manifest unknown", "MANIFEST_UNKNOWN", ": not found"),
        (
            "The image does not exist: for a driver, none is published for this version and operating system. Correct "
            "repository, image and version in the ClusterPolicy or Helm values."
        ),
    ),
    (
        ("unauthorized", "authentication required", "access denied", "403 Forbidden"),
        "The registry refuses the pull: give the workload an imagePullSecret with read access.",
    ),
    (("toomanyrequests", "rate limit"), "The registry limits pulls: use a mirror, or an account with a higher limit."),
    (("OOMKilled",), "The container needs more memory than its limit: raise the limit."),
)
"""The more specific ones first."""


def hint(texts: str) -> str:
    """Return the fix for these texts; '' if they contain no known message."""
    lower = texts[:16384].lower()
    return next((message for words, message in _HINTS if any(word.lower() in lower for word in words)), "")


def last_line(log: str) -> str:
    """Return the last line that reports a failure, or else the last line."""
    lines = [line.strip() for line in log.splitlines()[-50:] if line.strip()]
    telling = [line for line in lines if any(word in line.lower() for word in _TELLING)]
    return (telling or lines or [""])[-1][:_LONGEST]
