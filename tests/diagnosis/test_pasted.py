"""Texts that people paste: outputs of kubectl and logs, alone, together, and damaged by the way that they took."""

from __future__ import annotations

import html
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpu_healthcheck.cli.app import app
from gpu_healthcheck.diagnosis.sources.describe import read_described
from tests.console import typed

Document = dict[str, Any]
HANDLER = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "
    '"nvidia" is configured'
)
NOTHING_LEFT = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def described(
    *, status: str = "Pending", node: str = "<none>", state: str = "", events: str = "", more: str = ""
) -> str:
    """Return a pod as `kubectl describe` prints it; `state` of its container, `events` with their table."""
    started = "" if node == "<none>" else "Start Time:       Thu, 26 Nov 2026 09:11:02 +0100\n"
    return f"""Name:             trainer-0
Namespace:        team
Priority:         0
Service Account:  default
Node:             {node}
{started}Labels:           app=trainer
                  tier=batch
Annotations:      example.com/note: none
Status:           {status}
{more}IP:
IPs:              <none>
Controlled By:    Job/trainer
Containers:
  main:
    Container ID:
    Image:         registry.example/train:1
    Port:          <none>
    Host Port:     <none>
    Command:
      python
      train.py
{state}    Limits:
      nvidia.com/gpu:  2
    Requests:
      nvidia.com/gpu:  2
    Environment:
      NVIDIA_VISIBLE_DEVICES:  all
    Mounts:
      /data from data (rw)
Conditions:
  Type           Status
  PodScheduled   {node != "<none>"}
Volumes:
  data:
    Type:       PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)
    ClaimName:  data
    ReadOnly:   false
QoS Class:       BestEffort
Node-Selectors:  pool=gpu
Tolerations:     node.kubernetes.io/not-ready:NoExecute op=Exists for 300s
                 nvidia.com/gpu:NoSchedule op=Exists
{events}"""


def table(*rows: str) -> str:
    """Return the events of `kubectl describe`."""
    heading = ("  Type     Reason  Age  From  Message", "  ----     ------  ---  ----  -------")
    return "\n".join(("Events:", *heading, *(f"  {row}" for row in rows))) + "\n"


UNSCHEDULED = described(
    events=table(f"Warning  FailedScheduling  3m12s (x5 over 10m)  default-scheduler  {NOTHING_LEFT}")
)
NO_HANDLER = described(
    node="gpu-1/10.0.0.7", events=table(f"Warning  FailedCreatePodSandBox  12s (x10 over 2m11s)  kubelet  {HANDLER}")
)
ENDED = """    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       Error
      Message:      step 100
RuntimeError: CUDA error: uncorrectable ECC error encountered

      Exit Code:    1
      Started:      Thu, 26 Nov 2026 09:33:10 +0100
      Finished:     Thu, 26 Nov 2026 09:33:14 +0100
    Ready:          False
    Restart Count:  9
"""
CRASHED = described(
    status="Running",
    node="gpu-1/10.0.0.7",
    state=ENDED,
    events=table("Warning  BackOff  4m5s (x98 over 24m)  kubelet  Back-off restarting failed container main"),
)
WITHOUT_MESSAGE = CRASHED.replace(
    "step 100\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n", "step 100"
)
REJECTED = described(
    status="Failed",
    node="gpu-1/",
    more="Reason:           UnexpectedAdmissionError\nMessage:          Pod was rejected: Allocate failed due to rpc "
    "error: code = Unknown desc = no healthy devices present, which is unexpected\n",
    events="Events:           <none>\n",
)
RUNNING = described(
    status="Running",
    node="gpu-1/10.0.0.7",
    state="    State:          Running\n      Started:      Thu, 26 Nov 2026 09:12:00 +0100\n"
    "    Ready:          True\n",
    events="Events:           <none>\n",
)
DESCRIBED_NODE = """Name:               gpu-1
Roles:              <none>
Labels:             kubernetes.io/hostname=gpu-1
                    nvidia.com/gpu.present=true
                    nvidia.com/gpu.count=8
Annotations:        node.alpha.kubernetes.io/ttl: 0
CreationTimestamp:  Mon, 02 Nov 2026 09:00:00 +0000
Taints:             <none>
Unschedulable:      false
Conditions:
  Type    Status  LastHeartbeatTime                 LastTransitionTime                Reason        Message
  ----    ------  -----------------                 ------------------                ------        -------
  Ready   True    Thu, 26 Nov 2026 09:30:00 +0000   Mon, 02 Nov 2026 09:05:00 +0000   KubeletReady  kubelet is ready
Capacity:
  cpu:             96
  nvidia.com/gpu:  8
Allocatable:
  cpu:             96
  nvidia.com/gpu:  8
System Info:
  OS Image:                   Ubuntu 24.04.3 LTS
  Container Runtime Version:  containerd://2.1.4
  Kubelet Version:            v1.33.4
Non-terminated Pods:          (1 in total)
  Namespace  Name      CPU Requests  CPU Limits  Memory Requests  Memory Limits  Age
  ---------  ----      ------------  ----------  ---------------  -------------  ---
  team       worker-3  4 (4%)        0 (0%)      8Gi (1%)         0 (0%)         3d
Allocated resources:
  (Total limits may be over 100 percent, i.e., overcommitted.)
  Resource        Requests  Limits
  --------        --------  ------
  cpu             4 (4%)    0 (0%)
  nvidia.com/gpu  8         8
Events:              <none>
"""
GET_EVENTS = f"""LAST SEEN   TYPE      REASON             OBJECT            MESSAGE
4m2s        Warning   FailedScheduling   pod/trainer-0     {NOTHING_LEFT}
5m          Normal    SuccessfulCreate   job/trainer       Created pod: trainer-0
"""
OF_ALL = f"""NAMESPACE   LAST SEEN   TYPE      REASON                   OBJECT          MESSAGE
team        12s         Warning   FailedCreatePodSandBox   pod/trainer-0   {HANDLER}
"""
WIDE = (
    "LAST SEEN   TYPE      REASON             OBJECT          SUBOBJECT   SOURCE              MESSAGE   FIRST SEEN   "
    "COUNT   NAME\n4m2s        Warning   FailedScheduling   pod/trainer-0               default-scheduler   "
    f"{NOTHING_LEFT}   10m          5       trainer-0.17a1b2c3d4e5f607\n"
)
OLD = (
    "LAST SEEN   FIRST SEEN   COUNT     NAME                         KIND      SUBOBJECT   TYPE      REASON   "
    "SOURCE              MESSAGE\n4m          10m          5         trainer-0.17a1b2c3d4e5f607   Pod   "
    f"Warning   FailedScheduling   default-scheduler   {NOTHING_LEFT}\n"
)
NEW = f"""LAST SEEN              TYPE      REASON             OBJECT          MESSAGE
3m (x5 over 10m)       Warning   FailedScheduling   Pod/trainer-0   {NOTHING_LEFT}
"""
XID = "[ 8812.100001] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
MEMORY = (
    "step 7\nTraceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
)


