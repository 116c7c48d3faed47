"""Worlds for the agent: each with a node, a cluster and a folder of its own."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.agent.stories import HANG, STORIES, Story
from tests.agent.world import StandIn, World
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class MakeWorld(Protocol):
    def __call__(self, name: str = ..., *, instance_type: str = ..., labelled: str = ...) -> World: ...


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    with ExitStack() as worlds:

        def make(name: str = "gpu-node-1", *, instance_type: str = "p5.48xlarge", labelled: str = "") -> World:
            """Return a machine of that type, with a Node that is labelled so, or differently."""
            cluster = StandIn(name, labelled or instance_type)
            return worlds.enter_context(World(tmp_path / f"world-{name}", cluster, instance_type))

        yield make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A healthy p5.48xlarge, no agent yet."""
    return make_world()


@pytest.fixture
def watched(world: World) -> World:
    """Return the world after its agent has reported `pass` and created its Lease."""
    world.start()
    world.wait_for_status("pass")
    eventually(world.cluster.lease)
    return world


@pytest.fixture
def quick(world: World) -> World:
    """Return the same world for faults that only a later cycle shows."""
    world.hurry()
    world.start()
    world.wait_for_status("pass")
    eventually(world.cluster.lease)
    return world


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Story, Future[None]]]:
    folder = tmp_path_factory.mktemp("stories")

    def live(story: Story, name: str) -> None:
        with World(folder / name, StandIn(name, "p5.48xlarge")) as world:
            world.configure(CHECK_INTERVAL="10")
            if story in HANG:
                world.give_up_soon()
            world.start()
            world.wait_for_status("pass")
            eventually(world.cluster.lease)
            story(world)

    with ThreadPoolExecutor(len(STORIES)) as threads:
        yield {story: threads.submit(live, story, f"node-{number}") for number, story in enumerate(STORIES)}


@pytest.fixture(scope="session", autouse=True)
def _begin_the_stories(request: pytest.FixtureRequest) -> None:
    """Early, where any test of this run will ask how they ended; in a process of their own they need no head start."""
    if not hasattr(request.config, "workerinput") and any(
        "stories" in getattr(test, "fixturenames", ()) for test in request.session.items
    ):
        request.getfixturevalue("stories")
