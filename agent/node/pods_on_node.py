"""Pods of this node with their devices, from the kubelet and the container runtime."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from agent.state.agent_state import AgentState
from healthcheck.host.grpc_socket import want_greeting
from healthcheck.model import Host
from healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from healthcheck.probes.pod_resources import PodDevices, kubelet_socket, read_pod_resources
from healthcheck.probes.pods_by_uid import LocalPod, read_pods

GREETING_SECONDS = 0.5
"""Longest wait for the first byte of the kubelet."""


class PodOnNode(Struct, frozen=True):
    """A pod of this node, with its devices; None: the kubelet lists none."""

    pod: LocalPod
    devices: PodDevices | None


def read_pods_on_node(root: Path, runtime_socket: str) -> dict[str, PodOnNode]:
    """Return all pods with their devices by UID. Raises ProbeError."""
    want_greeting(root, kubelet_socket(root), GREETING_SECONDS)
    with ThreadPoolExecutor(1, "pod-devices") as pool:  # each question starts a child
        held = pool.submit(read_pod_resources, Host(root))
        pods = read_pods(root, runtime_socket)
    devices = {(pod.namespace, pod.name): pod for pod in held.result()}
    return {uid: PodOnNode(pod, devices.get((pod.namespace, pod.name))) for uid, pod in pods.items()}


def runtime_socket(state: AgentState) -> str:
    """Return the socket of the container runtime that the last check cycle found; '' if it found none."""
    last = state.last_evidence
    return last[CONTAINER_RUNTIME].socket if last is not None and last.unread(CONTAINER_RUNTIME) is None else ""
