"""Running processes of DCGM's tests that belong to the agent or the node, by the pid in kernel messages.

A process name proves nothing, because users of a pod can choose it. The control group shows the pod of a process, and
the kubelet's folder of logs shows the pod's namespace.
"""

from __future__ import annotations

from pathlib import Path

from gpu_healthcheck.healthcheck.probes.container_runtime import processes
from gpu_healthcheck.healthcheck.probes.container_runtime.origins import Origin
from gpu_healthcheck.healthcheck.probes.dcgm.engine import is_operators
from gpu_healthcheck.healthcheck.probes.kubelet_pods import KubeletPod, known_pods, uid_of

NAMES = frozenset({"nvvs", "dcgmi", "nv-hostengine", "nvbandwidth"})
"""DCGM's programs: the runner of tests, its two starters (dcgmi and the hostengine), and a test that is a program.

Other programs that a test may start, such as NCCL's all_reduce_perf, are excluded: users also run them.
"""


def find(root: Path, namespace: str) -> frozenset[int]:
    """Return the pids on the host, in pods of the namespace, and of the GPU operator's engine. Raises OSError."""
    if not processes.are_the_hosts(root):
        return frozenset()  # pids here differ from those in kernel messages
    called = processes.called(root, NAMES)
    pods = known_pods(root) if any(origin is not Origin.HOST for _, origin, _ in called) else {}

    def is_own(origin: Origin, pod: KubeletPod | None) -> bool:
        return pod is not None and (pod.namespace == namespace or is_operators(pod, origin))

    return frozenset(
        pid for pid, origin, cgroup in called if origin is Origin.HOST or is_own(origin, pods.get(uid_of(cgroup)))
    )
