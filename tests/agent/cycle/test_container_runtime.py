"""A container runtime that can't start GPU containers, and its fix, as recorded on the Node."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.container_runtime import NVIDIA_V3, RUNC_V3, STANDARD_FILE, handler
from tests.agent import quick_agent
from tests.agent.world import StandIn, World
from tests.host.grpc_server import Json, Server, answers_to, serving

pytestmark = pytest.mark.cluster

WITH_NVIDIA = f"version = 3\n{RUNC_V3}{NVIDIA_V3}"
WITHOUT = f"version = 3\n{RUNC_V3}"
WITH_KATA = WITH_NVIDIA + handler('plugins."io.containerd.cri.v1.runtime"', "kata")


@pytest.fixture
def loaded(short_root: Path) -> Iterator[tuple[World, Server]]:
    """Yield a node with an answering containerd, and an agent with a cycle per minute that has reported `pass`."""
    with World(short_root / "world", StandIn("node", "p5.48xlarge")) as world:
        world.host.put_file(STANDARD_FILE, WITH_NVIDIA)
        with serving(world.host.root / "run/containerd/containerd.sock", runs_with("runc", "nvidia")) as containerd:
            world.program = quick_agent.__name__
            world.start()
            world.wait_for_status("pass")
            yield world, containerd


def runs_with(*handlers: str) -> dict[str, bytes]:
    runtimes = {name: {"runtimeType": "io.containerd.runc.v2"} for name in handlers}
    config = {"containerd": {"defaultRuntimeName": "runc", "runtimes": runtimes}, "enableCDI": True}
    status: Json = {
        "status": {"conditions": [{"type": "RuntimeReady", "status": True}]},
        "info": [{"key": "config", "value": json.dumps(config)}],
    }
    return answers_to("container-runtime", {"runtime_name": "containerd", "runtime_version": "v2.1.4"}, status)


def has_one_look(world: World, number: int) -> None:
    """Start a check cycle at once, by an edit of the ConfigMap that does not affect the test.

    The next regular cycle would start within a minute.
    """
    world.configure(MONITOR_TTL=str(3600 + number))


def test_one_that_lost_nvidias_handler_is_warned_of_until_it_has_it_again(loaded: tuple[World, Server]) -> None:
    world, containerd = loaded

    world.host.put_file(STANDARD_FILE, WITHOUT)
    containerd.answers = runs_with("runc")
    world.host.container_runtime.start(60)
    has_one_look(world, 1)
    node = world.wait_for_status("warn")
    assert (node.severity, node.taints, [*node.findings]) == ("MONITOR", [], ["NvidiaRuntimeMissing"])

    world.host.put_file(STANDARD_FILE, WITH_NVIDIA)
    containerd.answers = runs_with("runc", "nvidia")
    world.host.restart_kubernetes()
    assert healed(world, 2) == []


def test_an_edit_that_nobody_loaded_is_warned_of_until_the_runtime_is_restarted(loaded: tuple[World, Server]) -> None:
    world, containerd = loaded

    world.host.put_file(STANDARD_FILE, WITH_KATA)
    has_one_look(world, 1)
    node = world.wait_for_status("warn")
    assert [*node.findings] == ["RuntimeConfigNotLoaded"]
    assert f"/{STANDARD_FILE}, line 12: kata is defined" in node.findings["RuntimeConfigNotLoaded"]["detail"]

    containerd.answers = runs_with("runc", "nvidia", "kata")
    world.host.restart_kubernetes()
    assert healed(world, 2) == []


def healed(world: World, number: int) -> list[Json]:
    """Return the findings after one cycle since the fix and the cycle that it requested itself."""
    mended = time.monotonic()
    has_one_look(world, number)
    node = world.wait_for_status("pass")
    print(
        f"\nfrom the mending, and an edit that asks for a look, to the node's `pass`: {time.monotonic() - mended:.1f} s"
    )
    findings: list[Json] = node.record["findings"]
    return findings
