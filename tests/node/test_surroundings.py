"""Identity, view and writable paths of the agent's container: claims of the manifest's comments, on a real node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpu_healthcheck.sim.real_node import RealNodeError
from gpu_healthcheck.sim.real_node.running import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.stage import Stage

pytestmark = pytest.mark.real_node

# Made on the node after the pod's start, as a driver that loads late makes its own: the machine's real kernel log.
LATE = "kernel-log-of-the-machine"

# Prints {name: answer or name of the error}.
LOOK = f"""
import errno, glob, json, os

def answer(ask):
    try:
        return ask()
    except OSError as error:
        return errno.errorcode[error.errno]

def text(path):
    with open(path) as file:
        return file.read()

def read_record(path):
    device = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return len(os.read(device, 16384)) > 0
    finally:
        os.close(device)

def write(folder):
    open(folder + "/tried", "w").close()
    os.unlink(folder + "/tried")
    return "written"

def is_kubelet(folder):
    return answer(lambda: text(folder + "/comm")) == "kubelet\\n"

kubelet = next(filter(is_kubelet, glob.glob("/proc/[0-9]*")), "")
print(json.dumps({{
    "status": dict(line.split(":\\t", 1) for line in text("/proc/self/status").splitlines()),
    "late in /dev": answer(lambda: read_record("/dev/{LATE}")),
    "late in /host/dev": answer(lambda: read_record("/host/dev/{LATE}")),
    "late mount": answer(lambda: os.listdir("/host/run/{LATE}")),
    "infiniband": answer(lambda: len(os.listdir("/host/sys/class/infiniband"))),
    "containerd": answer(lambda: text("/host/etc/containerd/config.toml").partition("\\n")[0]),
    "kubelet": answer(lambda: text(kubelet + "/cmdline").split("\\0")),
    "kubelet's root": answer(lambda: bool(os.listdir(kubelet + "/root"))),
    "writes": {{folder: answer(lambda: write(folder)) for folder in (
        "/", "/etc", "/run", "/usr", "/var/tmp", "/etc/gpu-healthcheck", "/host", "/host/etc", "/host/var/lib",
        "/host/run", "/tmp", "/var/lib/gpu-healthcheck",
    )}},
}}))
"""

# Prints the pods of the kubelet's own list, and whether their tolerations are known.
PODS = """
import sys, gpu_healthcheck
sys.path[:0] = gpu_healthcheck.__path__
from pathlib import Path
from gpu_healthcheck.healthcheck.probes.kubelet_pods import read_pods
for uid, pod in read_pods(Path("/host"), runtime_socket="").items():
    print(uid, pod.namespace, pod.name, pod.tolerations is not None)
