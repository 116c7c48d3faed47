"""`gpu-healthcheck reset` on a real kubelet: the device plugin keeps a GPU unhealthy until its pod is another one.

Real are the kubelet's allocation of each GPU, the evictions, the Job's pod and its search for holders in /proc. The
device files have no driver, so nothing can open them; nvidia-smi and NVML are stand-ins.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpu_healthcheck.sim.real_node.agent_pod import NAMESPACE
from gpu_healthcheck.sim.real_node.device_plugin import DEPLOY, NodeDevicePlugin
from gpu_healthcheck.sim.real_node.images import PAUSE
from tests.agent.world import P
from tests.node.commands import command, interrupt, running, words_of
from tests.node.stage import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.stage import Stage

pytestmark = pytest.mark.real_node

BROKEN = 2
SWEEPER = "cronjob/gpu-healthcheck-sweeper"
WELL = ("pass", "warn")
"""Without a GPU runtime in its containerd the node is warned of that."""
LABELS = {"app": "train"}
WORK = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "train"},
    "spec": {
        "replicas": 8,
        "selector": {"matchLabels": LABELS},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "train", "image": PAUSE, "resources": {"limits": {GPU: 1}}}],
            },
        },
    },
}
"""A pod for each GPU."""
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "train"},
    "spec": {"maxUnavailable": 0, "selector": {"matchLabels": LABELS}},
}
NAMES_IT = f"import os, time; os.open('/dev/nvidia{BROKEN}', os.O_PATH); time.sleep(600)"
"""Program that names the device without opening it, which uses no GPU."""
FAILURES = {
    "in-use": "nvidia-smi --gpu-reset: in use: The following GPUs could not be reset:",
    "not-supported": "nvidia-smi --gpu-reset: not supported: Resetting GPU",
    "unknown-error": "nvidia-smi --gpu-reset: failed: GPU",
}
"""Answers of nvidia-smi, and the messages of the command."""


class Workshop:
    """The node with its device plugin and a pod on each GPU."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.plugin = NodeDevicePlugin(stage.node, stage.host)

    def pods(self) -> dict[str, str]:
        """Return the UID of the running pod with each GPU, from the kubelet's own report (KEP-4680)."""
        listed = self.stage.node.get("/api/v1/namespaces/default/pods?labelSelector=app%3Dtrain")["items"]
        return {
            device["resourceID"]: pod["metadata"]["uid"]
            for pod in listed
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            for container in pod["status"]["containerStatuses"]
            for allocated in container.get("allocatedResourcesStatus", ())
            for device in allocated["resources"]
        }

    def wait_for_work(self) -> dict[str, str]:
        """Wait until each GPU has its pod."""
        self.stage.node.wait_until(lambda: len(self.pods()) == len(self.stage.host.gpus), "each GPU has a pod")
        return self.pods()

    def break_gpu(self) -> None:
        """Log Xid 62, until the agent has tainted the node and the kubelet has lost the GPU."""
        self.plugin.xid(BROKEN, 62, "Internal micro-controller halt")
        self.stage.wait_for_taint()
        self.stage.wait(lambda node: node.object["status"]["allocatable"][GPU] == "7")

    def answer(self, name: str, text: str = "") -> None:
        self.stage.host.write_value(f"nvidia-smi/{name}", text)

    @property
    def record(self) -> dict[str, Any]:
        text = self.stage.view().object["metadata"]["annotations"].get(f"{P}/reset-result", "{}")
        record: dict[str, Any] = json.loads(text)
        return record

    @property
    def resets(self) -> list[str]:
        """Return the calls of nvidia-smi that reset."""
        file = self.stage.host.root / "nvidia-smi/asked"
        return [line for line in file.read_text().splitlines() if "--gpu-reset" in line] if file.exists() else []

    @property
    def is_untouched(self) -> bool:
        """Whether nothing of a reset is left: claim, mode, taint, operator's label."""
        node = self.stage.view()
        keys = {taint["key"] for taint in node.taints}
        return (
            f"{P}/run" not in node.object["metadata"]["annotations"]
            and f"{P}/mode" not in node.labels
            and f"{P}/maintenance" not in keys
            and f"{P}/reset-command" not in node.object["metadata"]["annotations"]
            and node.labels.get(DEPLOY, "true") == "true"
        )

    def restore(self) -> None:
        """Make the GPU healthy and the node free of findings and Jobs."""
        for file in (self.stage.host.root / "nvidia-smi").iterdir():
            file.unlink()
        self.stage.kubectl("delete", "jobs", "--all")
        command(self.stage, "release", "--reason", "another test has ended")
        self.stage.wait(lambda node: node.status in WELL and not node.taints)


PLUGINS: dict[str, dict[str, Any]] = {
    "operator": {"operator": True},
    "plain": {"operator": False},
    "tolerates everything": {"operator": False, "tolerations": [{"operator": "Exists"}]},
}
"""How the device plugin runs."""