def diagnosed(folder: Path, *texts: str | bytes) -> tuple[int, Document, str]:
    """Return exit code, JSON document and stderr of `diagnose --from` these texts."""
    files = []
    for number, text in enumerate(texts):
        files.append(str(folder / f"paste-{number}.txt"))
        Path(files[-1]).write_bytes(text if isinstance(text, bytes) else text.encode())
    done = typed(["diagnose", *(word for file in files for word in ("--from", file)), "-o", "json"], {})
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr.decode()


def causes(document: Document) -> list[tuple[str, str]]:
    return [(cause["cause"], cause["subject"]) for cause in document["causes"]]


CASES = {
    "waiting pod": (UNSCHEDULED, "InsufficientResource", "resource/nvidia.com/gpu"),
    "sandbox": (NO_HANDLER, "RuntimeHandlerMissing", "node/gpu-1"),
    "termination message": (CRASHED, "GpuHardwareFault", "node/gpu-1"),
    "rejected pod": (REJECTED, "NoHealthyGpuAtAdmission", "node/gpu-1"),
    "pod and its only node": (
        UNSCHEDULED.replace("0/3", "0/1").replace(": 3 Insuff", ": 1 Insuff").replace("pool=gpu", "<none>")
        + "\n\n"
        + DESCRIBED_NODE,
        "GpusAllInUse",
        "resource/nvidia.com/gpu",
    ),
    "pod and one of its nodes": (
        UNSCHEDULED + "\n\n" + DESCRIBED_NODE,
        "InsufficientResource",
        "resource/nvidia.com/gpu",
    ),
    "get events": (GET_EVENTS, "InsufficientResource", "resource/nvidia.com/gpu"),
    "get events -A": (OF_ALL, "RuntimeHandlerMissing", "node/NODE"),
    "get events -o wide": (WIDE, "InsufficientResource", "resource/nvidia.com/gpu"),
    "get events, kubectl 1.12": (OLD, "InsufficientResource", "resource/nvidia.com/gpu"),
    "events": (NEW, "InsufficientResource", "resource/nvidia.com/gpu"),
    "events alone": (NO_HANDLER.partition("Events:\n")[2], "RuntimeHandlerMissing", "node/NODE"),
    "log": (MEMORY, "GpuMemoryExhausted", "log/paste-0.txt"),
    "kernel log": (XID, "KernelLogReportsFault", "node/NODE"),
}


@pytest.mark.parametrize(("text", "cause", "subject"), CASES.values(), ids=CASES)
def test_text_names_its_cause_as_likely(text: str, cause: str, subject: str, tmp_path: Path) -> None:
    code, document, _ = diagnosed(tmp_path, text)

    assert (code, causes(document)[:1]) == (1, [(cause, subject)])
    assert {each["certainty"] for each in document["causes"]} == {"likely"}
    assert document["recognised"]


# --- the way that a text took


