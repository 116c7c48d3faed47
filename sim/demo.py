"""`make demo`: the real agent on a simulated p5.48xlarge, and its faults as the API server receives them.

It needs no cluster, GPU or root. It ends by itself, with exit code 1 if a step differs from the expected one.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from gpu_healthcheck.sim.imds import SimulatedImds
from gpu_healthcheck.sim.node import SimulatedNode

NODE = "gpu-node-1"
PREFIX = "gpu-healthcheck.aws-samples.io"
_TIMEOUT_SECONDS = 55.0
_AGENT_ENDS_SECONDS = 5.0


@dataclass
class Stage:
    """Environment of the demo."""

    folder: Path
    node: SimulatedNode
    api: ApiStandIn
    imds: SimulatedImds
    console: Console
    began: float = field(default_factory=time.monotonic)
    agent: subprocess.Popen[bytes] | None = None

    def start_agent(self) -> float:
        (self.folder / "config").mkdir(exist_ok=True)
        # The shortest interval and a short deadline keep the demo short.
        (self.folder / "config/CHECK_INTERVAL").write_text("10")
        environment = {
            **os.environ,
            "NODE_NAME": NODE,
            "HOST_ROOT": str(self.node.root),
            "LD_LIBRARY_PATH": str(self.node.library.parent),
            "CONFIG_DIR": str(self.folder / "config"),
            "STATE_DIR": str(self.folder / "state"),
            "METRICS_PORT": "0",
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.imds.endpoint,
        }
        started = time.monotonic()
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-P", "-m", "gpu_healthcheck.sim.impatient_agent"], env=environment, stderr=log
            )
        return started

    def stop_agent(self) -> None:
        if self.agent is not None and self.agent.poll() is None:
            self.agent.terminate()
            self.agent.wait(_AGENT_ENDS_SECONDS)

    def say(self, words: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:5.1f} s[/dim]  {words}")

    def until(self, predicate: Callable[[dict[str, Any]], bool]) -> float:
        """Return the time at which the Node first matches."""
        return self.api.wait_for(predicate, _TIMEOUT_SECONDS, NODE)


def label(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda node: str(node["metadata"].get("labels", {}).get(f"{PREFIX}/{name}", ""))


def tainted(node: dict[str, Any]) -> bool:
    return any(taint["key"] == f"{PREFIX}/unhealthy" for taint in node["spec"].get("taints") or [])


def condition(node: dict[str, Any]) -> dict[str, str]:
    return next((entry for entry in node["status"].get("conditions", []) if entry["type"] == "GpuHealthy"), {})


def findings(node: dict[str, Any]) -> list[str]:
    record = json.loads(node["metadata"].get("annotations", {}).get(f"{PREFIX}/results", "{}"))
    return [finding["reason"] for finding in record.get("findings", [])]


def node_table(node: dict[str, Any]) -> Table:
    """Return the Node as `kubectl get node` and `kubectl describe node` show it."""
    table = Table("status", "severity", "taint", "GpuHealthy", "findings")
    status = label("status")(node)
    style = {"pass": "green", "fail": "bold red", "unknown": "magenta"}.get(status, "dim")
    seen = condition(node)
    table.add_row(
        f"[{style}]{status or '-'}[/{style}]",
        label("severity")(node) or "-",
        "unhealthy:NoSchedule" if tainted(node) else "-",
        seen.get("status", "-"),
        ", ".join(findings(node)) or "-",
    )
    return table


def becomes_healthy(stage: Stage) -> None:
    started = stage.start_agent()
    stage.say("the agent starts on a simulated p5.48xlarge: 8 GPUs, 32 EFA devices")
    at = stage.until(lambda node: label("status")(node) == "pass" and condition(node).get("status") == "True")
    stage.say(f"[green]pass[/green], {(at - started) * 1000:.0f} ms after the start of the process")


def falls_off_the_bus(stage: Stage) -> None:
    time.sleep(1.0)
    written = stage.node.xid(3, 79, "GPU has fallen off the bus.").timestamp_us / 1e6
    stage.node.lose_gpu(3)
    stage.say("[red]GPU 3 falls off the bus[/red]: the kernel log reports Xid 79")
    stood = {
        "label": stage.until(lambda node: label("status")(node) == "fail"),
        "taint": stage.until(tainted),
        "condition": stage.until(lambda node: condition(node).get("status") == "False"),
        "Event": stage.api.wait_for_request(
            lambda request: "/events" in request.path and request.body.get("reason") == "Xid79",
            _TIMEOUT_SECONDS,
        ).at,
    }
    table = Table("written to the Node", "after the kernel's record")
    for name, at in stood.items():
        table.add_row(name, f"{(at - written) * 1000:.1f} ms")
    stage.console.print(table)


def hangs(stage: Stage) -> None:
    stage.node.hang()
    stage.say("[red]the driver hangs[/red]; two missed deadlines, 30 s apart, are a finding")
    stage.until(lambda node: "DriverUnresponsive" in findings(node))
    stage.say("DriverUnresponsive is active in addition to Xid79; the hung child was replaced")


def comes_back(stage: Stage) -> None:
    stage.stop_agent()
    stage.say("the agent is stopped for a reboot; its verdict stays on the node")
    if not tainted(stage.api.node(NODE)):
        raise AssertionError("the taint was removed with the agent")
    stage.node.reboot()
    started = stage.start_agent()
    at = stage.until(lambda node: label("status")(node) == "pass" and not tainted(node))
    stage.until(lambda node: condition(node).get("status") == "True")
    stage.say(f"[green]rebooted: pass[/green], taint removed {(at - started) * 1000:.0f} ms after the agent's start")


def play(stage: Stage) -> int:
    """Run the steps in order. Returns the exit code."""
    try:
        for act in (becomes_healthy, falls_off_the_bus, hangs, comes_back):
            act(stage)
            stage.console.print(node_table(stage.api.node(NODE)))
    except (TimeoutError, AssertionError) as error:
        stage.console.print(f"the demo failed: {error}", style="bold red", markup=False)
        stage.console.print((stage.folder / "agent.log").read_text()[-3000:], markup=False)
        return 1
    finally:
        stage.stop_agent()
    stage.say(f"done: {len(stage.api.writes)} writes to the API server in all")
    return 0


def main() -> int:
    console = Console(highlight=False)
    with (
        tempfile.TemporaryDirectory(prefix="gpu-healthcheck-demo-") as folder,
        SimulatedNode.create(Path(folder) / NODE) as node,
        ApiStandIn(NODE) as api,
        SimulatedImds("p5.48xlarge") as imds,
    ):
        api.kubeconfig(Path(folder) / "kubeconfig")
        return play(Stage(Path(folder), node, api, imds, console))


if __name__ == "__main__":
    sys.exit(main())
