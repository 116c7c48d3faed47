"""The agent's surroundings: a simulated node, a cluster, and the real `python -m agent` between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import jsonschema
import psutil
from prometheus_client.parser import text_string_to_metric_families

from gpu_healthcheck.sim.api_objects import EVENTS, LEASES, NODES, RefusedError
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from gpu_healthcheck.sim.node import SimulatedNode
from tests import tiers
from tests.agent.forking import Forked, Running, heeds
from tests.waiting import GIVE_UP_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_healthcheck.sim.control_plane import Answer, ControlPlane

P = "gpu-healthcheck.aws-samples.io"
UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
RESULTS = f"{P}/results"
BUDGET = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck-budget/leases"
NOBODY = "http://127.0.0.1:9"
"""The discard port of loopback: nobody listens."""
CHILD = "gpu_healthcheck.healthcheck.probes.nvml.child"

_RECORD = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parents[2] / "docs/record.schema.json").read_text())
)
Json = dict[str, Any]


@dataclass(frozen=True)
class NodeView:
    """A Node of the API as a person reads it."""

    object: Json

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])

    @property
    def version(self) -> str:
        return str(self.object["metadata"]["resourceVersion"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.object["metadata"].get("labels") or {})

    @property
    def status(self) -> str:
        return self.labels.get(f"{P}/status", "")

    @property
    def severity(self) -> str:
        return self.labels.get(f"{P}/severity", "")

    @property
    def taints(self) -> list[Json]:
        return list(self.object["spec"].get("taints") or [])

    @property
    def tainted(self) -> bool:
        return UNHEALTHY in self.taints

    @property
    def record(self) -> Json:
        text = (self.object["metadata"].get("annotations") or {}).get(RESULTS, "{}")
        record = json.loads(text)
        assert isinstance(record, dict)
        return record

    @property
    def findings(self) -> dict[str, Json]:
        """Return the findings by reason. No test has two findings with the same reason."""
        return {entry["reason"]: entry for entry in self.record.get("findings", [])}

    @property
    def causes(self) -> set[str]:
        return {entry["cause"] for entry in self.record.get("unobserved", [])}

    @property
    def condition(self) -> Json:
        conditions = self.object["status"].get("conditions") or []
        return next((entry for entry in conditions if entry["type"] == "GpuHealthy"), {})

    @property
    def ours(self) -> tuple[Any, ...]:
        """Return the fields that only an agent writes."""
        return (self.status, self.severity, self.tainted, self.condition, self.findings)


class Cluster(Protocol):
    """Actions of a test in a cluster, the same for the stand-in and the real one."""

    name: str

    def kubeconfig(self, path: Path) -> Path: ...

    def node(self) -> NodeView: ...

    def edit(self, merge_patch: Json) -> None:
        """Write as another client."""

    def events(self) -> list[Json]: ...

    def lease(self) -> Json | None: ...


class StandIn:
    """One Node in its own API stand-in."""

    def __init__(self, name: str, instance_type: str) -> None:
        self.name = name
        self.api = ApiStandIn(name, instance_type=instance_type)

    def kubeconfig(self, path: Path) -> Path:
        return self.api.kubeconfig(path)

    def node(self) -> NodeView:
        return NodeView(self.api.node(self.name))

    def edit(self, merge_patch: Json) -> None:
        self.api.edit_node(self.name, merge_patch)

    def events(self) -> list[Json]:
        return self.api.store.find_all(EVENTS, "default")[0]

    def lease(self) -> Json | None:
        try:
            return self.api.store.get(LEASES, "gpu-healthcheck", self.name)
        except RefusedError:
            return None

    def past(self) -> list[NodeView]:
        """Return all versions of the Node that have ever existed."""
        changes = list(self.api.store.history)
        return [NodeView(change.object) for change in changes if change.resource == NODES and change.type != "DELETED"]

    def writes(self, part: str = "") -> list[str]:
        """Return the writes of requests, as `PATCH nodes/x`."""
        made = [f"{request.method} {request.path.partition('?')[0]}" for request in self.api.writes]
        return [write for write in made if part in write]

    def close(self) -> None:
        self.api.close()


class RealCluster:
    """One Node on a real kube-apiserver, and the token of the agent's pod on it."""

    def __init__(self, plane: ControlPlane, name: str, **about: Any) -> None:
        self.name = name
        self.plane = plane
        plane.create_node(name, **about)

    def kubeconfig(self, path: Path) -> Path:
        path.write_text(self.plane.agent_kubeconfig(self.name).read_text())
        return path

    def node(self) -> NodeView:
        return NodeView(self.plane.request("GET", f"/api/v1/nodes/{self.name}").body)

    def edit(self, merge_patch: Json) -> None:
        for path in ("", "/status"):
            answer = self.plane.request("PATCH", f"/api/v1/nodes/{self.name}{path}", merge_patch)
            assert answer.status == 200, answer.message

    def events(self) -> list[Json]:
        listed = self.plane.request("GET", "/api/v1/namespaces/default/events").body["items"]
        return [entry for entry in listed if entry["involvedObject"]["name"] == self.name]

    def lease(self) -> Json | None:
        answer = self._lease("GET")
        return answer.body if answer.status == 200 else None

    def slots(self) -> list[Json]:
        """Return the slots in the fleet budget that this node has acquired."""
        listed = self.plane.request("GET", BUDGET).body["items"]
        return [entry for entry in listed if entry["spec"]["holderIdentity"] == self.name]

    def close(self) -> None:
        for slot in self.slots():
            self.plane.request("DELETE", f"{BUDGET}/{slot['metadata']['name']}")
        self._lease("DELETE")
        self.plane.request("DELETE", f"/api/v1/nodes/{self.name}")
        pod = f"/api/v1/namespaces/gpu-healthcheck/pods/agent-on-{self.name}?gracePeriodSeconds=0"
        self.plane.request("DELETE", pod)

    def _lease(self, method: str) -> Answer:
        return self.plane.request(method, f"/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases/{self.name}")