def _quoted(text: str) -> str:
    return "".join(f"> {line}\n" for line in text.splitlines())


def _in_thread(text: str) -> str:
    return (
        "**Environment**: Ubuntu 22.04, Kubernetes 1.33\n\nMy pod does not start, CUDA out of memory is not it.\n\n"
        f"```bash\n$ kubectl describe pod trainer-0 -n team\n{text}```\n\nAny help is welcome!\n"
    )


def _coloured(text: str) -> str:
    return "".join(f"\x1b[32m{line}\x1b[0m\n" for line in text.splitlines())


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _collapsed(text: str) -> str:
    """Without the blanks at a line's beginning and between its columns, as some forums show them."""
    return "".join(" ".join(line.split()) + "\n" for line in text.splitlines())


def _broken(text: str) -> str:
    """As a terminal of 100 columns shows it."""
    return "".join(f"{line[at : at + 100]}\n" for line in text.splitlines() for at in range(0, max(len(line), 1), 100))


def _spaced(text: str) -> str:
    return text.replace("  ", "\N{NO-BREAK SPACE} ")


DAMAGES: dict[str, Callable[[str], str]] = {
    "quoted": _quoted,
    "thread": _in_thread,
    "coloured": _coloured,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "indented": _indented,
    "entities": html.escape,
    "collapsed": _collapsed,
    "broken": _broken,
    "spaced": _spaced,
    "prompt": lambda text: f"root@cp-1:~# kubectl describe po -n team trainer-0\n{text}root@cp-1:~# date\n",
    "UTF-16": lambda text: text,
    "quoted in a thread": lambda text: _quoted(_in_thread(text)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("case", ["waiting pod", "sandbox", "termination message", "rejected pod"])
def test_text_is_read_after_it_was_copied(case: str, damage: str, tmp_path: Path) -> None:
    text, cause, subject = CASES[case]
    copied = DAMAGES[damage](text)
    raw = copied.encode("utf-16" if damage == "UTF-16" else "utf-8")

    code, document, _ = diagnosed(tmp_path, raw)

    assert (code, causes(document)[:1]) == (1, [(cause, subject)])
    assert document["recognised"]["pods"] == 1
    assert {cause for cause, _ in causes(document)}.isdisjoint({"GpuMemoryExhausted"})


@pytest.mark.parametrize("end", ["Conditions:", "Node-Selectors:", "Volumes:"])
def test_text_that_ends_early_is_judged_as_far_as_it_goes(end: str, tmp_path: Path) -> None:
    """A healthy pod is then no proof that nothing is wrong."""
    crashed = diagnosed(tmp_path, CRASHED[: CRASHED.index(end)])
    healthy = diagnosed(tmp_path, RUNNING[: RUNNING.index(end)])

    assert (crashed[0], causes(crashed[1])) == (1, [("GpuHardwareFault", "node/gpu-1")])
    assert (healthy[0], causes(healthy[1])) == (2, [])
    assert "the text ends within pod trainer-0" in str(healthy[1]["unobserved"])


def test_log_belongs_to_the_pod_of_its_command(tmp_path: Path) -> None:
    text = f"{WITHOUT_MESSAGE}\n$ kubectl logs -n team trainer-0 --previous\n{MEMORY}"
    code, document, _ = diagnosed(tmp_path, text)
    assert (code, causes(document)) == (1, [("GpuMemoryExhausted", "job/team/trainer")])
    assert document["recognised"] == {"pods": 1, "events": 1, "log lines": 3}


def test_log_of_a_second_file_belongs_to_the_only_pod_that_fails(tmp_path: Path) -> None:
    code, document, _ = diagnosed(tmp_path, WITHOUT_MESSAGE, MEMORY)
    assert (code, causes(document)) == (1, [("GpuMemoryExhausted", "job/team/trainer")])


def test_kernel_lines_of_a_thread_are_judged_by_the_rules_of_replay(tmp_path: Path) -> None:
    thread = f"{_in_thread(CRASHED)}\nand on the node\n```\n$ sudo dmesg | grep NVRM\n{XID}```\n"
    code, document, _ = diagnosed(tmp_path, thread)
    assert code == 1
    assert ("KernelLogReportsFault", "node/gpu-1") in causes(document)
    fault = next(one for one in document["causes"] if one["cause"] == "KernelLogReportsFault")
    assert fault["evidence"] == [
        "Xid79 on gpu/0000:3b:00.0, REBOOT: ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS: GPU has fallen off the bus."
    ]
    assert fault["remedy"] == [
        "Keep new pods off the node: `kubectl cordon gpu-1`",
        "Then drain and reboot the node.",
        "See the action for Xid79: `gpu-healthcheck explain Xid79`",
    ]


def test_kernel_line_of_a_program_is_no_fault_of_the_node(tmp_path: Path) -> None:
    line = (
        "[ 812.000001] NVRM: Xid (PCI:0000:3b:00): 31, pid=812, name=python3, Ch 00000008, intr 10000000. MMU Fault\n"
    )
    assert causes(diagnosed(tmp_path, line)[1]) == [("KernelLogReportsNotice", "node/NODE")]


def test_manifest_supplies_what_events_do_not_show(tmp_path: Path) -> None:
    manifest = (
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: trainer-0\n  namespace: team\nspec:\n  containers:\n"
        "  - name: main\n    resources:\n      limits:\n        nvidia.com/mig-1g.10gb: 1\n"
    )
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/mig-1g.10gb."
    events = GET_EVENTS.replace(NOTHING_LEFT, message)
    code, document, _ = diagnosed(tmp_path, f"```yaml\n{manifest}```\n```\n{events}```\n")
    assert (code, causes(document)) == (1, [("InsufficientResource", "resource/nvidia.com/mig-1g.10gb")])


# --- texts that say nothing


OTHERS: dict[str, str | bytes] = {
    "empty": "",
    "blank": "\n \n",
    "novel": "It was a bright cold day. Name: none was given.\nWarning signs were everywhere; events followed.\n",
    "source": "import torch\ntry:\n    train()\nexcept torch.cuda.OutOfMemoryError:\n"
    "    raise MemoryError('CUDA out of memory')\n",
    "calls": 'def report(self):\n    logger.error("CUDA out of memory")\n    text = "CUDA out of memory"\n',
    "log of a database": "2026-11-26 10:00:00 mysqld got signal 7: Bus error\nunknown device eth0, which is odd\n",
    "log of another client": "dial unix /run/containerd/containerd.sock: connect: no such file or directory\n",
    "log without EFA": "host:1:2 [0] NCCL INFO Using network Socket\nhost:1:2 [0] NCCL INFO init complete\n",
    "CSV": "time,node,gpu,utilisation\n2026-11-26T10:00:00Z,gpu-1,0,93\n2026-11-26T10:00:10Z,gpu-1,0,94\n",
    "log of a server": '10.0.0.9 - - [26/Nov/2026:10:00:00 +0000] "GET /healthz HTTP/1.1" 200 2\n' * 50,
    "healthy log": "step 1 loss 2.5\nstep 2 loss 2.4\nsaved checkpoint 2\n",
    "healthy kernel log": "[    1.000000] Linux version 6.8.0-45-generic\n"
    "[   31.550123] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07\n",
    "other JSON": json.dumps({"results": [{"gpu": 0, "temperature": 41}]}),
    "other YAML": "services:\n  web:\n    image: nginx\n    ports:\n    - 80:80\n",
    "manifest": "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: x\nspec:\n  replicas: 1\n",
    "binary": b"\x7fELF\x02\x01\x01\0\0\0" + bytes(range(256)) * 8,
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(range(255, 0, -1)) * 8,
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_unrelated_text_is_refused(text: str | bytes, tmp_path: Path) -> None:
    code, document, stderr = diagnosed(tmp_path, text)
    assert (code, document, stderr.count("\n")) == (2, {}, 1)
    assert "nothing recognised" in stderr


def test_healthy_pod_has_no_cause(tmp_path: Path) -> None:
    code, document, _ = diagnosed(tmp_path, RUNNING)
    assert (code, causes(document), document["recognised"]) == (0, [], {"pods": 1})


def test_events_without_a_cause_are_no_proof(tmp_path: Path) -> None:
    event = "4m2s        Normal   Pulled   pod/trainer-0     Container image is already present on machine\n"
    code, document, _ = diagnosed(tmp_path, GET_EVENTS.splitlines(keepends=True)[0] + event)
    assert (code, causes(document)) == (2, [])


def test_report_says_in_one_line_what_a_text_does_not_show(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(UNSCHEDULED)
    lines = typed(["diagnose", "--from", str(tmp_path / "a.txt")], {}).stdout.decode().splitlines()
    assert lines[0] == "recognised: 1 pod, 1 event"
    (line,) = lines[lines.index("Not visible") + 1 :]
    kinds = "ClusterPolicy, ConfigMap, DaemonSet and 6 more"
    assert re.fullmatch(rf"  not in the text: {kinds}; this hides [1-9]\d possible causes", line)


# --- further forms


PODS = """$ kubectl get pods -n gpu-operator -o wide
NAME                                      READY   STATUS             RESTARTS        AGE     IP            NODE
gpu-operator-6bdf7c5b-x2zt4               1/1     Running            0               3h12m   10.244.0.5    cp-1
nvidia-container-toolkit-daemonset-x8v9k  0/1     Init:0/1           0               3h12m   10.244.1.12   gpu-1
nvidia-driver-daemonset-kk2vv             0/1     CrashLoopBackOff   31 (2m9s ago)   3h12m   10.244.1.11   gpu-1
"""
VGPU = """$ kubectl get pods -n gpu-operator
NAME                               READY   STATUS     RESTARTS   AGE
nvidia-vgpu-device-manager-dfgh2   0/1     Init:0/1   0          50m
"""
IN_YAML = f"""apiVersion: v1
items:
- apiVersion: v1
  kind: Pod
  metadata:
    creationTimestamp: "2026-11-26T08:11:02Z"
    name: trainer-0
    namespace: team
  spec:
    containers:
    - name: main
      resources:
        limits:
          nvidia.com/gpu: "1"
    schedulerName: default-scheduler
  status:
    conditions:
    - lastTransitionTime: "2026-11-26T08:11:02Z"
      message: '{NOTHING_LEFT}'
      reason: Unschedulable
      status: "False"
      type: PodScheduled
    phase: Pending
- apiVersion: v1
  kind: Node
  metadata:
    name: cpu-1
  status: {{}}
kind: List
metadata:
  resourceVersion: ""
"""
IN_JSON = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trainer-0", "namespace": "team"},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}]},
        "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"},
    },
    indent=2,
)
KUBELET = (
    'Nov 26 10:11:12 gpu-9 kubelet[1234]: E1126 10:11:12.123456 1234 pod_workers.go:1301] "Error syncing pod" '
    'err="failed to \\"CreatePodSandbox\\" for \\"x_default(1-2)\\": rpc error: no runtime for \\\\\\"nvidia\\\\\\" is '
    'configured" pod="default/x"\n'
)
TALK = (
    "Ann 10:32\nhas anyone seen this?\nk get events -n ml\nLAST SEEN   TYPE   REASON   OBJECT   MESSAGE\n"
    f"<unknown>   Warning   FailedScheduling   pod/tune-0   {NOTHING_LEFT}\n7m   Normal   Killing   pod/tune-1   x\n"
    "Bob 10:40\nwhat does nvidia-smi print?\nAnn 10:41\nFailed to initialize NVML: Driver/library version mismatch\n"
)
INLINE = (
    "The pod has this message: `Pod Allocate failed due to rpc error: error creating nvml.Device 5: nvml: GPU is lost, "
    "which is unexpected`. What does it mean?\n"
)
OF_KARPENTER = (
    'Warning  FailedScheduling  3m  karpenter  Failed to schedule pod, incompatible with nodepool "gpu", daemonset '
    'overhead={"cpu":"1"}, no instance type satisfied resources {"nvidia.com/gpu":"1"} and requirements x In [gpu]'
)
FORMS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "get pods": (PODS, [("DriverNotReady", "node/gpu-1")]),
    "get pods of the vGPU stack": (VGPU, [("SandboxDevicesNotReady", "node/NODE")]),
    "YAML": (IN_YAML.replace("cpu-1", "gpu-1"), [("InsufficientResource", "resource/nvidia.com/gpu")]),
    "YAML with its end cut": (
        IN_YAML[: IN_YAML.index("kind: Node")],
        [("InsufficientResource", "resource/nvidia.com/gpu")],
    ),
    "YAML in a thread": (f"Hi,\n```yaml\n{IN_YAML}```\n", [("InsufficientResource", "resource/nvidia.com/gpu")]),
    "JSON in a thread": (f"Hi,\n```json\n{IN_JSON}\n```\nbye\n", [("NoHealthyGpuAtAdmission", "node/gpu-1")]),
    "kubelet's log": (KUBELET, [("RuntimeHandlerMissing", "log/paste-0.txt")]),
    "talk": (
        TALK,
        [("DriverLibraryMismatched", "log/paste-0.txt"), ("InsufficientResource", "resource/nvidia.com/gpu")],
    ),
    "event in a sentence": (
        f"The pod: `Warning  FailedScheduling  40s (x2 over 40s)  default-scheduler  {NOTHING_LEFT}`\n",
        [("InsufficientResource", "resource/nvidia.com/gpu")],
    ),
    "event of a program that begins with a digit": (
        table(
            "Normal   Scheduled                 73s  4pd-scheduler  Successfully assigned default/train to gpu-1",
            "Warning  UnexpectedAdmissionError  73s  kubelet        Allocate failed due to no healthy devices present",
        ),
        [("NoHealthyGpuAtAdmission", "node/gpu-1")],
    ),
    "event of Karpenter after the scheduler's": (
        table(f"Warning  FailedScheduling  4m  default-scheduler  {NOTHING_LEFT}", OF_KARPENTER),
        [("InsufficientResource", "resource/nvidia.com/gpu")],
    ),
    "refusal by HAMi": (
        table("Warning  FailedScheduling  2m  hami-scheduler  0/2 nodes are available: 2 CardInsufficientMemory."),
        [("HamiCardMemoryShort", "pod/default/POD")],
    ),
    "events of HAMi's filter": (
        table(
            "Warning  FilteringFailed  2m  hami-scheduler  5 nodes CardTypeMismatch(a,b,c,d,e)",
            "Warning  FilteringFailed  2m  hami-scheduler  3 nodes CardInsufficientCore(a,b,c)",
        ),
        [("HamiCardCoresShort", "pod/default/POD")],
    ),
    "event of Karpenter alone": (table(OF_KARPENTER), [("NoNodeFits", "pod/default/POD")]),
    "event of an eviction": (
        table(
            "Normal   Scheduled  2m   default-scheduler  Successfully assigned ml/vllm-0 to gpu-1",
            "Warning  Evicted    90s  kubelet            The node was low on resource: ephemeral-storage.",
        ),
        [("GpuPodEvicted", "node/gpu-1")],
    ),
    "event of Volcano about a vGPU": (
        table("Warning  FailedScheduling  77s  volcano  0/1 nodes are unavailable: 1 hami-vgpuDeviceSharing error."),
        [("NoNodeFits", "pod/default/POD")],
    ),
    "message in a sentence": (INLINE, [("GpuLostAtAllocation", "log/paste-0.txt")]),
}


