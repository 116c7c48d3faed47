"""A deep test beyond the container's memory dies, and the agent next to it does not notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpu_healthcheck.sim.real_node.images import OURS
from tests.overlays import over_the_manifests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.stage import Stage

pytestmark = pytest.mark.real_node

KILLS = "cat /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null || cat /sys/fs/cgroup/memory.events"  # cgroup v1, v2
SLIM = f"{OURS}-slim"

# Through the product's one door to child processes, in the agent's own container. The parent is the larger one when
# memory ends: going by size alone the kernel would take it.
DEEP_TEST = """
import sys, gpu_healthcheck
sys.path[:0] = gpu_healthcheck.__path__
from gpu_healthcheck.healthcheck.host.command import Child, ChildError
held = b"x" * (90 << 20)
grow = "import sys; sys.stdin.readline(); hoard = []\\nwhile True: hoard.append(b'x' * (8 << 20))"
child = Child((sys.executable, "-c", grow))
try:
    child.ask("begin", 60)
except ChildError as error:
    print(error)
"""


@pytest.fixture
def slim(agent: Stage) -> Iterator[Stage]:
    """The agent under the component's limit of 192 MiB."""
    agent.node.run("ctr", "--namespace=k8s.io", "images", "tag", "--force", OURS, SLIM)
    before = agent.pod.ready()["metadata"]["uid"]
    agent.node.kubectl("apply", "-k", over_the_manifests("slim-agent", agent.node.folder / "slim-agent"))
    agent.pod.ready(other_than=before)
    yield agent
    agent.node.kubectl("apply", "-f", agent.node.manifests)
    agent.wait_for_rollout()


def test_the_deep_test_is_killed_and_the_agent_runs_on(slim: Stage) -> None:
    before = slim.pod.ready()
    assert before["spec"]["containers"][0]["resources"]["limits"]["memory"] == "192Mi"

    message = slim.in_pod("python3", "-c", DEEP_TEST).stdout

    assert message == "the child was ended by SIGKILL\n"
    now = slim.pod.ready()["status"]["containerStatuses"][0]
    assert (now["containerID"], now["restartCount"]) == (before["status"]["containerStatuses"][0]["containerID"], 0)
    assert "oom_kill 1" in slim.in_pod("sh", "-c", KILLS).stdout.splitlines()
