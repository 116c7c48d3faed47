"""The agent's pod on a node, from the API server, containerd, the audit log and the kernel's accounting."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_healthcheck.sim.real_node.arguments import CGROUP
from gpu_healthcheck.sim.real_node.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_healthcheck.sim.real_node.running import RunningNode

NAMESPACE = "gpu-healthcheck"
DAEMONSET = "daemonset/gpu-healthcheck-agent"
METRICS_PORT = 10633
MANIFESTS = "kubernetes/manifests/"
GIVE_UP_SECONDS = 600
"""Deadline of a wait, not an asserted time. Longer than the five minutes after which the kubelet, the scheduler and the
DaemonSet's controller retry missed work."""
_MIB = 1 << 20
_CHARGED = ("memory.usage_in_bytes", "memory.current")
"""File of the memory usage in cgroup v1 and v2."""

Json = dict[str, Any]


class AgentPod:
    """The agent's pod on a real node."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node

    def all(self) -> list[Json]:
        """Return the agents' pods, also terminating ones, without the sweeper's."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=agent"
        pods: list[Json] = self._node.get(path)["items"]
        return pods

    def ready(self, other_than: str = "") -> Json:
        """Wait for the only agent to be ready, other than the pod with this UID, and return it."""
        found: list[Json] = []

        def is_there() -> bool:
            found[:] = [pod for pod in self.all() if "deletionTimestamp" not in pod["metadata"]]
            if len(found) != 1 or found[0]["metadata"]["uid"] == other_than or not _is_ready(found[0]):
                return False
            return self._serves(found[0])

        wait_until(is_there, GIVE_UP_SECONDS, lambda: self._not_ready(other_than))
        return found[0]

    def _not_ready(self, other_than: str) -> str:
        """Return the state of the pods, the short part first, because a report may be truncated."""
        pods = [
            {
                "uid": pod["metadata"]["uid"],
                "leaves": pod["metadata"].get("deletionTimestamp"),
                "status": pod["status"],
            }
            for pod in self.all()
        ]
        ports = self._node.run("ss", "-Hlntp").stdout
        tasks = self._node.run("ctr", "--namespace=k8s.io", "tasks", "list").stdout
        wanted = f"no agent is ready, other than {other_than or 'none'}"
        return f"{wanted}: {json.dumps(pods)}\n{ports}{tasks}{self.logs()}"

    def logs(self) -> str:
        """Return the agent's logs and the programs' last output, for the message of a failure."""
        logs = self._node.run("kubectl", f"--namespace={NAMESPACE}", "logs", DAEMONSET, "--tail=40", check=False)
        return f"{logs.stdout}{logs.stderr}\n{self._node.logs()}"

    def pid(self) -> str:
        """Return the PID in the node's PID namespace."""
        return self._pid(self.ready())

    def seconds_to_first_write(self) -> float:
        """Return the time from the container's start to the agent's first write to the Node, from the audit log."""
        ticks = int(self._node.run("cat", f"/proc/{self.pid()}/stat").stdout.rpartition(")")[2].split()[19])
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        started = booted + ticks / os.sysconf("SC_CLK_TCK")
        return min(moment for moment in self._writes() if moment > started) - started

    def memory_group(self) -> Path:
        """Return the pod's control group for memory."""
        uid = self.ready()["metadata"]["uid"]
        (file,) = Path("/sys/fs/cgroup").glob(f"**/{CGROUP}/**/pod{uid}/memory.stat")
        return file.parent

    def _pid(self, pod: Json) -> str:
        """Return the process; empty if the container of the pod's status has ended."""
        container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
        tasks = [
            line.split() for line in self._node.run("ctr", "--namespace=k8s.io", "tasks", "list").stdout.splitlines()
        ]
        return next((words[1] for words in tasks if words[0] == container and words[2] == "RUNNING"), "")

    def _serves(self, pod: Json) -> bool:
        """Whether this pod owns the metrics port; on the host's network, a terminating pod may still own it."""
        listening = self._node.run("ss", "-Hltnp", f"sport = :{METRICS_PORT}").stdout
        return f"pid={self._pid(pod)}," in listening

    def _writes(self) -> Iterator[float]:
        for line in (self._node.folder / "audit.log").read_text().splitlines():
            event = json.loads(line)
            # A request without valid credentials has no name.
            is_ours = event["user"].get("username") == f"system:serviceaccount:{NAMESPACE}:{NAMESPACE}"
            if is_ours and event["verb"] == "patch" and event["objectRef"]["resource"] == "nodes":
                yield datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()


def _is_ready(pod: Json) -> bool:
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in pod["status"].get("conditions", []))


def memory_mib(group: Path) -> dict[str, float]:
    """Return the memory of a control group, and the same without memory that the kernel can reclaim at once."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    (charged,) = (path for name in _CHARGED if (path := group / name).exists())
    usage = int(charged.read_text())
    droppable = int(stat.get("total_inactive_file", stat["inactive_file"]))  # v1 includes child groups only in total_*
    return {"usage": usage / _MIB, "working set": (usage - droppable) / _MIB}