@pytest.mark.parametrize(("text", "found"), FORMS.values(), ids=FORMS)
def test_form_of_a_text_is_recognised(text: str, found: list[tuple[str, str]], tmp_path: Path) -> None:
    code, document, stderr = diagnosed(tmp_path, text)
    assert (code, causes(document)) == (1, found), stderr


def test_pool_that_karpenters_event_names_is_the_step(tmp_path: Path) -> None:
    for events in FORMS["event of Karpenter after the scheduler's"][0], FORMS["event of Karpenter alone"][0]:
        (cause,) = diagnosed(tmp_path, events)[1]["causes"]

        assert cause["remedy"][-1].endswith("`kubectl edit nodepool gpu`")


def test_pod_of_an_event_may_have_a_controller_that_the_text_does_not_show(tmp_path: Path) -> None:
    rejected = table(
        "Warning  UnexpectedAdmissionError  73s  kubelet  Allocate failed due to no healthy devices present"
    )
    (cause,) = diagnosed(tmp_path, rejected)[1]["causes"]

    assert any("or only delete what a controller creates again" in step for step in cause["remedy"])


def test_running_pod_of_the_vgpu_stack_is_no_cause(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, VGPU.replace("0/1     Init:0/1", "1/1     Running "))[1]) == []


@pytest.mark.parametrize(
    ("reason", "may_offer"),
    [
        ("node(s) had untolerated taint {node.kubernetes.io/unreachable: }", True),
        ("node(s) had untolerated taint {karpenter.sh/disrupted: }", True),
        ("node(s) were unschedulable", True),
        ("node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }", False),
        ("node(s) didn't match pod anti-affinity rules", False),
    ],
)
def test_nodes_that_are_closed_for_a_time_may_offer_what_is_short(reason: str, may_offer: bool, tmp_path: Path) -> None:
    text = GET_EVENTS.replace(NOTHING_LEFT, f"0/5 nodes are available: 2 {reason}, 3 Insufficient nvidia.com/gpu.")
    (cause,) = diagnosed(tmp_path, text)[1]["causes"]

    assert cause["cause"] == "InsufficientResource"
    assert (f"the scheduler: 2 of 5 nodes: {reason}" in cause["evidence"]) is may_offer
    assert any("they may be those that offer it" in step for step in cause["remedy"]) is may_offer


