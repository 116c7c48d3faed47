"""Explain the last messages of a component's pod, matched on text common to its versions."""

from __future__ import annotations

_TELLING = ("error", "fail", "fatal", "panic", "could not", "unable to", "cannot", "can't", "no devices", "refused")
_LONGEST = 400
_HINTS = (
    (
        ("no runtime for",),
        "The kubelet's container runtime has no handler of that name: see where the toolkit writes, and restart it.",
    ),
    (
        ("Could not resolve Linux kernel version", "kernel source tree", "kernel-headers", "linux-headers"),
        (
            "No headers are found for the node's kernel: use a driver image made for that kernel, give the node access "
            "to its package repository, or install the driver on the host."
        ),
    ),
    (
        ("Key was rejected by service", "Required key not available"),
        "Secure Boot refuses the unsigned module: use signed, precompiled drivers, or turn Secure Boot off.",
    ),
    (("nouveau",), "The driver nouveau holds the GPU: block it on the host, and reboot the node."),
    (
        (
            "nvidia is in use",
            "driver is in use",
            "Could not unload NVIDIA driver kernel modules",
            "Failed to uninstall nvidia driver",
        ),
        "Something on the node still uses the old driver: drain its GPU pods (host programs too), or reboot it.",
    ),
    (
        ("Driver/library version mismatch",),
        "The driver's libraries were changed beneath the loaded module: drain the node and reboot it.",
    ),
    (
        ("ERROR_LIBRARY_NOT_FOUND", "libnvidia-ml.so", "Incompatible strategy", "Incompatible platform"),
        (
            "Its own container has no driver: it must run with the nvidia runtime (RuntimeClass or default "
            "runtime), or its setting for the driver's root is wrong."
        ),
    ),
    (
        ("more than one MIG device type present", "same migEnabled value"),
        "The MIG strategy is single and the cards are cut differently: give all the same profile, or use mixed.",
    ),
    (
        ("driver not loaded", "couldn't communicate with the NVIDIA driver", "NVIDIA-SMI has failed"),
        "The driver's kernel module is not loaded on the node.",
    ),
    (
        ("no such host", "Temporary failure resolving", "Could not resolve host", "i/o timeout"),
        "The node does not reach a name server or a repository: see its network and its firewall.",
    ),
    (
        ("manifest unknown", "MANIFEST_UNKNOWN", ": not found"),
        (
            "There is no such image: for a driver, none is published for this version and operating system. Correct "
            "repository, image and version in the ClusterPolicy or Helm values."
        ),
    ),
    (
        ("unauthorized", "authentication required", "access denied", "403 Forbidden"),
        "The registry refuses the pull: give the workload an imagePullSecret that may read it.",
    ),
    (("toomanyrequests", "rate limit"), "The registry limits pulls: use a mirror, or an account with a higher limit."),
    (("OOMKilled",), "It needs more memory than its limit: raise the limit of its container."),
)
"""The more special ones first."""


def hint(texts: str) -> str:
    """Return the fix for these texts; '' if they contain no known message."""
    lower = texts[:16384].lower()
    return next((message for words, message in _HINTS if any(word.lower() in lower for word in words)), "")


def last_line(log: str) -> str:
    """Return the last line that reports a failure, or else the last line."""
    lines = [line.strip() for line in log.splitlines()[-50:] if line.strip()]
    telling = [line for line in lines if any(word in line.lower() for word in _TELLING)]
    return (telling or lines or [""])[-1][:_LONGEST]
