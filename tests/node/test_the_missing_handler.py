"""Two containerds, and NVIDIA's toolkit configured the one that the kubelet does not use: diagnosed, mended, well.

Containerd, kubelet and `nvidia-ctk` are the real ones; the command that mends it is the one that is printed.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gpu_healthcheck.sim.real_node import nvidia_toolkit
from gpu_healthcheck.sim.real_node.agent_pod import GIVE_UP_SECONDS
from gpu_healthcheck.sim.real_node.arguments import CONTAINERD_CONFIGURATION
from gpu_healthcheck.sim.real_node.images import PAUSE
from tests.node.stage import GPU, advertise
from tools.go_programs.build import NoProgramError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.stage import Stage

pytestmark = pytest.mark.real_node

FILE = "/etc/containerd/config.toml"
OTHER, OTHER_FOLDER = "/run/other-containerd", "/etc/other-containerd"
OTHER_FILE = f"{OTHER_FOLDER}/config.toml"
WITHOUT, _, _ = CONTAINERD_CONFIGURATION.partition('  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]')
POD = "pod/default/trainer"
EVENT = 'no runtime for "nvidia" is configured'
OBJECTS = f"""\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {{name: nvidia}}
handler: nvidia
---
apiVersion: v1
kind: Pod
metadata: {{name: trainer, namespace: default}}
spec:
  runtimeClassName: nvidia
  terminationGracePeriodSeconds: 0
  containers: [{{name: cuda, image: "{PAUSE}", resources: {{limits: {{{GPU}: 1}}}}}}]
"""


@pytest.fixture
def incident(agent: Stage) -> Iterator[Stage]:
    """The pod waits, and the agent has seen why."""
    try:
        nvidia_toolkit.install(agent.node)
    except NoProgramError as error:
        pytest.skip(str(error))
    agent.configure(CHECK_INTERVAL="10")
    configure(agent, WITHOUT)
    with another_containerd(agent):
        advertise(agent, "8")
        agent.node.kubectl("apply", "--filename=-", input=OBJECTS)
        agent.wait(lambda node: "NvidiaRuntimeElsewhere" in node.findings)
        agent.node.wait_until(lambda: EVENT in agent.node.kubectl("get", "events"), "the kubelet tells of it")
        yield agent
    agent.node.kubectl("delete", "pod/trainer", "runtimeclass/nvidia")
    advertise(agent, None)
    agent.on_node("rm --force --recursive /etc/containerd/conf.d")
    configure(agent, CONTAINERD_CONFIGURATION)
    agent.wait(lambda node: "NvidiaRuntimeElsewhere" not in node.findings)


def configure(stage: Stage, text: str) -> None:
    stage.node.run("sh", "-c", f"cat >{FILE}", input=text)
    stage.node.run("systemctl", "restart", "containerd")
    stage.node.wait_until(stage.node.is_ready, "the Node is Ready")


@contextmanager
def another_containerd(stage: Stage) -> Iterator[None]:
    """It has the toolkit's files, and folders of its own."""
    own = f"--root={OTHER}/root --state={OTHER}/state --address={OTHER}/containerd.sock"
    stage.on_node(
        f"mkdir -p {OTHER} {OTHER_FOLDER}; echo 'version = 2' >{OTHER_FILE}\n"
        f"nvidia-ctk runtime configure --runtime=containerd --config={OTHER_FILE} --config-source=file"
        f" --drop-in-config={OTHER_FOLDER}/conf.d/99-nvidia.toml\n"
        f"containerd --config={OTHER_FILE} {own} >{OTHER}/log 2>&1 & echo $! >{OTHER}/pid"
    )
    yield
    stage.on_node(f"kill $(cat {OTHER}/pid); rm --force --recursive {OTHER_FOLDER}")


def diagnose(stage: Stage) -> tuple[int, dict[str, Any]]:
    """As a person asks about the pod, from where kubectl works."""
    program = "from gpu_healthcheck.cli.__main__ import main; main()"
    words = ("diagnose", "pod", "default/trainer", "-o", "json")
    done = stage.node.run(sys.executable, "-c", program, *words, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_toolkit_of_another_containerd_is_named_and_its_command_fixes_it(incident: Stage) -> None:
    code, fields = diagnose(incident)

    (cause,) = fields["causes"]
    (missing,) = cause["consequences"]
    node = f"node/{incident.node.name}"
    assert (code, cause["cause"], cause["subject"]) == (1, "ToolkitConfiguresAnotherRuntime", node)
    assert (missing["cause"], missing["subject"], missing["affected"]) == ("RuntimeHandlerMissing", node, [POD])
    assert any(EVENT in line for line in missing["evidence"])
    assert any(OTHER_FOLDER in line and FILE in line for line in cause["evidence"])

    incident.on_node(cause["remedy"][0].split("`")[1])
    incident.node.kubectl("wait", "pod/trainer", "--for=condition=Ready", f"--timeout={GIVE_UP_SECONDS}s")
    incident.wait(lambda node: "NvidiaRuntimeElsewhere" not in node.findings)  # at the agent's next look

    code, fields = diagnose(incident)
    assert (code, fields["causes"]) == (0, [])
    assert {entry["state"] for entry in fields["chains"][0]["links"]} == {"fine"}