@pytest.mark.parametrize("code", ["CardTypeMismatch", "NodeUnfitPod"])
def test_refusal_by_hami_accuses_only_an_annotation_that_the_text_shows(code: str, tmp_path: Path) -> None:
    message = f"0/2 nodes are available: 2 {code}."
    text = UNSCHEDULED.replace(NOTHING_LEFT, message).replace("default-scheduler", "hami-scheduler")
    chosen = re.sub(r"Annotations: .*", "Annotations:      nvidia.com/use-gputype: A100", text)

    expected = [("HamiConstraintMatchesNoCard", "job/team/trainer")] if code == "CardTypeMismatch" else []
    assert causes(diagnosed(tmp_path, chosen)[1]) == expected
    assert causes(diagnosed(tmp_path, text)[1]) == []


def test_refusal_by_hami_that_has_ended_is_no_cause(tmp_path: Path) -> None:
    refused = "Warning  FilteringFailed  2m  hami-scheduler  3 nodes CardInsufficientCore(a,b,c)"
    bound = "Normal  Scheduled  1m  hami-scheduler  Successfully assigned ml/vllm-0 to gpu-1"

    assert causes(diagnosed(tmp_path, table(refused, bound))[1]) == []


STARTED = f"""LAST SEEN   TYPE      REASON                   OBJECT                   MESSAGE
9m          Warning   FailedScheduling         pod/nvidia-dcgm-exporter-2nc7v   {NOTHING_LEFT}
8m          Warning   FailedCreatePodSandBox   pod/nvidia-dcgm-exporter-2nc7v   {HANDLER}
4m9s        Normal    Started                  pod/nvidia-dcgm-exporter-2nc7v   Started container main
"""


