"""The stage of the story: a simulated GPU host, a real node on it, our image and manifests, and eyes on all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from tests.agent.world import NodeView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sim.node import SimulatedNode
    from sim.real_node import RealNode

NAMESPACE = "gpu-healthcheck"
DAEMONSET = "daemonset/gpu-healthcheck-agent"
GIVE_UP_SECONDS = 120
"""No test asserts a time: this is when it stops to wait for what never comes."""

Json = dict[str, Any]


class Stage:
    def __init__(self, host: SimulatedNode, node: RealNode) -> None:
        self.host = host
        self.node = node
        self.broke_off = False

    # --- doing

    def kubectl(self, *words: str) -> str:
        return self.node.kubectl(f"--namespace={NAMESPACE}", *words)

    def configure(self, **values: str) -> None:
        """Somebody edits the ConfigMap."""
        self.kubectl("patch", "configmap", "gpu-healthcheck-config", "--patch", json.dumps({"data": values}))

    def boot_again(self) -> None:
        """The machine is switched off and on: what a reboot heals is healed, and Kubernetes starts what it finds."""
        self.node.power_off()
        self.host.reboot()
        self.node.power_on()

    # --- seeing

    def view(self) -> NodeView:
        return NodeView(self.node.get(f"/api/v1/nodes/{self.node.name}"))

    def wait(self, true: Callable[[NodeView], object]) -> NodeView:
        """The Node once that is true of it."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while not true(seen := self.view()):
            if time.monotonic() > deadline:
                raise AssertionError(f"never true: {json.dumps(seen.object, indent=1)}\n{self.told()}")
            time.sleep(0.1)
        return seen

    def wait_for_status(self, status: str) -> NodeView:
        """Label and condition say so: the condition is written last."""
        word = {"pass": "True", "warn": "True", "fail": "False", "unknown": "Unknown"}[status]
        return self.wait(lambda node: node.status == status and node.condition.get("status") == word)

    def pods(self) -> list[Json]:
        """The agent's, also those that are on their way out."""
        pods: list[Json] = self.node.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        return pods

    def pod(self, other_than: str = "") -> Json:
        """The one agent, ready; not the pod with that UID."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            found = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
            if len(found) == 1 and found[0]["metadata"]["uid"] != other_than and _is_ready(found[0]):
                return found[0]
            if time.monotonic() > deadline:
                raise AssertionError(f"no agent is ready: {json.dumps(found, indent=1)}\n{self.told()}")
            time.sleep(0.1)

    def events(self, reason: str) -> list[Json]:
        """Events about the Node."""
        listed = self.node.get("/api/v1/namespaces/default/events")["items"]
        return [one for one in listed if one["reason"] == reason and one["involvedObject"]["kind"] == "Node"]

    def told(self) -> str:
        """What the agent logged and the programs' last words, for the message of a failure."""
        logs = self.node.run("kubectl", f"--namespace={NAMESPACE}", "logs", DAEMONSET, "--tail=40", check=False)
        return f"{logs.stdout}{logs.stderr}\n{self.node.logs()}"

    def agent_pid(self) -> str:
        """As the node counts."""
        container = self.pod()["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
        tasks = self.node.run("ctr", "--namespace=k8s.io", "tasks", "list").stdout
        return next(line.split()[1] for line in tasks.splitlines() if line.startswith(container))

    @contextmanager
    def agent_stands_still(self) -> Iterator[None]:
        pid = self.agent_pid()
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

    def watching(self, file: Path) -> Watch:
        return Watch(self, file)

    # --- measuring

    def seconds_to_first_write(self) -> float:
        """From the start of the container's process to the agent's first write on the Node, as the audit log has it."""
        ticks = int(self.node.run("cat", f"/proc/{self.agent_pid()}/stat").stdout.rpartition(")")[2].split()[19])
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        started = booted + ticks / os.sysconf("SC_CLK_TCK")
        return min(moment for moment in self._agents_writes() if moment > started) - started

    def _agents_writes(self) -> Iterator[float]:
        for line in (self.node.folder / "audit.log").read_text().splitlines():
            event = json.loads(line)
            is_ours = event["user"]["username"] == f"system:serviceaccount:{NAMESPACE}:{NAMESPACE}"
            if is_ours and event["verb"] == "patch" and event["objectRef"]["resource"] == "nodes":
                yield datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()

    def memory_mib(self) -> str:
        """The agent's pod as the kubelet measures it."""
        summary = self.node.get(f"/api/v1/nodes/{self.node.name}/proxy/stats/summary")
        pod = next(one for one in summary["pods"] if one["podRef"]["namespace"] == NAMESPACE)
        sizes = {name: pod["memory"][f"{name}Bytes"] / 2**20 for name in ("usage", "workingSet", "rss")}
        return ", ".join(f"{name} {size:.1f} MiB" for name, size in sizes.items())


class Watch:
    """Every version that the Node has while this is open."""

    def __init__(self, stage: Stage, file: Path) -> None:
        self._stage = stage
        self._file = file

    def __enter__(self) -> Self:
        version = self._stage.view().version
        name = self._stage.node.name
        path = f"/api/v1/nodes?watch=true&fieldSelector=metadata.name={name}&resourceVersion={version}"
        with self._file.open("w") as out:
            argv = self._stage.node.argv("kubectl", "get", "--raw", path)
            self._process = subprocess.Popen(argv, stdout=out, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(GIVE_UP_SECONDS)

    def seen(self) -> list[NodeView]:
        *whole, _ = self._file.read_text().split("\n")
        return [NodeView(json.loads(line)["object"]) for line in whole]


def _is_ready(pod: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))
