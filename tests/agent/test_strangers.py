"""Attacks on the agent from any host that reaches the node's ports: they take nothing that it needs."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from tests.agent.world import AgentProcess, World
from tests.waiting import GIVE_UP_SECONDS, eventually

IDLE, FAT = 2000, 50
MOST_GROWTH_BYTES = 24 << 20
"""Of its memory. The peers send it 50 MiB."""
HEAD = b"GET /metrics HTTP/1.1\r\n" + b"a: " + b"x" * (1 << 20)


@pytest.fixture
def world(world: World) -> World:
    """Its agents are started as a container's is: none is forked."""
    world.imports = True
    return world


@pytest.fixture
def peers() -> Iterator[ExitStack]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, IDLE + FAT + 1000), hard))
    with ExitStack() as stack:
        yield stack
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(agent: AgentProcess, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", agent.port), timeout=GIVE_UP_SECONDS))


def send_until_given_up(peer: socket.socket) -> None:
    try:
        peer.sendall(HEAD)
    except OSError:
        return


def limit_descriptors(agent: AgentProcess, most: int) -> None:
    process = psutil.Process(agent.process.pid)
    process.rlimit(psutil.RLIMIT_NOFILE, (most, process.rlimit(psutil.RLIMIT_NOFILE)[1]))


def test_thousands_of_connections_block_no_check(quick: World, peers: ExitStack) -> None:
    agent = quick.agent
    limit_descriptors(agent, 256)
    process = psutil.Process(agent.process.pid)
    before, threads = process.memory_info().rss, process.num_threads()
    port = agent.port
    for _ in range(IDLE):
        peers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=GIVE_UP_SECONDS))
    for _ in range(FAT):
        send_until_given_up(connect(agent, peers))

    quick.host.xid(3, 79, "GPU has fallen off the bus.")
    node = quick.wait_for_taint()
    assert node.tainted
    assert not node.record["unobserved"]
    assert agent.get("/healthz")[0] == 200
    assert process.num_threads() <= threads + 2  # a check cycle or a report may be running
    assert process.memory_info().rss - before < MOST_GROWTH_BYTES
    agent.wait_for_looks()
    assert not quick.node().record["unobserved"]


def test_without_file_descriptors_a_new_fault_is_reported_and_nothing_false(quick: World) -> None:
    agent = quick.agent
    eventually(lambda: agent.metric("verdict_pending") == 0)
    saved = quick.memory_file.read_bytes()
    limit_descriptors(agent, 3)  # fewer than it has open

    quick.host.xid(3, 79, "GPU has fallen off the bus.")
    quick.wait_for_taint()
    node = quick.wait(lambda node: node.record["unobserved"])
    assert node.causes == {"ProbeFailed"}
    assert set(node.findings) == {"Xid79"}
    assert quick.memory_file.read_bytes() == saved
    assert agent.running

    limit_descriptors(agent, 1024)
    node = quick.wait(lambda node: not node.record["unobserved"])
    assert set(node.findings) == {"Xid79"}
    assert not quick.events("BadSetting")
    eventually(lambda: quick.memory_file.read_bytes() != saved)