@pytest.mark.parametrize(
    ("last", "fails"),
    [
        ("", False),
        ("3s   Warning   BackOff   pod/nvidia-dcgm-exporter-2nc7v   Back-off restarting failed container main", True),
        ("5m   Warning   BackOff   pod/nvidia-dcgm-exporter-2nc7v   Back-off restarting failed container main", True),
        (f"3s   Warning   FailedCreatePodSandBox   pod/nvidia-dcgm-exporter-2nc7v   {HANDLER}", True),
    ],
)
def test_pod_that_started_after_its_failures_is_no_cause(last: str, fails: bool, tmp_path: Path) -> None:
    assert (causes(diagnosed(tmp_path, f"{STARTED}{last}\n")[1]) != []) is fails


def test_log_of_a_pod_without_container_states_is_judged_by_itself(tmp_path: Path) -> None:
    log = f"{STARTED}\n$ kubectl logs nvidia-dcgm-exporter-2nc7v\n"

    failed = diagnosed(tmp_path, f"{log}RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    assert causes(failed[1]) == [("GpuHardwareFault", "log/paste-0.txt")]
    assert causes(diagnosed(tmp_path, f"{log}CUDA works: 0 uncorrectable ECC errors\n")[1]) == []


def test_event_of_a_pod_without_a_gpu_is_no_cause(tmp_path: Path) -> None:
    text = GET_EVENTS.replace(NOTHING_LEFT, "0/3 nodes are available: 3 Insufficient memory.")
    assert causes(diagnosed(tmp_path, text)[1]) == []


def test_waiting_pod_without_events_is_unknown(tmp_path: Path) -> None:
    """Neither its scheduler nor its scheduling gates are in the text."""
    code, document, _ = diagnosed(tmp_path, described(events="Events:           <none>\n"))
    assert (code, causes(document)) == (2, [])


def test_nodes_that_the_text_lacks_are_not_judged(tmp_path: Path) -> None:
    """The scheduler knows three nodes, of which one is shown, and the pod's selector matches another."""
    document = diagnosed(tmp_path, f"{UNSCHEDULED}\n\n{DESCRIBED_NODE}")[1]
    assert ("NodeSelectorMatchesNoNode", "job/team/trainer") not in causes(document)


def test_objects_that_the_text_lacks_are_not_missed(tmp_path: Path) -> None:
    """A pod on another node, and a component without the device plugin of the only node."""
    elsewhere = NO_HANDLER.replace("gpu-1/", "gpu-2/").replace(HANDLER, "x")
    toolkit = RUNNING.replace("trainer-0", "nvidia-container-toolkit-daemonset-x8v9k").replace(
        " nvidia.com/gpu:", " cpu:"
    )
    node = DESCRIBED_NODE.replace("  nvidia.com/gpu:  8\n", "").partition("Non-terminated")[0]
    text = f"{elsewhere}\n\n{toolkit}\n\n{node}"

    found = {cause for cause, _ in causes(diagnosed(tmp_path, text)[1])}

    assert found.isdisjoint({"GpuNodeGone", "DevicePluginMissing"})


def test_node_is_judged_by_its_labels_and_condition(tmp_path: Path) -> None:
    without = DESCRIBED_NODE.replace("  nvidia.com/gpu:  8\n", "")
    assert causes(diagnosed(tmp_path, without)[1]) == [("GpusNotOffered", "node/gpu-1")]
    assert causes(diagnosed(tmp_path, DESCRIBED_NODE)[1]) == []


def test_annotation_that_kubectl_cuts_is_named() -> None:
    lines = DESCRIBED_NODE.replace(
        "node.alpha.kubernetes.io/ttl: 0", "hami.io/node-nvidia-register:\n      [..."
    ).splitlines()
    found = read_described(lines)
    assert found is not None
    assert found.raw["metadata"]["cut"] == ["hami.io/node-nvidia-register"]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MEMORY.encode())))
    result = CliRunner().invoke(app, ["diagnose", "--from", "-", "-o", "json"], input=MEMORY)
    assert (result.exit_code, causes(json.loads(result.stdout))) == (1, [("GpuMemoryExhausted", "log")])


