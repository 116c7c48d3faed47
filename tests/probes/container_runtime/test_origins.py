"""Origin of a process: a process in a pod neither adds nor hides a service of the node, whatever its name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.model import Host
from gpu_healthcheck.healthcheck.probes.container_runtime import processes
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import read_container_runtime
from gpu_healthcheck.healthcheck.probes.container_runtime.origins import Origin
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import FABRIC_MANAGER, IMEX, find
from gpu_healthcheck.healthcheck.probes.services import Service, Uncounted, read_services
from gpu_healthcheck.sim.host_services import ALL_CAPABILITIES, Container
from gpu_healthcheck.sim.node import SimulatedNode

UID, ID = "0b0a6c5e-1c2d-4e3f-8a9b-0123456789ab", "4f" * 32
SLICED = UID.replace("-", "_")
POD = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICED}.slice/cri-containerd-{ID}.scope"
DRIVERS_ROOT = "0:77"
DRIVER = Container(POD, ALL_CAPABILITIES, device=DRIVERS_ROOT)
OTHER_USERS = "user:[4026532999]"
IN_CONTAINERS = [
    POD,
    f"0::/kubepods.slice/kubepods-pod{SLICED}.slice/crio-{ID}.scope",
    f"0::/kubepods/besteffort/pod{UID}/{ID}",
    f"0::/kubepods/pod{UID.replace('-', '')}/{ID}",
    f"11:memory:/kubepods/burstable/pod{UID}/{ID}\n10:cpuset:/\n1:name=systemd:/kubepods/burstable/pod{UID}/{ID}\n0::/",
    f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/cri-containerd-{ID}.scope",
    f"0::/../../kubepods-besteffort.slice/kubepods-besteffort-pod{SLICED}.slice/cri-containerd-{ID}.scope",
    f"0::/../../pod{UID}/{ID}",
    f"0::/../cri-containerd-{ID}.scope",
    f"0::/kubepods/besteffort/pod{UID}/{ID}/system.slice/nvidia-fabricmanager.service",
    f"0::/system.slice/docker-{ID}.scope",
    f"0::/docker/{ID}",
    f"0::/docker/{ID} (deleted)",
    f"0::/machine.slice/libpod-{ID}.scope/container",
    "0::/machine.slice/machine-qemu.scope",
    "0::/lxc.payload.training/init.scope",
    f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
]
OF_THE_HOST = [
    "",
    "0::/",
    "0::/system.slice/nvidia-fabricmanager.service",
    "0::/../../../../system.slice/nvidia-fabricmanager.service",
    "12:pids:/system.slice/nvidia-fabricmanager.service\n1:name=systemd:/system.slice/nvidia-fabricmanager.service\n0::/",
    "0::/podruntime/kubelet",
    "0::/system.slice/snap.kubelet-eks.daemon.service",
    "0::/runtime.slice/containerd.service",
]
NAMES = st.sampled_from([FABRIC_MANAGER, IMEX, "containerd", "kubelet", "crio", "dockerd", "k3s-server"])


def origin(node: SimulatedNode, container: Container, name: str = FABRIC_MANAGER) -> Origin:
    """Of that one; it counts as in a container where it is not among the processes that may be the node's."""
    node.services.start_in_container(5000, name, container)
    return next((process.origin for process in find(node.root).processes if process.pid == 5000), Origin.CONTAINER)


@pytest.mark.parametrize("cgroup", IN_CONTAINERS)
def test_a_process_in_a_container_is_not_the_nodes(node: SimulatedNode, cgroup: str) -> None:
    assert origin(node, Container(cgroup)) is Origin.CONTAINER
    assert origin(node, Container(cgroup, ALL_CAPABILITIES)) is Origin.PRIVILEGED
    assert origin(node, Container(cgroup, ALL_CAPABILITIES, OTHER_USERS)) is Origin.CONTAINER


@pytest.mark.parametrize("cgroup", OF_THE_HOST)
def test_a_process_outside_of_containers_is_the_nodes(node: SimulatedNode, cgroup: str) -> None:
    assert origin(node, Container(cgroup)) is Origin.HOST


@pytest.mark.parametrize("inside", ["", "/system.slice/containerd.service", "/kubelet.slice/kubelet.service"])
@pytest.mark.parametrize("line", ["0::/docker/{}", "9:name=systemd:/system.slice/docker-{}.scope"])
def test_where_the_node_is_a_container_itself_only_those_on_it_count_as_contained(
    node: SimulatedNode, line: str, inside: str
) -> None:
    own = line.format(ID)
    node.write_value("proc/1/cgroup", f"{own}/init.scope")

    assert origin(node, Container(own + inside)) is Origin.HOST
    assert origin(node, Container(f"{own}/kubelet/kubepods/pod{UID}/{'ab' * 32}")) is Origin.CONTAINER
    assert origin(node, Container(line.format("ab" * 32) + inside)) is Origin.CONTAINER


