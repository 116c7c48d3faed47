"""HAMi on a node with a missing library, and the fix, as the Node reports them."""

from __future__ import annotations

import pytest

from tests.agent import quick_agent
from tests.agent.conftest import MakeWorld
from tests.agent.world import World

pytestmark = pytest.mark.cluster
LIBRARY = "libvgpu.so.v2.10.0"


def hami_row(world: World, status: str) -> str:
    """Return the record's row for it once the Node has this status."""
    rows = {row["check"]: row["status"] for row in world.wait_for_status(status).record["checks"]}
    return str(rows["8-hami"])


def test_missing_library_warns_until_the_file_is_back(make_world: MakeWorld) -> None:
    world = make_world()
    world.program = quick_agent.__name__
    world.host.install_hami("2.10")
    world.start()
    assert hami_row(world, "pass") == "pass"

    world.host.hami_folder_in_place_of(LIBRARY)
    world.configure(MONITOR_TTL="3601")
    assert hami_row(world, "warn") == "warn"
    node = world.node()
    assert (node.severity, node.taints, [*node.findings]) == ("MONITOR", [], ["HamiLibraryNotInstalled"])

    (world.host.root / f"usr/local/vgpu/{LIBRARY}").rmdir()
    world.host.install_hami("2.10")
    world.configure(MONITOR_TTL="3602")
    assert hami_row(world, "pass") == "pass"
