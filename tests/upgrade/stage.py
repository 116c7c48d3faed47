"""The stage of the story: one node with agents of either version as processes, and all that ever stood on its Node."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_healthcheck.healthcheck import __version__
from gpu_healthcheck.sim.control_plane import ControlPlane, install
from gpu_healthcheck.sim.control_plane.files import write_kubeconfig
from tests.agent.world import NodeView, P, RealCluster, World
from tests.probes.dcgm.documents import FAULTY
from tests.sweeper.pod import Pod
from tests.upgrade.past import changes, remembered, same, standing
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.world import AgentProcess
    from tests.upgrade.versions import Version

NODE = "upgraded-1"
_JOBS = "/apis/batch/v1/namespaces/gpu-healthcheck/jobs"
_PODS = "/api/v1/namespaces/gpu-healthcheck/pods"


@dataclass
class Stage:
    plane: ControlPlane
    world: World
    cluster: RealCluster
    """Of one node: its fleet budget is one place."""
    past: list[NodeView] = field(default_factory=list)

    # --- doing

    def apply(self, version: Version) -> None:
        """All of its manifests, until its policies act."""
        install(self.plane, version.manifests)

    def start(self, version: Version) -> AgentProcess:
        """Its agent, which reads the kernel's ring from its oldest record, as after each start of a pod."""
        self.world.host.kernel_log.replay()
        return self.start_second(version)

    def start_second(self, version: Version) -> AgentProcess:
        """The same, while another one reads the log."""
        self.world.python, self.world.checkout = str(version.python), version.root
        return self.world.start()

    def stop(self) -> None:
        assert self.world.agent.terminate() == 0

    def release(self, version: Version, *options: str) -> None:
        words = version.command("cli", "release", NODE, "--reason", "board swapped", *options)
        environment = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig)}
        done = subprocess.run(words, env=environment, cwd=version.root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def deep_run(
        self, version: Version, program: str, account: str, *, failing_gpu: int | None, holds: bool = False
    ) -> subprocess.Popen[str]:
        """Run the program of a sweep's or a quarantine's pod, with that pod's token; `holds`: until it is released."""
        pod = Pod(self.world)
        errors = [] if failing_gpu is None else [("memory", failing_gpu, FAULTY)]
        pod.well()
        if holds:
            pod.hold()
        else:
            pod.dcgm(answer=pod.answer(*errors))
        pod.dcgm(code="205" if errors else "0")
        host = self.world.host.root
        environment = {
            "PATH": f"{host}/usr/bin:/usr/bin:/bin",
            "KUBECONFIG": str(self._pod_kubeconfig(account)),
            "NODE_NAME": NODE,
            "HOST_ROOT": str(host),
            "CONFIG_DIR": str(self.world.config),
            "REPORT_DIR": str(self.world.folder / "reports"),
        }
        words, pipe = version.command("cli", program), subprocess.PIPE
        return subprocess.Popen(words, env=environment, cwd=version.root, stdout=pipe, stderr=pipe, text=True)

    def sweep(self, version: Version) -> str:
        """The name of the Job that one sweep made. Nothing runs it; it goes, and the sweep's marks on the Node."""
        fields = dict.fromkeys((f"{P}/sweep-result", f"{P}/quarantine-result"))
        self._patch({"annotations": fields})  # who was just tested is due for no sweep
        settings = self.world.folder / "sweeper-config"
        settings.mkdir(exist_ok=True)  # the defaults: by the agent's own no node is ever due
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(self.plane.account_kubeconfig("gpu-healthcheck-sweeper")),
            "CONFIG_DIR": str(settings),
        }
        log = self.world.folder / "sweeper.log"
        with log.open("w") as out:
            words = version.command("sweeper")
            sweeper = subprocess.Popen(words, env=environment, cwd=version.root, stdout=out, stderr=out)
        try:
            eventually(lambda: self._jobs() or sweeper.poll() is not None, log.read_text)
            (job,) = self._jobs() or [{"metadata": {"name": ""}}]
        finally:
            sweeper.kill()
            sweeper.wait()
        assert job["metadata"]["name"], log.read_text()
        self.plane.request("DELETE", f"{_JOBS}/{job['metadata']['name']}?propagationPolicy=Background")
        self._patch({"labels": {f"{P}/mode": None}, "annotations": {f"{P}/run": None}})
        return str(job["metadata"]["name"])

    def _patch(self, metadata: dict[str, Any]) -> None:
        self.plane.request("PATCH", f"/api/v1/nodes/{NODE}", {"metadata": metadata})

    def _jobs(self) -> list[dict[str, Any]]:
        return list(self.plane.request("GET", _JOBS).body["items"])

    # --- seeing

    @property
    def memory(self) -> Any:
        return remembered(self.world.memory_file.read_bytes())

    def catch_up(self) -> list[NodeView]:
        """The versions of the Node since the last call."""
        if not self.past:
            self.past.append(self.world.node())
            return []
        since = f"timeoutSeconds=1&resourceVersion={self.past[-1].version}"
        watch = self.plane.request("GET", f"/api/v1/nodes?watch=true&fieldSelector=metadata.name={NODE}&{since}")
        new = [NodeView(entry["object"]) for entry in watch.body]
        self.past += new
        return new

    @contextmanager
    def nothing_changes(self, what: str) -> Iterator[None]:
        """Neither on the Node, at any moment, nor in the memory."""
        print(f"{what} … ", end="", flush=True)
        self.catch_up()
        last, memory = self.past[-1], self.memory
        yield
        seen = changes([last, *self.catch_up()])
        assert len(seen) == 1, "the Node flickered:\n" + "\n".join(map(str, seen))
        same("the record", standing(last), standing(self.past[-1]))
        same("the memory", memory, self.memory)
        print("nothing changed", flush=True)

    def _pod_kubeconfig(self, account: str) -> Path:
        spec = {
            "nodeName": NODE,
            "serviceAccountName": account,
            "containers": [{"name": "test", "image": f"gpu-healthcheck:{__version__}"}],
        }
        pod = {"metadata": {"generateName": "test-", "namespace": "gpu-healthcheck"}, "spec": spec}
        made = self.plane.request("POST", _PODS, pod).body
        path = self.world.folder / f"{made['metadata']['name']}.kubeconfig"
        token = self.plane.pod_token(made)
        return write_kubeconfig(path, url=self.plane.url, ca_file=self.plane.ca_file, token=token)


