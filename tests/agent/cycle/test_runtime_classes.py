"""The cluster's RuntimeClasses as the agent reads them: rarely, and in pages.

The read never delays a check cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog.testing

from gpu_healthcheck.agent.check_cycle import LISTED_AGAIN_SECONDS, RuntimeClasses
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.model import Now
from gpu_healthcheck.healthcheck.model.node_facts import PodRuntimeClass
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.sim.api_objects import RUNTIME_CLASSES
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.agent.parts import api_server
from tests.agent.world import World
from tests.waiting import eventually

GPU_NODE = {"pool": "gpu", "zone": "a"}


class Listing:
    """The agent's own list of RuntimeClasses, read from a stand-in, with a clock that a test moves."""

    def __init__(self, api: ApiStandIn) -> None:
        self.api = api
        self.now = 5000.0
        self.telemetry = Telemetry()
        self.state = AgentState("n", now=lambda: Now(datetime.now(UTC), self.now))
        self.classes = RuntimeClasses(api_server(Cluster(connect), self.telemetry), self.state)

    def on(self, labels: dict[str, str]) -> tuple[PodRuntimeClass, ...] | None:
        self.classes.list_when_due()
        return self.expected(labels)

    def expected(self, labels: dict[str, str]) -> tuple[PodRuntimeClass, ...] | None:
        """Return the expectation of a cycle on a node with these labels."""
        self.state.set_node(NodeState("n", labels=labels))
        return self.state.expectation().runtime_classes

    @property
    def times(self) -> int:
        return len([request for request in self.api.requests if "/runtimeclasses" in request.path])

    @property
    def forbidden(self) -> float | None:
        return self.telemetry.registry.get_sample_value("gpu_healthcheck_forbidden", {"resource": "runtimeclasses"})


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listing]:
    with ApiStandIn() as api:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        yield Listing(api)


def test_a_class_is_for_the_nodes_that_its_selector_takes(listing: Listing) -> None:
    listing.api.add_runtime_class("kata", "kata-qemu")
    listing.api.add_runtime_class("nvidia", "nvidia", {"pool": "gpu"})
    listing.api.add_runtime_class("gvisor", "runsc", {"pool": "cpu"})
    listing.api.add_runtime_class("nvidia-b", "nvidia", {"pool": "gpu", "zone": "b"})

    everywhere = PodRuntimeClass("kata", "kata-qemu", for_this_node=False)
    assert listing.on(GPU_NODE) == (everywhere, PodRuntimeClass("nvidia", "nvidia", for_this_node=True))
    assert listing.on({"pool": "cpu"}) == (PodRuntimeClass("gvisor", "runsc", for_this_node=True), everywhere)


def test_a_cluster_without_any_is_not_one_that_nobody_could_ask(listing: Listing) -> None:
    assert listing.expected(GPU_NODE) is None
    assert listing.on(GPU_NODE) == ()


def test_they_are_listed_once_an_hour_or_so(listing: Listing) -> None:
    for seconds, times in [(0.0, 1), (300.0, 1), (LISTED_AGAIN_SECONDS * 0.89, 1), (LISTED_AGAIN_SECONDS * 1.11, 2)]:
        listing.now = 5000.0 + seconds
        listing.on(GPU_NODE)
        assert (seconds, listing.times) == (seconds, times)


def test_a_thousand_and_more_are_read_in_pages_and_the_rest_left_out(listing: Listing) -> None:
    for number in range(1100):
        listing.api.add_runtime_class(f"class-{number:04}", "runc")
    assert len(listing.on(GPU_NODE) or ()) == 1000
    pages = [request.path.partition("limit=")[2].partition("&")[0] for request in listing.api.requests]
    assert pages == ["500"] * 3  # the last was requested while the second was read


def test_last_valid_list_outlives_an_outage_and_is_requested_again_in_the_next_cycle(listing: Listing) -> None:
    listing.api.add_runtime_class("nvidia", "nvidia")
    before = listing.on(GPU_NODE)
    listing.now += 2 * LISTED_AGAIN_SECONDS
    listing.api.fail_with(503)
    assert [listing.on(GPU_NODE) for _ in range(2)] == [before] * 2
    assert listing.times == 3

    listing.api.recover()
    listing.api.store.delete(RUNTIME_CLASSES, "", "nvidia")
    assert listing.on(GPU_NODE) == ()


def test_missing_permission_judges_nothing_and_is_reported_once(listing: Listing) -> None:
    listing.api.fail_with(403)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert listing.on(GPU_NODE) is None
            listing.now += 2 * LISTED_AGAIN_SECONDS
    (fields,) = [line for line in logs if line["log_level"] == "error"]
    assert 'cannot list resource "runtimeclasses" in API group "node.k8s.io" at the cluster scope' in fields["answer"]
    assert listing.forbidden == 1

    listing.api.recover()
    assert (listing.on(GPU_NODE), listing.forbidden) == ((), 0)


def test_the_agent_lists_them_once_at_its_start(quick: World) -> None:
    def listed() -> list[str]:
        return [request.path for request in quick.api.requests if "/runtimeclasses" in request.path]

    eventually(listed)
    looks = quick.agent.metric("looks_total")
    quick.configure(MONITOR_TTL="1000")
    eventually(lambda: quick.agent.metric("looks_total") > looks)
    assert listed() == ["/apis/node.k8s.io/v1/runtimeclasses?limit=500"]
