"""Pods of this node by UID: from the kubelet's Pods API where it is served, else from the container runtime (CRI).

Also the kubelet's own folders of pods, and the pod of a control group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.grpc_socket import NodeSocket
from gpu_healthcheck.healthcheck.host.opening import names_in
from gpu_healthcheck.healthcheck.model import PREFIX, ProbeError

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


PODS_API = "/var/lib/kubelet/pods-api/pods-api.sock"
"""Socket of the kubelet's Pods API (KEP-4188)."""
UID = re.compile(r"[0-9A-Za-z-]{1,64}\Z", re.ASCII)
MOST_PODS = 2000
"""Most pods that are kept: more than a kubelet runs."""
_LONGEST_NAME = 253
_READY = 0
"""SANDBOX_READY of PodSandboxState. The sandbox of a pod that has ended remains for a time."""
_ENDED = ("Succeeded", "Failed")
WAITING, EXPECTED = f"{PREFIX}/waiting", "expected"
"""Annotation of a pod or namespace whose GPUs may wait, such as inference servers that poll for requests."""
_GPU = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
"""UUID of a card in HAMi's annotation, with or without the position of a MIG instance behind it."""


class Toleration(Struct, frozen=True):
    """A pod's toleration; '' is a field that is not set."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class LocalPod(Struct, frozen=True):
    """A pod of this node. `tolerations` is None if the source does not know them."""

    namespace: str
    name: str
    tolerations: tuple[Toleration, ...] | None = None
    hami_gpus: frozenset[str] = frozenset()
    """UUIDs of the GPUs that HAMi gave the pod: its scheduler writes them into an annotation before the pod starts."""
    has_ended: bool = False
    expects_waiting: bool = False
    started: int = 0
    """Start in seconds since 1970; 0 if it is unknown."""


def read_pods(root: Path, runtime_socket: str) -> dict[str, LocalPod]:
    """Return the pods by UID. Raises ProbeError if no source answers."""
    if host_files.is_there(root, PODS_API):
        try:
            return by_uid(pods_of_kubelet(*_ask("pods", root, PODS_API)))
        except ProbeError:  # a socket of a kubelet that no longer serves it
            if not runtime_socket:
                raise
    if not runtime_socket:
        raise ProbeError("the socket of the container runtime is not known")
    return by_uid(pods_of_runtime(*_ask("pod-sandboxes", root, runtime_socket)))


def pods_of_kubelet(answer: Mapping[str, Any]) -> Iterator[tuple[str, LocalPod]]:
    """Yield UID and pod of each entry of a ListPodsResponse."""
    for pod in answer.get("pods", ()):
        metadata = pod.get("metadata", {})
        tolerations = tuple(Toleration(**entry) for entry in pod.get("spec", {}).get("tolerations", ()))
        status = pod.get("status", {})
        started, has_ended = int(status.get("startTime", {}).get("seconds", 0)), status.get("phase", "") in _ENDED
        yield metadata.get("uid", ""), _pod(metadata, metadata, started, tolerations, has_ended=has_ended)


def pods_of_runtime(answer: Mapping[str, Any]) -> Iterator[tuple[str, LocalPod]]:
    """Yield UID and pod of each entry of a ListPodSandboxResponse."""
    for sandbox in answer.get("items", ()):
        metadata = sandbox.get("metadata", {})
        started = int(sandbox.get("created_at", 0)) // 10**9
        yield metadata.get("uid", ""), _pod(metadata, sandbox, started, has_ended=sandbox.get("state", 0) != _READY)


def _pod(
    names: Mapping[str, Any],
    annotated: Mapping[str, Any],
    started: int,
    tolerations: tuple[Toleration, ...] | None = None,
    *,
    has_ended: bool,
) -> LocalPod:
    annotations = {entry.get("key", ""): entry.get("value", "") for entry in annotated.get("annotations", ())}
    gpus = frozenset(uuid for value in annotations.values() for uuid in _GPU.findall(value))
    expects = annotations.get(WAITING) == EXPECTED
    return LocalPod(names.get("namespace", ""), names.get("name", ""), tolerations, gpus, has_ended, expects, started)


def _ask(question: str, root: Path, path: str) -> list[dict[str, Any]]:
    socket = NodeSocket(question)
    try:
        return socket.ask(root, path)
    finally:
        socket.end()


def by_uid(pods: Iterable[tuple[str, LocalPod]]) -> dict[str, LocalPod]:
    """Return the first MOST_PODS pods with a valid UID and name.

    A pod may have several sandboxes: if one runs, the pod has not ended.
    """
    found: dict[str, LocalPod] = {}
    for uid, pod in pods:
        if uid in found and pod.has_ended:
            continue
        if len(found) < MOST_PODS and UID.match(uid) and 0 < len(pod.name) <= _LONGEST_NAME >= len(pod.namespace):
            found[uid] = pod
    return found