"""


@pytest.fixture(scope="module")
def late(agent: Stage) -> Iterator[None]:
    """A device and a mount that come when the agent runs already."""
    agent.on_node(f"mknod /dev/{LATE} c 1 11; mkdir /run/{LATE}; mount -t tmpfs tmpfs /run/{LATE}; touch /run/{LATE}/x")
    yield
    agent.on_node(f"rm /dev/{LATE}; umount /run/{LATE}; rmdir /run/{LATE}")


@pytest.fixture(scope="module")
def seen(agent: Stage, late: None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(agent.in_pod("python3", "-c", LOOK).stdout)
    return found


def test_it_is_root_with_every_capability_and_without_seccomp(agent: Stage, seen: dict[str, Any]) -> None:
    of_the_node = agent.on_node("grep CapEff /proc/1/status").split()[1]

    mine = {key: seen["status"][key].split()[0] for key in ("Uid", "CapEff", "Seccomp")}
    assert mine == {"Uid": "0", "CapEff": of_the_node, "Seccomp": "0"}


def test_it_can_write_neither_its_own_root_nor_the_hosts(seen: dict[str, Any]) -> None:
    written = {folder for folder, answer in seen["writes"].items() if answer == "written"}

    # Mounts below the host's root are not covered; only a recursiveReadOnly mount would do it.
    assert written == {"/tmp", "/var/lib/gpu-healthcheck", "/host/run"}
    assert set(seen["writes"].values()) == {"written", "EROFS"}


def test_the_kernels_log_and_a_device_that_comes_later_are_read(seen: dict[str, Any]) -> None:
    assert (seen["late in /dev"], seen["late in /host/dev"]) == (True, True)


def test_later_mount_is_observed(seen: dict[str, Any]) -> None:
    assert seen["late mount"] == ["x"]


def test_sys_and_the_containerd_tree_are_the_hosts(agent: Stage, seen: dict[str, Any]) -> None:
    assert seen["infiniband"] == len(agent.host.efa_names) == 32
    assert seen["containerd"] == "version = 2"


def test_kubelets_process_has_its_arguments_and_root(seen: dict[str, Any]) -> None:
    assert f"--config={FOLDER / 'kubelet.json'}" in seen["kubelet"]
    assert seen["kubelet's root"] is True


def test_its_processes_have_the_hosts_numbers(agent: Stage) -> None:
    pid = agent.pod.pid()

    assert "agent" in agent.in_pod("cat", f"/proc/{pid}/cmdline").stdout.split("\0")


def test_the_kubelet_lists_its_pods_with_their_tolerations(agent: Stage) -> None:
    own = agent.pod.ready()["metadata"]

    printed = agent.in_pod("python3", "-c", PODS).stdout.splitlines()

    assert f"{own['uid']} {own['namespace']} {own['name']} True" in printed


def test_the_child_that_asks_the_driver_is_first_in_line_for_the_oom_killer(agent: Stage) -> None:
    # The brackets keep grep and its shell from finding themselves.
    files = "$(grep -l 'probes.nvml.chil[d]' /proc/[0-9]*/cmdline)"
    scores = f"for file in {files}; do cat ${{file%cmdline}}oom_score_adj; done"

    assert agent.on_node(scores).split() == ["1000"]


def test_nothing_of_ours_lies_in_the_hosts_dev(agent: Stage) -> None:
    assert "termination-log" not in agent.on_node("ls /dev").split()


def test_capabilities_do_not_replace_privileged(agent: Stage, late: None) -> None:
    every = {"capabilities": {"add": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}

    seen = json.loads(agent.run_twin(agent.twin("capable", LOOK, securityContext=every)))

    assert (seen["late in /dev"], seen["late in /host/dev"]) == ("EPERM", "EPERM")
    assert seen["status"]["Seccomp"].strip() == "2"
    assert (seen["infiniband"], seen["kubelet's root"]) == (32, True)


def test_another_user_than_root_reads_no_restricted_log_and_has_no_memory(agent: Stage, late: None) -> None:
    nobody = {"privileged": True, "runAsUser": 65534}

    seen = json.loads(agent.run_twin(agent.twin("nobody", LOOK, securityContext=nobody)))

    restricted = agent.on_node("cat /proc/sys/kernel/dmesg_restrict").strip() == "1"
    assert seen["late in /dev"] == ("EPERM" if restricted else True)
    assert seen["writes"]["/var/lib/gpu-healthcheck"] == "EACCES"


def test_privileged_leaves_no_room_for_capabilities_or_seccomp(agent: Stage) -> None:
    less = {"privileged": True, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}

    seen = json.loads(agent.run_twin(agent.twin("less", LOOK, securityContext=less)))

    of_the_node = agent.on_node("grep CapEff /proc/1/status").split()[1]
    assert {key: seen["status"][key].strip() for key in ("CapEff", "Seccomp")} == {
        "CapEff": of_the_node,
        "Seccomp": "0",
    }


def test_the_api_refuses_privileged_without_escalation(agent: Stage) -> None:
    pod = agent.twin("stricter", "", securityContext={"privileged": True, "allowPrivilegeEscalation": False})

    with pytest.raises(RealNodeError, match="cannot set `allowPrivilegeEscalation` to false and `privileged` to true"):
        agent.run_twin(pod)


def test_the_api_refuses_a_recursively_read_only_mount_that_later_mounts_reach(agent: Stage) -> None:
    pod = agent.twin("stricter", "")
    (host,) = (entry for entry in pod["spec"]["containers"][0]["volumeMounts"] if entry["name"] == "host")
    host["recursiveReadOnly"] = "IfPossible"

    with pytest.raises(RealNodeError, match="may only be specified when mountPropagation is None"):
        agent.run_twin(pod)
