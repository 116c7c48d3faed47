"""A sweep on a real kubelet: the CronJob's pod, its Job, the Job's pod with a stand-in for dcgmi, the agent.

There is no device plugin: the Node's GPUs are advertised as an administrator can, and the test adds the plugin's and
the container runtime's part to the Job's template.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpu_healthcheck.sim.node import DCGM_PROGRAMS
from gpu_healthcheck.sim.real_node.agent_pod import GIVE_UP_SECONDS
from gpu_healthcheck.sim.real_node.root import HARDWARE
from tests.agent.world import P
from tests.node.stage import advertise
from tests.probes.dcgm.documents import FAULTY, Story, dcgm_4

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.stage import Stage

pytestmark = pytest.mark.real_node

TEMPLATE, SWEEPER = "cronjob/gpu-healthcheck-sweep-node", "cronjob/gpu-healthcheck-sweeper"
ROOT = f"/{HARDWARE}"
PATH = f"{ROOT}/{DCGM_PROGRAMS}:/opt/gpu-healthcheck/bin:/usr/local/bin:/usr/bin:/bin"
SWEEP = f"{P}/sweep-result"
WELL = ("pass", "warn")
"""Without a GPU runtime in its containerd the node is warned of that."""


@pytest.fixture
def swept(agent: Stage) -> Iterator[Stage]:
    """A node that advertises 8 GPUs, and Jobs with pods that find its driver and its dcgmi."""
    off = agent.boot_again()  # the story leaves a fault behind, and a sweep passes such a node over
    let_sweeps_find_the_hardware(agent)
    advertise(agent, "8")
    agent.wait(lambda node: node.status in WELL and node.record["boot_id"] == agent.host.boot_id)
    agent.wait_for_heartbeat(since=off)  # a sweep skips a node with a silent agent
    yield agent
    advertise(agent, None)
    agent.kubectl("delete", "jobs", "--all")
    agent.kubectl("delete", TEMPLATE)
    agent.install()


def let_sweeps_find_the_hardware(agent: Stage) -> None:
    # The policy of the sweeper's Jobs allows no hostPath, which the simulated hardware is. The installation at the end
    # brings it back.
    agent.kubectl("delete", "validatingadmissionpolicybinding/gpu-healthcheck-sweeper-jobs")
    agent.host.install_dcgmi()
    container = {
        "name": "sweep",
        "env": [{"name": "HOST_ROOT", "value": ROOT}, {"name": "PATH", "value": PATH}],
        "volumeMounts": [{"name": "gpus", "mountPath": ROOT}],
    }
    pod = {"containers": [container], "volumes": [{"name": "gpus", "hostPath": {"path": ROOT}}]}
    template = {"spec": {"jobTemplate": {"spec": {"template": {"spec": pod}}}}}
    agent.kubectl("patch", TEMPLATE, "--type=strategic", f"--patch={json.dumps(template)}")
    # As the component only-gpu-nodes: this cluster has no other node.
    anywhere = [{"op": "remove", "path": "/spec/jobTemplate/spec/template/spec/affinity"}]
    agent.kubectl("patch", SWEEPER, "--type=json", f"--patch={json.dumps(anywhere)}")


def sweep(stage: Stage, name: str) -> str:
    """Run one sweep to its end, and return its log."""
    stage.kubectl("create", "job", name, "--from=cronjob/gpu-healthcheck-sweeper")
    stage.kubectl("wait", f"job/{name}", "--for=condition=Complete", f"--timeout={GIVE_UP_SECONDS}s")
    return stage.kubectl("logs", f"job/{name}")


def record(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stage.view().object["metadata"]["annotations"][SWEEP])
    return found


def test_a_broken_gpu_is_found_by_a_sweep_and_tainted_by_the_agent(swept: Stage) -> None:
    document = dcgm_4(Story(8, errors={("memory", 1): [FAULTY]}))
    for entity, gpu in zip(document["entity_groups"][0]["entities"], swept.host.gpus, strict=True):
        entity["serial_num"] = gpu.serial
    swept.host.write_value("dcgm/answer", json.dumps(document))
    swept.host.write_value("dcgm/code", "205")

    message = sweep(swept, "sweep-of-a-test")

    assert '"outcome": "Complete", "event": "a sweep Job has ended"' in message, message
    node = swept.wait_for_taint()
    gpu = swept.host.gpus[1]
    assert (record(swept)["by"], record(swept)["status"]) == ("sweep", "fail")
    assert record(swept)["boot_id"] == swept.host.boot_id
    assert (node.severity, node.tainted) == ("ISOLATE", True)
    assert node.findings["DcgmDiagMemory"]["subject"] == f"gpu/{gpu.address}"
    assert f"{P}/run" not in node.object["metadata"]["annotations"]
    assert f"{P}/mode" not in node.labels

    swept.node.run(sys.executable, "-m", "cli", "release", swept.node.name, "--reason", "a test")
    swept.wait(lambda node: node.status in WELL and not node.tainted)