@contextmanager
def stage() -> Iterator[Stage]:
    """An empty cluster, a healthy node in it, no agent yet."""
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-upgrade-") as folder, ControlPlane() as plane:
        plane.kubectl("create", "namespace", "gpu-healthcheck")
        plane.kubectl("create", "serviceaccount", "gpu-healthcheck", "--namespace=gpu-healthcheck")
        cluster = RealCluster(plane, NODE, devices={"nvidia.com/gpu": "8"})
        with World(Path(folder) / "world", cluster) as world:
            for device in range(len(world.host.efa_names)):
                world.host.remove_efa(device)  # a quarantine run would try each for minutes
            world.host.install_dcgmi()
            world.configure(CHECK_INTERVAL="10", DCGM_L2_INTERVAL="0")
            yield Stage(plane, world, cluster)


def settled(agent: AgentProcess) -> None:
    """Two cycles have ended and been reported: the heartbeat is renewed after all reports of a cycle."""
    eventually(lambda: agent.metric("looks_total") >= 1, agent.log.read_text)
    agent.wait_for_looks(1)
    writes = agent.metric("cluster_writes_total{leases,ok}")
    eventually(lambda: agent.metric("cluster_writes_total{leases,ok}") > writes, agent.log.read_text)


def refusals(agent: AgentProcess) -> str:
    """Return the rejected writes, with the policies' own messages."""
    messages = {str(line.get("error", line["event"])) for line in agent.lines if "denied request" in json.dumps(line)}
    return "; ".join(sorted(messages)) or "nothing"