class AgentProcess:
    """One process `python -m agent`: its log as parsed JSON, its metrics as numbers."""

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Path,
        command: Sequence[str],
        checkout: Path | None = None,
        *,
        forked: bool = False,
    ) -> None:
        self.log = log
        self.may_fail = False
        """A test made it end by a fault of ours."""
        tiers.hold(command)
        with log.open("wb") as out:
            self.process: Running = (
                Forked(command, environment, out.fileno())
                if forked
                else subprocess.Popen(command, env=dict(environment), stderr=out, stdout=out, cwd=checkout)
            )

    @property
    def lines(self) -> list[Json]:
        return [json.loads(line) for line in self._whole_lines() if line.startswith("{")]

    @property
    def stray(self) -> list[str]:
        """Return lines without a JSON object: a traceback, a print."""
        return [line for line in self._whole_lines() if not line.startswith("{")]

    def logged(self, event: str) -> list[Json]:
        return [line for line in self.lines if line["event"] == event]

    def wait_for_log(self, event: str, **parts: str) -> Json:
        """Return the first line of this event with fields that contain these parts."""

        def fitting() -> list[Json]:
            return [line for line in self.logged(event) if all(part in line[key] for key, part in parts.items())]

        return eventually(fitting, self.log.read_text)[0]

    @property
    def port(self) -> int:
        return int(self.wait_for_log("serving /metrics, /healthz and /readyz")["port"])

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=GIVE_UP_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """Return the metrics by `name{label values}` without our prefix, such as `forbidden{nodes}`."""
        found = {}
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                values = f"{{{','.join(sample.labels.values())}}}" if sample.labels else ""
                found[sample.name.removeprefix("gpu_healthcheck_") + values] = sample.value
        return found

    def metric(self, name: str) -> float:
        return self.metrics().get(name, 0.0)

    def xids(self, code: str) -> float:
        """Return the number of lines with this code, of all GPUs."""
        samples = [
            entry for family in text_string_to_metric_families(self.get("/metrics")[1]) for entry in family.samples
        ]
        return sum(
            entry.value
            for entry in samples
            if entry.name == "gpu_healthcheck_xids_total" and entry.labels["code"] == code
        )

    def wait_for_looks(self, more: int = 1) -> None:
        """Wait until `more` further check cycles have ended, without the cycle that runs already."""
        wanted = self.metric("looks_total") + 1 + more
        eventually(lambda: self.metric("looks_total") >= wanted, self.log.read_text)

    @property
    def children(self) -> list[int]:
        """The processes that ask NVML."""
        try:
            family = psutil.Process(self.process.pid).children()
            return [process.pid for process in family if CHILD in process.cmdline()]
        except psutil.NoSuchProcess:
            return []

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def exit_code(self) -> int:
        return self.process.wait(GIVE_UP_SECONDS)

    def terminate(self) -> int:
        self.process.terminate()
        return self.exit_code()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.exit_code()

    def _whole_lines(self) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").split("\n")[:-1] if line.strip()]


