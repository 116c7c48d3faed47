"""A suspect node on a real kubelet: quarantined by the command and by hand, replaced or at work again.

The test adds the parts of DCGM's base image and a device plugin: simulated programs for the Job's pod, and the
advertised GPUs of the Node. It follows test_story.py, which needs a cluster without anything of ours.
"""

from __future__ import annotations

import json
import re
import shutil
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, Any

import pytest

from gpu_healthcheck.sim.node import DCGM_PROGRAMS, EFA_PROGRAMS, NCCL_PROGRAMS
from gpu_healthcheck.sim.real_node.agent_pod import GIVE_UP_SECONDS
from gpu_healthcheck.sim.real_node.images import OURS, PAUSE, REPOSITORY
from gpu_healthcheck.sim.real_node.root import HARDWARE
from tests.agent.world import P
from tests.node.commands import command, running, words_of
from tests.node.stage import advertise
from tests.probes.dcgm.documents import FAULTY, Story, dcgm_4

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.node.stage import Stage

pytestmark = pytest.mark.real_node

ROOT = f"/{HARDWARE}"
PATH = ":".join([
    *(f"{ROOT}/{programs}" for programs in (DCGM_PROGRAMS, EFA_PROGRAMS, NCCL_PROGRAMS)),
    "/opt/gpu-healthcheck/bin:/usr/local/bin:/usr/bin:/bin",
])  # fmt: skip
ADDED = {
    "containers": [
        {
            "name": "quarantine",
            "env": [{"name": "PATH", "value": PATH}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},  # this machine may have two CPUs in all
            "volumeMounts": [{"name": "programs", "mountPath": ROOT}],
        }
    ],
    "volumes": [{"name": "programs", "hostPath": {"path": ROOT}}],
}
"""To the pod of a quarantine Job, as a strategic merge patch."""
TEMPLATE = "cronjob/gpu-healthcheck-quarantine-node"
SWEEPER = "cronjob/gpu-healthcheck-sweeper"
PROMPT = "$ "
ELSEWHERE = "registry.example.com:5000/team/gpu-healthcheck:4.2"
OURS_IN_THE_MANIFESTS = OURS.rpartition("/")[2]
JOB_FILE = "kubernetes/manifests/quarantine/05-job-quarantine.yaml"
RESULT = f"{P}/quarantine-result"
WELL = ("pass", "warn")
"""Without a GPU runtime in its containerd the node is warned of that."""
CORDONED = {"cordoned": True, "taints": ["node.kubernetes.io/unschedulable"]}
BUG_REPORTER = "/usr/bin/nvidia-bug-report.sh"
BUG_REPORT = """\
#!/bin/sh
# As NVIDIA's: --output-file FILE
echo "Start of NVIDIA bug report log file." >"$2"
"""
TESTS = ("4-dcgm-diag-l4", "6-efa-loopback", "9-roce", "10-gpu-load", "5-nccl-allreduce")
WORK = f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: training
  labels: {{app: training}}