SERVED = """$ kubectl get pods
NAME       READY   STATUS             RESTARTS        AGE
llama-x2   0/1     CrashLoopBackOff   8 (2m10s ago)   31m

$ kubectl logs llama-x2
INFO platform cuda
ValueError: (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (11.05 GiB)
RuntimeError: Engine core initialization failed.
"""
KILLED = """LAST SEEN   TYPE      REASON      OBJECT        MESSAGE
3m          Warning   Unhealthy   pod/vllm-0    Startup probe failed: connection refused
2m          Normal    Killing     pod/vllm-0    Container main failed startup probe, will be restarted
"""


SHOP = SERVED.replace("llama", "shop").replace("platform cuda", "listening").replace("KV cache memory", "heap memory")
STOPPED = KILLED.replace("Container main failed startup probe, will be restarted", "Stopping container main")
RUNS = SERVED.replace("0/1     CrashLoopBackOff   8 (2m10s ago)", "1/1     Running            0")


@pytest.mark.parametrize(
    ("text", "healthy", "cause"),
    [
        (SERVED, SHOP, "GpuMemoryExhausted"),
        (SERVED, RUNS, "GpuMemoryExhausted"),
        (KILLED, STOPPED, "LivenessProbeKills"),
        (KILLED, KILLED.replace("vllm-0", "shop-0"), "LivenessProbeKills"),
    ],
)
def test_pod_of_a_row_and_its_log_or_events_is_judged(text: str, healthy: str, cause: str, tmp_path: Path) -> None:
    assert [name for name, _ in causes(diagnosed(tmp_path, text)[1])] == [cause]
    assert causes(diagnosed(tmp_path, healthy)[1]) == []