class World:
    """A node, a cluster that knows it, and the agents that were started on it. Closing ends them all."""

    def __init__(self, folder: Path, cluster: StandIn | RealCluster, instance_type: str = "p5.48xlarge") -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.cluster = cluster
        self.host = SimulatedNode.create(folder / cluster.name, instance_type)
        self.config = folder / "config"
        self.config.mkdir()
        self.kubeconfig = cluster.kubeconfig(folder / "kubeconfig")
        self.agents: list[AgentProcess] = []
        self.program = "agent"
        self.python = sys.executable
        self.checkout: Path | None = None
        """Where agents that are started from now on come from; None: this tree."""
        self.imports = False
        """Whether they import what they need themselves, as people's do, and as a test of the process asks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with ExitStack() as undo:
            undo.callback(self.host.close)
            undo.callback(self.cluster.close)
            for agent in self.agents:
                undo.callback(_end, agent)

    @property
    def api(self) -> ApiStandIn:
        assert isinstance(self.cluster, StandIn)
        return self.cluster.api

    @property
    def stand_in(self) -> StandIn:
        assert isinstance(self.cluster, StandIn)
        return self.cluster

    @property
    def agent(self) -> AgentProcess:
        """The one started last."""
        return self.agents[-1]

    @property
    def memory_file(self) -> Path:
        return self.folder / "state" / "memory.json"

    def configure(self, **values: str) -> None:
        """Files as the kubelet writes them of a ConfigMap: each whole at once. Dots and dashes as in `**{"a.b": …}`."""
        for key, value in values.items():
            fresh = self.folder / "fresh"
            fresh.write_text(value)
            fresh.rename(self.config / key)

    def hurry(self) -> None:
        """Give the agents that are started from now on a check cycle every two seconds."""
        self.program = "tests.agent.quick_agent"
        self.configure(CHECK_INTERVAL="10")

    def give_up_soon(self) -> None:
        """Let the agents that are started from now on give up a read of NVML after some seconds."""
        self.program = "sim.impatient_agent"

    def be_patient(self) -> None:
        """Let verdicts of the agents that are started from now on wait for their slot in the fleet budget."""
        self.program = "tests.agent.patient_agent"

    def start(self, *options: str, **environment: str) -> AgentProcess:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "AWS_"))}
        ours = {
            "KUBECONFIG": str(self.kubeconfig),
            "NODE_NAME": self.cluster.name,
            "HOST_ROOT": str(self.host.root),
            "CONFIG_DIR": str(self.config),
            "STATE_DIR": str(self.folder / "state"),
            "METRICS_PORT": "0",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": NOBODY,
        }
        log = self.folder / f"agent-{len(self.agents)}.log"
        whole = {**kept, **ours, **environment}
        command = [self.python, "-m", self.program, *options]
        is_ours = (self.python, self.checkout) == (sys.executable, None)
        forked = is_ours and not self.imports and heeds(whole)
        self.agents.append(AgentProcess(whole, log, command, self.checkout, forked=forked))
        return self.agents[-1]

    def restart(self, **environment: str) -> AgentProcess:
        """Restart the agent as a rollout does: SIGTERM, then a new process.

        The new process reads the kernel's ring from its oldest record.
        """
        assert self.agent.terminate() == 0
        self.host.kernel_log.replay()
        return self.start(**environment)

    def node(self) -> NodeView:
        return self.cluster.node()

    def wait(self, true: Callable[[NodeView], object]) -> NodeView:
        """Wait until the condition `true` is met for the Node, and return the Node."""

        def ask() -> NodeView | None:
            node = self.cluster.node()
            return node if true(node) else None

        found = eventually(ask, lambda: (json.dumps(self.node().object, indent=1), self._logs()))
        assert found is not None
        return found

    def wait_for_status(self, status: str) -> NodeView:
        """Wait until label and condition have it: the condition is written last. The record is valid then."""
        word = {"pass": "True", "warn": "True", "fail": "False", "unknown": "Unknown"}[status]
        node = self.wait(lambda node: node.status == status and node.condition.get("status") == word)
        if node.record.get("status") == status:  # otherwise a test wrote it, and the next cycle replaces it
            _RECORD.validate(node.record)
        return node

    def wait_for_taint(self) -> NodeView:
        """A `fail` with the taint that follows it: where the fleet budget's Leases take their time, a moment later."""
        self.wait(lambda node: node.status == "fail" and node.tainted)
        return self.wait_for_status("fail")

    def wait_for_event(self, reason: str) -> Json:
        return eventually(partial(self.events, reason), lambda: (self.cluster.events(), self._logs()))[0]

    def events(self, reason: str) -> list[Json]:
        return [event for event in self.cluster.events() if event["reason"] == reason]

    def _logs(self) -> str:
        return "\n".join(agent.log.read_text(errors="replace") for agent in self.agents)


def _end(agent: AgentProcess) -> None:
    """No agent of a test may print other text than log lines, drop a job, or exit on its own."""
    if agent.may_fail:
        if agent.running:
            agent.kill()
        return
    if agent.running:
        code, message = agent.terminate(), agent.log.read_text()
        # Where a test broke off at once, it is ended before it hears signals; that must not hide why.
        assert code == 0 or (code == -signal.SIGTERM and not message), message
    else:
        assert agent.exit_code() in (0, 2, 3, -signal.SIGKILL), agent.log.read_text()
    if agent.exit_code() not in (2, 3):
        assert not agent.stray, agent.stray
    failed = [*agent.logged("a thread failed"), *agent.logged("a scheduled job failed")]
    assert not failed, failed