spec:
  replicas: 1
  selector:
    matchLabels: {{app: training}}
  template:
    metadata:
      labels: {{app: training}}
    spec:
      containers:
        - name: training
          image: {PAUSE}
          resources:
            limits: {{nvidia.com/gpu: 8}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: training
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{app: training}}
"""


@pytest.fixture(scope="module")
def hospital(agent: Stage) -> Iterator[Stage]:
    """A node that offers 8 GPUs, quarantine Jobs that find its programs, and no sweep that takes it for idle."""
    agent.host.install_dcgmi()
    agent.host.install_nccl_tests()
    template = {"spec": {"jobTemplate": {"spec": {"template": {"spec": ADDED}}}}}
    agent.kubectl("patch", TEMPLATE, "--type=strategic", f"--patch={json.dumps(template)}")
    suspend(agent, sweeper=True)
    agent.configure(CHECK_INTERVAL="10")
    advertise(agent, "8")
    yield agent
    agent.node.kubectl("delete", "--filename=-", input=WORK)
    advertise(agent, None)
    agent.node.kubectl("annotate", "node", agent.node.name, f"{RESULT}-")  # who was just tested is due for no sweep
    agent.kubectl("delete", TEMPLATE)
    suspend(agent, sweeper=False)
    agent.install()


@pytest.fixture
def suspect(hospital: Stage) -> Iterator[Stage]:
    """It is not suspect yet: healthy and at work. It is so again afterwards, whatever the test left."""
    put_in_order(hospital)
    hospital.node.kubectl("apply", "--filename=-", input=WORK)
    wait_for_work(hospital)
    yield hospital
    put_in_order(hospital)


def put_in_order(stage: Stage) -> None:
    stage.host.want_recovery(1, 0)
    for name in ("answer", "code", "hang"):
        (stage.host.root / "dcgm" / name).unlink(missing_ok=True)
    stage.on_node(f"rm -f {BUG_REPORTER}")
    stage.kubectl("delete", "jobs", "--all")
    stage.node.kubectl("uncordon", stage.node.name)
    stage.wait(lambda node: node.status)
    command(stage, "release", "--reason", "another test has ended")
    stage.wait(lambda node: node.status in WELL and not node.taints)


def suspend(stage: Stage, *, sweeper: bool) -> None:
    stage.kubectl("patch", SWEEPER, "--patch", json.dumps({"spec": {"suspend": sweeper}}))


def wait_for_work(stage: Stage) -> None:
    """The node has taken the pod that wants its GPUs."""
    stage.node.kubectl("wait", "deployment/training", "--for=condition=Available", f"--timeout={GIVE_UP_SECONDS}s")


def typed(stage: Stage, document: str, after: str) -> list[str]:
    """The commands that a document has behind these words, for our node."""
    _, _, text = (REPOSITORY / document).read_text().partition(after)
    lines = takewhile(is_typed, dropwhile(lambda line: not is_typed(line), text.splitlines()))
    # sed replaces TARGET_NODE_NAME.
    return [re.sub(r"(?<!_)NODE(?!_)", stage.node.name, line.removeprefix(PROMPT)) for line in lines]


def is_typed(line: str) -> bool:
    return line.startswith(PROMPT)


def logged(message: str) -> list[str]:
    """The lines of its progress, without their times."""
    return [line.partition(" ")[2] for line in message.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]


def marks(stage: Stage) -> dict[str, Any]:
    """Return the marks of a running or unfinished quarantine on the Node, and its taints."""
    node = stage.view()
    found = {
        "run": node.object["metadata"]["annotations"].get(f"{P}/run"),
        "cordoned-by": node.object["metadata"]["annotations"].get(f"{P}/cordoned-by"),
        "mode": node.labels.get(f"{P}/mode"),
        "cordoned": node.object["spec"].get("unschedulable"),
        "taints": [taint["key"] for taint in node.taints],
    }
    return {key: value for key, value in found.items() if value}


def test_false_alarm_is_cleared_and_the_node_gets_work_again(suspect: Stage) -> None:
    suspect.host.xid(3, 79, "GPU has fallen off the bus.")
    suspect.wait(lambda node: node.tainted)

    done = command(suspect, "quarantine", "--release-on-pass")

    print(done.stdout, done.stderr)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = logged(done.stdout)
    assert lines[0] == "cordoned"
    assert lines[-1] == "uncordoned"
    assert [f"test: started (test {name})" in lines for name in TESTS] == [True] * len(TESTS)
    assert "recommendation: return-to-service" in done.stdout
    suspect.wait(lambda node: node.status in WELL and not node.taints)
    assert marks(suspect) == {}
    wait_for_work(suspect)


def test_failing_node_is_to_be_replaced_and_a_release_hides_no_present_fault(suspect: Stage, tmp_path: Path) -> None:
    gpu = suspect.host.gpus[1]
    suspect.host.want_recovery(1, 1)
    suspect.wait(lambda node: node.tainted and "GpuRecoveryAction" in node.findings)
    break_memory(suspect, 1)
    suspect.node.run("sh", "-c", f"cat >{BUG_REPORTER}; chmod +x {BUG_REPORTER}", input=BUG_REPORT)

    with suspect.watching(tmp_path / "versions") as watch:
        done = command(suspect, "quarantine", "--release-on-pass")
        released = command(suspect, "release", "--reason", "it looks well")
        tainted = {node.tainted for node in watch.seen()}

    print(done.stdout, done.stderr, released.stdout, released.stderr)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    assert f"ISOLATE  DcgmDiagMemory on gpu/{gpu.address}" in done.stdout
    report = re.search(r"NVIDIA's bug report is on the node: (.*)", done.stdout)
    assert report
    assert suspect.on_node(f"cat {report[1]}") == "Start of NVIDIA bug report log file.\n"
    assert "recommendation: replace" in done.stdout
    assert f"  $ kubectl delete node {suspect.node.name}\n" in done.stdout
    assert (released.returncode, tainted) == (1, {True}), released.stdout
    assert "still active\n  RESET    GpuRecoveryAction on gpu/" in released.stdout

    for line in typed(suspect, "docs/runbook.md", "three lines of kubectl do the same"):
        suspect.on_node(line)
    suspect.wait(lambda node: node.status == "fail" and node.tainted)
    suspect.host.want_recovery(1, 0)
    suspect.wait(lambda node: node.status in WELL and not node.taints)
    wait_for_work(suspect)


def break_memory(stage: Stage, index: int) -> None:
    """DCGM finds it at every run."""
    document = dcgm_4(Story(8, errors={("memory", index): [FAULTY]}))
    for entity, gpu in zip(document["entity_groups"][0]["entities"], stage.host.gpus, strict=True):
        entity["serial_num"] = gpu.serial
    stage.host.write_value("dcgm/answer", json.dumps(document))
    stage.host.write_value("dcgm/code", "205")


def test_a_killed_run_is_repeated_and_a_persons_cordon_stays(suspect: Stage) -> None:
    suspect.node.kubectl("cordon", suspect.node.name)
    suspect.host.write_value("dcgm/hang", "")

    with running(suspect, *words_of(suspect, "quarantine"), until="test: started") as process:
        kill_the_test(suspect)
        message, _ = process.communicate()
    (suspect.host.root / "dcgm/hang").unlink()
    done = command(suspect, "quarantine", "--release-on-pass")

    print(message, done.stdout, done.stderr)
    assert process.returncode == 1
    assert "recommendation: rerun" in message
    assert f"  $ gpu-healthcheck quarantine {suspect.node.name}\n" in message
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert logged(done.stdout)[0] == "is cordoned already by another owner, and stays so"
    assert "recommendation: return-to-service" in done.stdout
    suspect.wait(lambda node: node.status in WELL)
    assert marks(suspect) == CORDONED


def kill_the_test(stage: Stage) -> None:
    """Its container's first process, as if the kernel had done it."""
    (pod,) = json.loads(stage.kubectl("get", "pods", "--selector=job-name", "--output=json"))["items"]
    container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    stage.node.run("ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", container)


