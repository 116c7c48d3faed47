"""Worlds for the agent: each with a node, a cluster and a folder of its own."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.agent.world import StandIn, World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class MakeWorld(Protocol):
    def __call__(self, name: str = ..., *, instance_type: str = ..., labelled: str = ...) -> World: ...


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    with ExitStack() as worlds:

        def make(name: str = "gpu-node-1", *, instance_type: str = "p5.48xlarge", labelled: str = "") -> World:
            """A machine of that type, whose Node is labelled so, or as something else."""
            cluster = StandIn(name, labelled or instance_type)
            return worlds.enter_context(World(tmp_path / f"world-{name}", cluster, instance_type))

        yield make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A healthy p5.48xlarge, no agent yet."""
    return make_world()


@pytest.fixture
def watched(world: World) -> World:
    """The same, once its agent said `pass`."""
    world.start()
    world.wait_for_status("pass")
    return world