@pytest.mark.parametrize(
    "prompt", ["$ ", "~ $ ", "~ [1]$ ", "\u276f ", "➜  ~ ", "➜  infra git:(main) ✗ ", "(base) j@Mac Downloads % "]
)
def test_log_belongs_to_the_pod_of_a_row_whose_namespace_only_a_command_names(prompt: str, tmp_path: Path) -> None:
    text = SERVED.replace("logs llama-x2", "logs llama-x2 -n team").replace("$ ", prompt)

    assert causes(diagnosed(tmp_path, text)[1]) == [("GpuMemoryExhausted", "pod/team/llama-x2")]


def test_event_lines_belong_to_the_only_pod_that_is_not_ready(tmp_path: Path) -> None:
    row = "NAME    READY   STATUS    RESTARTS   AGE\npod/vllm-0   0/1   Running   6 (118s ago)   20m\n"
    lines = "  Normal  Killing  25m  kubelet  Container main failed liveness probe, will be restarted\n"

    ready, other = (f"pod/vllm-1   {count}   Running   0   20m\n" for count in ("1/1", "0/1"))

    assert causes(diagnosed(tmp_path, f"{row}{ready}\n{lines}")[1]) == [("LivenessProbeKills", "pod/default/vllm-0")]
    assert causes(diagnosed(tmp_path, f"{row}{other}\n{lines}")[1]) == []


def test_described_probe_is_shown_with_the_deployment_to_change(tmp_path: Path) -> None:
    killing = table(
        "Normal  Killing  2m (x9 over 24m)  kubelet  Container main failed startup probe, will be restarted"
    )
    probe = "    Startup:  http-get http://:8000/health delay=5s timeout=1s period=2s #success=1 #failure=30\n"
    text = described(status="Running", node="gpu-1/10.0.0.7", state=ENDED + probe, events=killing)
    of_deployment = text.replace("app=trainer", "pod-template-hash=5cc5").replace("Job/trainer", "ReplicaSet/llm-5cc5")
    (cause,) = diagnosed(tmp_path, of_deployment.replace("CUDA error: uncorrectable ECC error encountered", ""))[1][
        "causes"
    ]

    assert cause["subject"] == "deployment/team/llm"
    assert "failureThreshold 30 x periodSeconds 2 = 65 s" in str(cause)
    assert ("GpuHardwareFault", "node/gpu-1") in causes(diagnosed(tmp_path, text)[1])


def test_fix_of_the_error_in_a_bare_log_is_shown(tmp_path: Path) -> None:
    (cause,) = diagnosed(tmp_path, "RuntimeError: CUDA error: invalid device ordinal\n")[1]["causes"]

    assert "Ask for as many GPUs" in str(cause)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Failed to allocate device vector A (error code system not yet initialized)!", "FabricNotReady"),
        ("the model's max seq len is larger than the available KV cache memory (11 GiB)", "GpuMemoryExhausted"),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients.", "CollectiveFails"),
        ("No devices were found", "DriverFindsNoGpu"),
        ("RuntimeError: Library libcublas.so.12 is not found or cannot be loaded", "CudaLibraryMissing"),
        ("[carb.graphics-vulkan.plugin] VkResult: ERROR_INCOMPATIBLE_DRIVER", "DriverCapabilityMissing"),
        ("RuntimeError: CUDA error: unrecognized error code", "ProgramFaultOnGpu"),
        ("My vLLM pod: Container tgi failed liveness probe, will be restarted", "LivenessProbeKills"),
        ("kserve ERROR Failed to start model server: integer division or modulo by zero", "GpuNotInjected"),
    ],
)
def test_specific_message_needs_no_other_word_about_gpus(line: str, cause: str, tmp_path: Path) -> None:
    assert [name for name, _ in causes(diagnosed(tmp_path, f"{line}\n")[1])] == [cause]


@pytest.mark.parametrize("name", ["\x01x", "--all", "x`y", "two words"])
def test_node_of_a_kernel_line_is_a_name_or_unknown(name: str, tmp_path: Path) -> None:
    found = causes(diagnosed(tmp_path, f"{described(node=name)}```\n{XID}")[1])
    named = causes(diagnosed(tmp_path, f"{described(node='gpu-1/10.0.0.7')}```\n{XID}")[1])

    assert ("KernelLogReportsFault", "node/NODE") in found
    assert ("KernelLogReportsFault", "node/gpu-1") in named