@pytest.fixture
def from_a_registry(suspect: Stage) -> Iterator[Stage]:
    """Its image has another name than in our files, and no other has it: the CronJob in the cluster says which."""
    container = {"name": "quarantine", "image": ELSEWHERE}
    template = {"spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [container]}}}}}}
    suspect.node.run("ctr", "--namespace=k8s.io", "images", "tag", OURS, ELSEWHERE)
    suspect.kubectl("patch", TEMPLATE, "--type=strategic", f"--patch={json.dumps(template)}")
    yield suspect
    container["image"] = OURS_IN_THE_MANIFESTS
    suspect.kubectl("patch", TEMPLATE, "--type=strategic", f"--patch={json.dumps(template)}")
    suspect.node.run("ctr", "--namespace=k8s.io", "images", "rm", ELSEWHERE)


@pytest.fixture
def recipe(suspect: Stage) -> Iterator[list[str]]:
    """The lines of docs/quarantine.md, in a checkout with a Job that finds the simulated programs."""
    checkout = suspect.node.folder / "checkout"
    file = checkout / JOB_FILE
    file.parent.mkdir(parents=True)
    patch = json.dumps({"spec": {"template": {"spec": ADDED}}})
    local = ("--local", "--type=strategic", f"--patch={patch}", "--output=yaml")
    file.write_text(suspect.node.kubectl("patch", f"--filename={JOB_FILE}", *local))
    yield [f"cd {checkout}; {line}" for line in typed(suspect, "docs/quarantine.md", "# quarantine by hand")]
    shutil.rmtree(checkout)


def test_a_manual_run_with_a_deleted_pod_is_repeated(suspect: Stage, from_a_registry: Stage, recipe: list[str]) -> None:
    suspect.host.xid(5, 95, "Uncontained ECC error.")
    suspect.wait(lambda node: node.tainted)
    suspect.host.write_value("dcgm/hang", "")
    drain, delete, apply, follow, result = recipe

    for line in (drain, delete, apply):
        print(suspect.on_node(line))
    wait_for_pod(suspect)
    with running(suspect, "sh", "-c", follow, until="test: started") as process:
        restart_agent(suspect)
        assert marks(suspect)["mode"] == "quarantine"
        assert images_at_work(from_a_registry) == [ELSEWHERE]
        suspect.kubectl("delete", "pod", "--selector=job-name")
        log, _ = process.communicate()
    print(log)
    assert json.loads(suspect.on_node(result))["recommendation"] == "rerun"

    (suspect.host.root / "dcgm/hang").unlink()
    for line in (drain, delete, apply):
        print(suspect.on_node(line))
    wait_for_pod(suspect)
    print(suspect.on_node(follow))
    assert json.loads(suspect.on_node(result))["recommendation"] == "return-to-service"
    suspect.wait(lambda node: node.status in WELL and not node.tainted)
    assert marks(suspect) == CORDONED
    suspect.node.kubectl("uncordon", suspect.node.name)
    wait_for_work(suspect)


def images_at_work(stage: Stage) -> list[str]:
    """Return the images of Jobs' pods, as the kubelet reports them."""
    pods = json.loads(stage.kubectl("get", "pods", "--selector=job-name", "--output=json"))["items"]
    return [pod["spec"]["containers"][0]["image"] for pod in pods]


def wait_for_pod(stage: Stage) -> None:
    """`kubectl logs` wants one that runs, or has run: a test that passes is over soon."""
    begun = {"Running", "Succeeded", "Failed"}

    def has_begun() -> bool:
        pods = json.loads(stage.kubectl("get", "pods", "--selector=job-name", "--output=json"))["items"]
        return [pod["status"]["phase"] in begun for pod in pods] == [True]

    stage.node.wait_until(has_begun, "the Job's pod runs")


def restart_agent(stage: Stage) -> None:
    before = stage.pod.ready()["metadata"]
    stage.kubectl("delete", "pod", before["name"])
    stage.pod.ready(other_than=before["uid"])
