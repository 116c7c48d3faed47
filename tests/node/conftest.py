"""The node that the story plays on: brought up once, taken down however the story ends."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpu_healthcheck.sim.node import SimulatedNode
from gpu_healthcheck.sim.real_node import RealNode, images, needs
from tests.node.leftovers import traces
from tests.node.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """A healthy p5.48xlarge that is Ready, our image in its containerd, nothing applied; afterwards no trace of it."""
    if reason := needs.missing():
        if os.environ.get("CI") and not needs.unsuited():
            pytest.fail(f"NOT TESTED on a real node: {reason}")
        pytest.skip(f"NOT TESTED on a real node: {reason}")
    image = images.ours()
    before = traces()
    # Not where pytest has its own, which may be /dev/shm: the node has a /dev of its own.
    with (
        tempfile.TemporaryDirectory(prefix="gpu-healthcheck-host-") as folder,
        SimulatedNode.create(Path(folder) / "gpu-node-1") as host,
        RealNode(host.root) as node,
    ):
        node.load(image)
        yield Stage(host, node)
    assert traces() - before == set()


@pytest.fixture(scope="session")
def agent(stage: Stage) -> Stage:
    """The same with our manifests applied. Modules that come after the story share it."""
    if stage.broke_off:
        stage.boot_again()  # repairs the state of the story
    stage.install()
    return stage