@pytest.fixture(params=["operator"])
def workshop(agent: Stage, request: pytest.FixtureRequest) -> Iterator[Workshop]:
    workshop = Workshop(agent)
    agent.kubectl("patch", SWEEPER, "--patch", json.dumps({"spec": {"suspend": True}}))
    agent.configure(CHECK_INTERVAL="10", ESCALATE_AFTER="0")
    agent.node.kubectl("apply", "--filename=-", input=json.dumps(WORK))
    workshop.plugin.install(**PLUGINS[request.param])
    workshop.restore()
    workshop.wait_for_work()
    # Until the agent has read ESCALATE_AFTER, several resets of one GPU are an ISOLATE, which no reset ends.
    heartbeat = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{agent.node.name}"
    agent.node.wait_until(
        lambda: agent.node.get(heartbeat)["spec"]["leaseDurationSeconds"] == 30, "the agent has read its settings"
    )
    yield workshop
    workshop.restore()
    agent.node.kubectl("delete", "deployment", "train")
    workshop.plugin.remove()
    agent.kubectl("patch", SWEEPER, "--patch", json.dumps({"spec": {"suspend": False}}))
    agent.install()


@pytest.mark.parametrize("workshop", PLUGINS, indirect=True)
def test_a_gpu_takes_its_pod_again_after_xid_62_and_the_other_pods_stay(workshop: Workshop) -> None:
    stage, gpu = workshop.stage, workshop.stage.host.gpus[BROKEN]
    before, plugin = workshop.pods(), workshop.plugin.pods()
    boot_id = stage.view().object["status"]["nodeInfo"]["bootID"]
    workshop.break_gpu()

    done = command(stage, "reset")

    print(done.stdout, done.stderr)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "without a reboot" in done.stdout
    node = stage.view()
    assert (node.tainted, "Xid62" in node.findings, workshop.is_untouched) == (False, False, True)
    assert node.object["status"]["allocatable"][GPU] == "8"
    assert node.object["status"]["nodeInfo"]["bootID"] == boot_id
    assert workshop.resets == [f"nvidia-smi --gpu-reset -i {gpu.uuid}"]
    after = workshop.wait_for_work()
    assert {uuid for uuid, pod in after.items() if before[uuid] != pod} == {gpu.uuid}
    assert plugin != workshop.plugin.pods()


def test_each_failure_of_a_reset_is_named_and_keeps_the_taint(workshop: Workshop) -> None:
    stage = workshop.stage
    workshop.break_gpu()
    with subprocess.Popen(stage.node.argv(sys.executable, "-c", NAMES_IT), text=True) as process:
        try:
            for name, words in FAILURES.items():
                workshop.answer(name)
                done = command(stage, "reset")
                print(done.stdout)
                assert (done.returncode, words in done.stdout, workshop.is_untouched) == (1, True, True), done.stdout
                assert f"gpu-healthcheck quarantine {stage.node.name}" in done.stdout
                assert (stage.view().tainted, "Xid62" in stage.view().findings) == (True, True)
                (stage.host.root / "nvidia-smi" / name).unlink()
        finally:
            interrupt(process)


def test_ctrl_c_undoes_everything_before_the_reset_and_returns_the_node_after_it(workshop: Workshop) -> None:
    stage = workshop.stage
    before, plugin = workshop.pods(), workshop.plugin.pods()
    stage.node.kubectl("create", "--filename=-", input=json.dumps(BUDGET))
    workshop.break_gpu()

    with running(stage, *words_of(stage, "reset"), until="not yet: default/train-") as process:
        assert stage.view().labels[DEPLOY] == "true"
        interrupt(process)
        rest, _ = process.communicate()

    print(rest)
    assert (process.returncode, workshop.resets, workshop.is_untouched) == (130, [], True), rest
    assert ("undone: the node's labels and marks are as before" in rest, "left: " in rest) == (True, False)
    assert (workshop.pods(), workshop.plugin.pods()) == (before, plugin)
    jobs = json.loads(stage.kubectl("get", "jobs", "--output=json"))["items"]
    assert (jobs, stage.view().tainted) == ([], True)

    stage.node.kubectl("delete", "poddisruptionbudget", "train")
    workshop.answer("seconds", "3")
    with running(stage, *words_of(stage, "reset"), until="gone: default/train-") as process:
        stage.node.wait_until(lambda: workshop.record.get("running") == "reset", "the reset has begun")
        interrupt(process)
        rest, _ = process.communicate()

    print(rest)
    assert (process.returncode, len(workshop.resets), workshop.is_untouched) == (130, 1, True), rest
    assert "the reset has begun: waiting for its end" in rest
    stage.wait(lambda node: not node.tainted and node.object["status"]["allocatable"][GPU] == "8")
    workshop.wait_for_work()


def test_reset_with_a_killed_command_returns_the_gpus(workshop: Workshop) -> None:
    stage = workshop.stage
    workshop.break_gpu()
    workshop.answer("seconds", "3")
    with running(stage, *words_of(stage, "reset"), until="gone: default/train-") as process:
        stage.node.wait_until(lambda: workshop.record.get("running") == "reset", "the reset has begun")
        interrupt(process, signal.SIGKILL)

    stage.wait(lambda node: not node.tainted and node.object["status"]["allocatable"][GPU] == "8")
    stage.node.wait_until(lambda: workshop.is_untouched, "the claim is released")
    assert (workshop.record["status"], len(workshop.resets)) == ("pass", 1)
    workshop.wait_for_work()
