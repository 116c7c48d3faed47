"""Use of a node's GPUs: by pods, from the kubelet; by processes, from the last check cycle."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from healthcheck.model import Evidence, ProbeError, Unobserved
from healthcheck.probes.nvml.gpus import NVML
from healthcheck.text.naming import named

_MOST_NAMED = 3


class Idleness(Struct, frozen=True):
    """Sources of GPU use. `pods` returns pod, resource and device count of each pod with devices; raises ProbeError."""

    pods: Callable[[], Iterable[tuple[str, str, int]]]
    last_evidence: Callable[[], Evidence | None]

    def held(self) -> str:
        """Return the pods that have GPUs, or an empty string. Raises ProbeError."""
        return named((f"{pod} has {count} {resource}" for pod, resource, count in self.pods()), _MOST_NAMED)

    def used(self) -> str:
        """Return the pods or processes that use the GPUs, or an empty string. Raises ProbeError."""
        return self.held() or self._processes()

    def _processes(self) -> str:
        """Return the GPUs in use by processes, or an empty string.

        If the agent runs in a separate PID namespace, NVML reports no processes to it, and only the pods are known.
        """
        evidence = self.last_evidence()
        if evidence is None or evidence.unread(NVML):
            raise ProbeError("the agent has not read the GPUs yet")
        answer = evidence[NVML].answer
        if isinstance(answer, Unobserved):
            raise ProbeError(answer.detail)
        busy = [gpu.subject for gpu in answer.gpus if gpu.processes]
        return f"processes use {', '.join(busy[:_MOST_NAMED])}" if busy else ""
