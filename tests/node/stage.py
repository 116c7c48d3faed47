"""The stage of the story: a simulated GPU host, a real node on it, our image and manifests, and eyes on all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from gpu_healthcheck.sim.real_node.agent_pod import DAEMONSET, GIVE_UP_SECONDS, NAMESPACE, AgentPod, memory_mib
from gpu_healthcheck.sim.real_node.waiting import wait_until
from tests.agent.world import NodeView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpu_healthcheck.sim.node import SimulatedNode
    from gpu_healthcheck.sim.real_node import RealNode

Json = dict[str, Any]
GPU = "nvidia.com/gpu"


class Stage:
    def __init__(self, host: SimulatedNode, node: RealNode) -> None:
        self.host = host
        self.node = node
        self.pod = AgentPod(node)
        self.broke_off = False

    # --- doing

    def kubectl(self, *words: str) -> str:
        return self.node.kubectl(f"--namespace={NAMESPACE}", *words)

    def configure(self, **values: str) -> None:
        """Edit the ConfigMap."""
        self.kubectl("patch", "configmap", "gpu-healthcheck-config", "--patch", json.dumps({"data": values}))

    def install(self) -> None:
        """Apply the manifests, until the agent is ready. A verdict from before still stands."""
        self.node.kubectl("apply", "-f", self.node.manifests)
        self.pod.ready()

    def wait_for_rollout(self) -> None:
        self.kubectl("rollout", "status", DAEMONSET, f"--timeout={GIVE_UP_SECONDS}s")

    def on_node(self, script: str) -> str:
        """Return the output of a shell on the node."""
        return self.node.run("sh", "-ec", script).stdout

    def in_pod(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command in the agent's container."""
        return self.node.run("kubectl", f"--namespace={NAMESPACE}", "exec", DAEMONSET, "--", *words, check=check)

    def twin(self, name: str, program: str, **container: Any) -> Json:
        """A pod like the agent's, with another program and these changes of its container."""
        spec = json.loads(self.kubectl("get", DAEMONSET, "--output=json"))["spec"]["template"]["spec"]
        whole = {**spec["containers"][0], "command": ["python3", "-c", program], **container}
        for key in ("ports", "livenessProbe", "readinessProbe", "startupProbe"):
            whole.pop(key)
        spec |= {"containers": [whole], "restartPolicy": "Never"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}

    def run_twin(self, pod: Json) -> str:
        """Return its output; the pod is deleted afterwards."""
        name = pod["metadata"]["name"]
        self.node.kubectl("create", "--filename=-", input=json.dumps(pod))
        self.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", f"--timeout={GIVE_UP_SECONDS}s")
        printed = self.kubectl("logs", name)
        self.kubectl("delete", "pod", name, "--force", "--grace-period=0")
        return printed

    def reset_gpu(self, index: int) -> None:
        """It answers again; the findings of the log stay active."""
        (self.host.root / f"nvml/gpu{index}/error").unlink()

    def boot_again(self) -> datetime:
        """Switch the machine off and on: a reboot's effects on hardware, and a restart of Kubernetes.

        Returns the time of the switch: later writes are of the new processes.
        """
        self.node.power_off()
        off = datetime.now(UTC)
        self.host.reboot()
        self.node.power_on()
        return off

    # --- seeing

    def view(self) -> NodeView:
        return NodeView(self.node.get(f"/api/v1/nodes/{self.node.name}"))

    def wait(self, true: Callable[[NodeView], object]) -> NodeView:
        """The Node once that is true of it."""
        seen = self.view()

        def is_true() -> bool:
            nonlocal seen
            seen = self.view()
            return bool(true(seen))

        wait_until(is_true, GIVE_UP_SECONDS, lambda: f"never true of {_brief(seen.object)}\n{self.pod.logs()}")
        return seen

    def wait_for_status(self, status: str) -> NodeView:
        """Label and condition say so: the condition is written last."""
        word = {"pass": "True", "warn": "True", "fail": "False", "unknown": "Unknown"}[status]
        return self.wait(lambda node: node.status == status and node.condition.get("status") == word)

    def wait_for_taint(self) -> NodeView:
        """A `fail` with the taint that follows it: where the fleet budget's Leases take their time, a moment later."""
        self.wait(lambda node: node.status == "fail" and node.tainted)
        return self.wait_for_status("fail")

    def wait_for_heartbeat(self, since: datetime) -> None:
        """Wait for the agent's heartbeat; a cycle renews it in parallel with the verdict."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{self.node.name}"

        def is_renewed() -> bool:
            return datetime.fromisoformat(self.node.get(path)["spec"]["renewTime"]) > since

        wait_until(is_renewed, GIVE_UP_SECONDS, lambda: f"no heartbeat since {since}\n{self.pod.logs()}")

    def wait_for_event(self, reason: str) -> None:
        """Wait for an Event about the Node; the Node itself is written first."""
        wait_until(lambda: bool(self._events(reason)), GIVE_UP_SECONDS, lambda: f"no Event {reason}\n{self.pod.logs()}")

    def _events(self, reason: str) -> list[Json]:
        listed = self.node.get("/api/v1/namespaces/default/events")["items"]
        return [entry for entry in listed if entry["reason"] == reason and entry["involvedObject"]["kind"] == "Node"]

    @contextmanager
    def agent_stands_still(self) -> Iterator[None]:
        pid = self.pod.pid()
        self.node.run("kill", "-STOP", pid)
        try:
            # One thread after the other hears of it.
            self.node.wait_until(lambda: self._states(pid) <= {"T"}, "the agent stands still")
            yield
        finally:
            self.node.run("kill", "-CONT", pid)

    def _states(self, pid: str) -> set[str]:
        """Of all its threads."""
        listed = self.node.run("sh", "-c", f"cat /proc/{pid}/task/*/stat").stdout
        return {line.rpartition(")")[2].split()[0] for line in listed.splitlines()}

    def memory(self) -> str:
        return ", ".join(f"{name} {size:.1f} MiB" for name, size in memory_mib(self.pod.memory_group()).items())

    def watching(self, file: Path) -> Watch:
        return Watch(self, file)


def _brief(node: Json) -> str:
    """Return the possible faults of a Node in a line: a report of a failure may be cut."""
    metadata = {key: node["metadata"].get(key) for key in ("labels", "annotations")}
    return json.dumps({**metadata, "spec": node["spec"], "conditions": node["status"].get("conditions")})


def advertise(stage: Stage, gpus: str | None) -> None:
    """Advertise the Node's GPUs as an administrator can, without a device plugin.

    The kubelet keeps resources that it does not know.
    """
    patch = json.dumps({"status": {"capacity": {GPU: gpus}}})
    stage.node.kubectl("patch", "node", stage.node.name, "--subresource=status", "--type=merge", f"--patch={patch}")
    stage.wait(lambda node: node.object["status"]["allocatable"].get(GPU) == gpus)


class Watch:
    """Every version that the Node has while this is open."""

    def __init__(self, stage: Stage, file: Path) -> None:
        self._stage = stage
        self._file = file

    def __enter__(self) -> Self:
        self._began = self._stage.view().version
        name = self._stage.node.name
        path = f"/api/v1/nodes?watch=true&fieldSelector=metadata.name={name}&resourceVersion={self._began}"
        with self._file.open("w") as out:
            argv = self._stage.node.argv("kubectl", "get", "--raw", path)
            self._process = subprocess.Popen(argv, stdout=out, start_new_session=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._catch_up()
        finally:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(GIVE_UP_SECONDS)

    def seen(self) -> list[NodeView]:
        if self._process.poll() is None:
            self._catch_up()
        return self._so_far()

    def _so_far(self) -> list[NodeView]:
        *whole, _ = self._file.read_text().split("\n")
        return [NodeView(json.loads(line)["object"]) for line in whole]

    def _catch_up(self) -> None:
        """Wait until the watch has reached the present Node: it starts late and lags."""
        now = self._stage.view().version

        def has_come() -> bool:
            return now in {self._began, *(node.version for node in self._so_far())}

        wait_until(has_come, GIVE_UP_SECONDS, lambda: f"version {now} of the Node is not in {self._file}")
