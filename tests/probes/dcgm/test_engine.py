"""DCGM engine of a node for a diagnostic, and engines that prevent a second one."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.catalog.dcgm import ENGINE_EMBEDDED, ENGINE_UNPROVEN
from gpu_healthcheck.healthcheck.model import UnobservedCause
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import KnownProcesses, Process, are_the_hosts
from gpu_healthcheck.healthcheck.probes.dcgm.engine import Engine, choose_engine, find_engine
from gpu_healthcheck.healthcheck.probes.driver_files import NVIDIA_MAJOR
from gpu_healthcheck.sim.host_services import ALL_CAPABILITIES, Container
from gpu_healthcheck.sim.node import SimulatedNode

OPERATORS, EXPORTERS, TENANTS = (f"{digit * 8}-4e5f-4a6b-8c7d-0123456789ab" for digit in "012")
PODS = {
    OPERATORS: "gpu-operator_nvidia-dcgm-x7k2p",
    EXPORTERS: "gpu-operator_nvidia-dcgm-exporter-9qvtl",
    TENANTS: "team_train-0",
}
NETWORK = "net:[4026532999]"


def start(node: SimulatedNode, pid: int, name: str, uid: str, *, privileged: bool = False) -> None:
    cgroup = f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-containerd-{'f' * 64}.scope"
    container = Container(cgroup, ALL_CAPABILITIES) if privileged else Container(cgroup)
    node.services.start_in_container(pid, name, container)
    (node.root / f"var/log/pods/{PODS[uid]}_{uid}").mkdir(parents=True, exist_ok=True)


def use_gpus(node: SimulatedNode, pid: int) -> None:
    node.services.open_device(pid, NVIDIA_MAJOR, 255, "nvidiactl")


def choose(node: SimulatedNode, host: str = "", *, second_engine: bool = False) -> Engine:
    return choose_engine(node.root, host, second_engine=second_engine)


def of_the_host(node: SimulatedNode, address: str = "127.0.0.1") -> None:
    node.services.start("nv-hostengine", 60.0)
    node.services.listen(node.services.pid_of("nv-hostengine"), address, 5555)


def of_the_host_on_every_address(node: SimulatedNode) -> None:
    of_the_host(node, "0.0.0.0")


def of_the_operator(node: SimulatedNode, *, network: str = NETWORK, privileged: bool = True) -> None:
    start(node, 4242, "nv-hostengine", OPERATORS, privileged=privileged)
    node.services.listen(4242, "0.0.0.0", 5555, network)
    if network:
        table = "  |-- 10.0.3.17\n     /32 host LOCAL\n  |-- 127.0.0.1\n     /32 host LOCAL"
        node.write_value("proc/4242/net/fib_trie", table)


def of_the_operator_where_pods_have_ipv6_alone(node: SimulatedNode) -> None:
    of_the_operator(node)
    (node.root / "proc/4242/net/fib_trie").unlink()
    addresses = (
        "0" * 31 + "1 01 80 10 80 lo",
        "fe80" + "0" * 27 + "1 02 40 20 80 eth0",
        "fd00" + "0" * 27 + "7 02 40 00 80 eth0",
    )
    node.write_value("proc/4242/net/if_inet6", "\n".join(addresses))


def of_the_operator_on_the_hosts_network(node: SimulatedNode) -> None:
    of_the_operator(node, network="")


def of_the_operator_with_its_exporter(node: SimulatedNode) -> None:
    exporter_that_asks_another(node)
    of_the_operator(node)


def exporter(node: SimulatedNode) -> None:
    start(node, 4300, "dcgm-exporter", EXPORTERS)
    use_gpus(node, 4300)


def exporter_with_hidden_files(node: SimulatedNode) -> None:
    start(node, 4300, "dcgm-exporter", EXPORTERS)


def exporter_that_asks_another(node: SimulatedNode) -> None:
    exporter(node)
    node.write_value("proc/4300/environ", "PATH=/bin\0DCGM_REMOTE_HOSTENGINE_INFO=nvidia-dcgm:5555\0")


def exporter_with_another_engine(node: SimulatedNode) -> None:
    exporter(node)
    node.write_value("proc/4300/cmdline", "dcgm-exporter\0-r\0nvidia-dcgm:5555\0")


def of_the_host_without_a_port(node: SimulatedNode) -> None:
    node.services.start("nv-hostengine", 60.0)


def tenants_on_the_hosts_network(node: SimulatedNode) -> None:
    start(node, 4400, "nv-hostengine", TENANTS)
    node.services.listen(4400, "127.0.0.1", 5555)


def privileged_tenants(node: SimulatedNode) -> None:
    start(node, 4400, "nv-hostengine", TENANTS, privileged=True)
    node.services.listen(4400, "0.0.0.0", 5555, NETWORK)
    use_gpus(node, 4400)


def named_as_the_operators_without_its_rights(node: SimulatedNode) -> None:
    of_the_operator(node, privileged=False)
    use_gpus(node, 4242)


def of_another_name_at_the_port(node: SimulatedNode) -> None:
    start(node, 4400, "python3", TENANTS)
    node.services.listen(4400, "127.0.0.1", 5555)


def tenants_without_a_gpu(node: SimulatedNode) -> None:
    start(node, 4400, "nv-hostengine", TENANTS)
    node.services.listen(4400, "0.0.0.0", 5555, NETWORK)


def tenants_with_a_file_called_like_a_gpu(node: SimulatedNode) -> None:
    tenants_without_a_gpu(node)
    node.services.open_file(4400, "/dev/nvidia0")


def of_the_host_with_another_listener(node: SimulatedNode) -> None:
    """Both on one port: which of them answers is not known."""
    of_the_host(node)
    tables = [node.root / f"proc/{pid}/net/tcp" for pid in (1, node.services.pid_of("nv-hostengine"))]
    for table in tables:
        lines = table.read_text().splitlines()
        table.write_text("\n".join([*lines, lines[-1].replace(" 4", " 99", 1).replace("41041", "99999")]))


@pytest.mark.parametrize(
    ("state", "host"),
    [
        (of_the_host, "127.0.0.1:5555"),
        (of_the_host_on_every_address, "127.0.0.1:5555"),
        (of_the_operator, "10.0.3.17:5555"),
        (of_the_operator_where_pods_have_ipv6_alone, "[fd00::7]:5555"),
        (of_the_operator_on_the_hosts_network, "127.0.0.1:5555"),
        (of_the_operator_with_its_exporter, "10.0.3.17:5555"),
    ],
)
def test_a_proven_engine_is_used(node: SimulatedNode, state: Callable[[SimulatedNode], None], host: str) -> None:
    state(node)

    assert (choose(node).host, choose(node).blocked) == (host, None)
    assert choose(node, "dcgm.example.com:5555") == Engine("dcgm.example.com:5555")


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (exporter, ENGINE_EMBEDDED),
        (exporter_with_hidden_files, ENGINE_EMBEDDED),
        (of_the_host_without_a_port, ENGINE_EMBEDDED),
        (privileged_tenants, ENGINE_UNPROVEN),
        (named_as_the_operators_without_its_rights, ENGINE_UNPROVEN),
    ],
)
def test_a_second_engine_starts_only_with_permission(
    node: SimulatedNode, state: Callable[[SimulatedNode], None], cause: UnobservedCause
) -> None:
    state(node)
    blocked = choose(node).blocked

    assert blocked is not None
    assert blocked.cause == cause
    assert choose(node, second_engine=True) == Engine()


@pytest.mark.parametrize(
    "state", [tenants_on_the_hosts_network, of_another_name_at_the_port, of_the_host_with_another_listener]
)
def test_dcgmi_never_connects_to_an_unproven_engine_by_default(
    node: SimulatedNode, state: Callable[[SimulatedNode], None]
) -> None:
    state(node)

    for text in (False, True):
        blocked = choose(node, second_engine=text).blocked
        assert blocked is not None
        assert blocked.cause == ENGINE_UNPROVEN


@pytest.mark.parametrize(
    "state",
    [
        exporter_that_asks_another,
        exporter_with_another_engine,
        tenants_without_a_gpu,
        tenants_with_a_file_called_like_a_gpu,
        SimulatedNode.hide_host_processes,
    ],
)
def test_without_an_engine_on_its_gpus_a_node_is_tested_by_one_of_our_own(
    node: SimulatedNode, state: Callable[[SimulatedNode], None]
) -> None:
    state(node)

    assert choose(node) == Engine()


@pytest.mark.parametrize(
    ("family", "address", "host"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1:{}"),
        (socket.AF_INET, "0.0.0.0", "127.0.0.1:{}"),
        (socket.AF_INET6, "::", "127.0.0.1:{}"),
        (socket.AF_INET6, "::1", "[::1]:{}"),
    ],
)
def test_kernel_tables_prove_an_unshared_socket(family: socket.AddressFamily, address: str, host: str) -> None:
    root = Path("/")
    if not are_the_hosts(root):
        pytest.skip("the processes of this machine can't be seen from here")
    with listening(family, address) as (own, port):
        found = KnownProcesses((), engines=(Process(own, "nv-hostengine", ()),))
        assert find_engine(root, found) == Engine(host.format(port), own)
        with listening(family, address, port):
            assert find_engine(root, found).host == ""


@contextmanager
def listening(family: socket.AddressFamily, address: str, port: int = 0) -> Iterator[tuple[int, int]]:
    """Yield pid and port of a process with this one socket; by default on a port that no other test has."""
    words = [sys.executable, "-c", _LISTENS, str(int(family)), address, str(port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()


_LISTENS = """
import socket, sys
family, address, port = socket.AddressFamily(int(sys.argv[1])), sys.argv[2], int(sys.argv[3])
other, loopback = (socket.AF_INET, "127.0.0.1") if family == socket.AF_INET6 else (socket.AF_INET6, "::1")
while True:
    server = socket.create_server((address, port), family=family, reuse_port=True)
    with socket.socket(other) as client:
        if port or client.connect_ex((loopback, server.getsockname()[1])):
            break
print(server.getsockname()[1], flush=True)
while True:
    server.accept()
"""
