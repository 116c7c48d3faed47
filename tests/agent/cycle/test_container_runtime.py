"""A container runtime that is not ready, and its fix, as recorded on the Node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent import quick_agent
from tests.agent.world import StandIn, World
from tests.host.grpc_server import Json, Server, answers_to, serving

pytestmark = pytest.mark.cluster

SOCKET = "run/cri-dockerd.sock"


@pytest.fixture
def reported(short_root: Path) -> Iterator[tuple[World, Server]]:
    """Yield a node whose kubelet uses Docker, and an agent with a cycle per minute that has reported `pass`."""
    with World(short_root / "world", StandIn("node", "p5.48xlarge")) as world:
        world.host.run_kubernetes("docker")
        with serving(world.host.root / SOCKET, dockers_status(ready=True)) as docker:
            world.program = quick_agent.__name__
            world.start()
            world.wait_for_status("pass")
            yield world, docker


def dockers_status(*, ready: bool) -> dict[str, bytes]:
    """Return the answers of cri-dockerd, which reports no handlers."""
    status: Json = {"status": {"conditions": [{"type": "RuntimeReady", "status": ready}]}}
    return answers_to("container-runtime", {"runtime_name": "docker", "runtime_version": "27.3.1"}, status)


def start_cycle(world: World, number: int) -> None:
    """Start a check cycle at once, by an edit of the ConfigMap that does not affect the test."""
    world.configure(MONITOR_TTL=str(3600 + number))


def test_runtime_that_is_not_ready_is_warned_of_until_it_is(reported: tuple[World, Server]) -> None:
    world, docker = reported

    docker.answers = dockers_status(ready=False)
    world.host.container_runtime.start(60)
    start_cycle(world, 1)
    node = world.wait_for_status("warn")
    assert (node.severity, node.taints, [*node.findings]) == ("MONITOR", [], ["RuntimeNotReady"])

    docker.answers = dockers_status(ready=True)
    world.host.restart_kubernetes()
    start_cycle(world, 2)
    assert world.wait_for_status("pass").record["findings"] == []
