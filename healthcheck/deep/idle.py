"""Whether anybody uses this node's GPUs: pods, by the kubelet; processes, by the last light look."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from healthcheck.model import Evidence, ProbeError, Unobserved
from healthcheck.probes.nvml.gpus import NVML
from healthcheck.text.naming import named

_MOST_NAMED = 3


class Idleness(Struct, frozen=True):
    """`pods` gives pod, resource and number of devices for each pod that has some, and raises ProbeError."""

    pods: Callable[[], Iterable[tuple[str, str, int]]]
    last_look: Callable[[], Evidence | None]

    def held(self) -> str:
        """Which pods have GPUs, '' where none has. Raises ProbeError."""
        return named((f"{pod} has {number} {resource}" for pod, resource, number in self.pods()), _MOST_NAMED)

    def used(self) -> str:
        """Who uses the GPUs, '' for nobody. Raises ProbeError."""
        return self.held() or self._processes()

    def _processes(self) -> str:
        """In a PID namespace of our own NVML shows us none; then the pods alone are known."""
        look = self.last_look()
        if look is None or look.unread(NVML):
            raise ProbeError("no light look has asked NVML yet")
        answer = look[NVML].answer
        if isinstance(answer, Unobserved):
            raise ProbeError(answer.detail)
        busy = [gpu.subject for gpu in answer.gpus if gpu.processes]
        return f"processes use {', '.join(busy[:_MOST_NAMED])}" if busy else ""
