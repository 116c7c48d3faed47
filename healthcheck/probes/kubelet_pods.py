"""Pods that the kubelet runs on this node, and the pod of a control group."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from healthcheck.host import host_files
from healthcheck.host.opening import names_in

KUBELETS = ("/var/lib/kubelet", "/var/lib/k0s/kubelet")
"""Folders of kubelets: the default, to which MicroK8s has a link, and that of k0s."""
_LOGS = "/var/log/pods"
"""Folder in which the kubelet creates a folder for each pod: NAMESPACE_NAME_UID."""
_POD = re.compile(rb"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?(?=/|$)", re.MULTILINE)


class KubeletPod(Struct, frozen=True):
    """A pod with its names in the API server."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def uid_of(cgroup: bytes) -> str:
    """Return the pod's UID from the outermost group; '' for none or several. The pod can name inner groups freely."""
    first = {found[1] for line in cgroup.splitlines() if (found := _POD.search(line))}
    return first.pop().decode().replace("_", "-") if len(first) == 1 else ""


def has_pod(root: Path, uid: str) -> bool | None:
    """Whether a kubelet of this node has the pod; None if there is no folder of pods.

    The kubelet creates a folder for each pod before its first container, and removes it after the pod's deletion
    (makePodDataDirs and cleanupOrphanedPodDirs in pkg/kubelet). Raises ProbeError if this cannot be checked.
    """
    folders = [folder for kubelet in KUBELETS if host_files.is_there(root, folder := f"{kubelet}/pods")]
    return any(host_files.is_there(root, f"{folder}/{uid}") for folder in folders) if folders else None


def known_pods(root: Path) -> dict[str, KubeletPod]:
    """Return the pods by UID. A UID with two folders is left out. Raises OSError."""
    words = [name.split("_") for name in names_in(host_files.below(root, _LOGS))]
    pods: dict[str, set[KubeletPod]] = {}
    for word in words:
        if len(word) == 3 and word[2]:
            pods.setdefault(word[2], set()).add(KubeletPod(word[0], word[1]))
    return {uid: named.pop() for uid, named in pods.items() if len(named) == 1}