def test_the_fabric_manager_of_the_driver_container_is_the_nodes(node: SimulatedNode) -> None:
    node.stop_fabric_manager()
    node.services.show_driver_root(DRIVERS_ROOT)
    node.services.start_in_container(5000, FABRIC_MANAGER, DRIVER)

    assert read_services(Host(node.root)).find(FABRIC_MANAGER) == Service(FABRIC_MANAGER, 5000, 3630.0)


@pytest.mark.parametrize(
    ("container", "where"),
    [
        (Container(POD, device=DRIVERS_ROOT), "in containers"),
        (Container(POD, ALL_CAPABILITIES, OTHER_USERS, DRIVERS_ROOT), "in containers"),
        (Container(POD, ALL_CAPABILITIES), "in privileged containers, none of them the driver's"),
    ],
)
def test_driver_root_or_capabilities_alone_are_not_the_driver_container(
    node: SimulatedNode, container: Container, where: str
) -> None:
    node.stop_fabric_manager()
    node.services.show_driver_root(DRIVERS_ROOT)
    node.services.start_in_container(5000, FABRIC_MANAGER, container)

    seen = read_services(Host(node.root))

    assert seen.find(FABRIC_MANAGER) is None
    assert seen.uncounted == (Uncounted(FABRIC_MANAGER, 1, where, unsure="privileged" in where),)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=st.booleans(), decoys=st.lists(st.tuples(NAMES, st.sampled_from(IN_CONTAINERS)), max_size=6))
def test_names_of_processes_in_pods_change_nothing(
    node: SimulatedNode, runs: bool, decoys: list[tuple[str, str]]
) -> None:
    if runs:
        node.start_fabric_manager()
    else:
        node.stop_fabric_manager()
    before = everything(node)
    for pid, (name, cgroup) in enumerate(decoys, 3):
        node.services.start_in_container(pid, name, Container(cgroup))
        (node.root / f"proc/{pid}/cmdline").write_bytes(b"containerd\0--config=/tmp/mine.toml\0")

    try:
        assert everything(node) == before
        assert not read_services(Host(node.root)).is_unsure(FABRIC_MANAGER)
    finally:
        for pid, _ in enumerate(decoys, 3):
            shutil.rmtree(node.root / f"proc/{pid}")


def everything(node: SimulatedNode) -> tuple[object, ...]:
    host = Host(node.root)
    runtime = read_container_runtime(host)
    return find(node.root).processes, read_services(host).running, runtime.used, runtime.kubelet, runtime.known_from


def test_any_number_of_processes_in_pods_hides_nothing(node: SimulatedNode) -> None:
    for pid in range(3, 3 + processes.MOST + 50):
        node.services.start_in_container(pid, FABRIC_MANAGER, Container(POD))

    seen = read_services(Host(node.root))

    assert seen.find(FABRIC_MANAGER) == Service(FABRIC_MANAGER, 1041, 3600.0)
    assert seen.uncounted == (Uncounted(FABRIC_MANAGER, processes.MOST + 50, "in containers"),)


def test_too_many_processes_of_a_name_are_no_absence(node: SimulatedNode) -> None:
    node.stop_fabric_manager()
    for pid in range(3, 3 + processes.MOST + 1):
        node.services.start_in_container(pid, FABRIC_MANAGER, Container(POD, ALL_CAPABILITIES))
    node.services.start(IMEX, 100.0)

    seen = read_services(Host(node.root))

    assert (seen.is_unsure(FABRIC_MANAGER), seen.find(IMEX) is not None) == (True, True)


# --- real processes

HIERARCHIES = [one for one in map(Path, ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")) if (one / "cgroup.procs").is_file()]
WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"]
WITH_USERS_OF_ITS_OWN = ["unshare", "--user", "--map-root-user"]


@pytest.fixture
def real_pod() -> Iterator[Path]:
    """A control group as the kubelet makes them."""
    if not HIERARCHIES or not os.access(HIERARCHIES[0] / "cgroup.procs", os.W_OK):
        pytest.skip("needs root, and control groups that can be written")
    pod = HIERARCHIES[0] / f"kubepods-pod{SLICED}.slice"
    try:
        pod.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    yield pod
    pod.rmdir()


@pytest.mark.parametrize("rights", [WITHOUT_RIGHTS, WITH_USERS_OF_ITS_OWN], ids=["unprivileged", "own users"])
def test_a_real_process_in_a_pod_is_distinguished_from_the_nodes(
    real_pod: Path, tmp_path: Path, rights: list[str]
) -> None:
    """Without rights, and with all of them in a user namespace of its own."""
    program = tmp_path / "containerd"
    program.symlink_to(sys.executable)
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    joined = f'echo $$ > {real_pod}/cgroup.procs && exec "$@"'
    command = ["sh", "-c", joined, "sh", *rights, str(program), "-I", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.skip(f"{rights[0]} is not to be had")
        found = find(Path("/"))
        process.communicate()

    hidden = rights is WITH_USERS_OF_ITS_OWN and not os.access("/proc/1/ns/user", os.R_OK)
    assert [one.origin for one in found.processes if one.pid == process.pid] == ([Origin.PRIVILEGED] if hidden else [])
    assert hidden or found.others["containerd"] >= 1
