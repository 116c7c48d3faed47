"""Writes of a verdict whose answers contain changes of another client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.agent.node.node_update import NodeUpdate
from gpu_healthcheck.agent.state.agent_state import AgentState, Judgement
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.cluster.errors import Forbidden
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.nodes import Nodes
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Evidence, Severity
from gpu_healthcheck.healthcheck.node.hami import CARDS, CORDON
from gpu_healthcheck.healthcheck.node.state import DEVICE_CORDON, STATUS, UNHEALTHY, NodeState
from gpu_healthcheck.healthcheck.probes.hami import HAMI, Hami
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings
from gpu_healthcheck.healthcheck.settings.reading import Settings
from gpu_healthcheck.sim.api_objects import DEPLOYMENTS, WEBHOOKS
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.agent.parts import Reports, api_server
from tests.examples import UNOBSERVED, active_finding, fault, memory_with, outcome_with
from tests.hami_cluster import NAMESPACE, deployment, registration, webhook

NAME = "gpu-node-1"
MILD = memory_with(active_finding(fault("EfaCountLow", Severity.MONITOR, "node")))


class Edited(Nodes):
    """Nodes of which another client edits one between our write of the Node and that of its condition."""

    api: ApiStandIn
    edit: Mapping[str, Any]

    def patch_conditions(self, name: str, conditions: Sequence[Mapping[str, Any]]) -> NodeState:
        self.api.edit_node(name, dict(self.edit))
        return super().patch_conditions(name, conditions)


@pytest.mark.parametrize(
    ("edit", "is_news"),
    [
        ({"metadata": {"labels": {STATUS: "pass"}}}, True),
        ({"metadata": {"annotations": {"gpu-healthcheck.aws-samples.io/release": "{}"}}}, True),
        ({"metadata": {"annotations": {"gpu-healthcheck.aws-samples.io/evict": "{}"}}}, False),
        ({"metadata": {"labels": {"team": "a"}}}, False),
        ({"metadata": {"labels": {STATUS: "unknown"}}}, False),  # as we wrote it
    ],
)
def test_a_release_in_the_answer_to_the_condition_is_news(
    tmp_path: Path, edit: Mapping[str, Any], *, is_news: bool
) -> None:
    with ApiStandIn(NAME) as api:
        cluster = Cluster(lambda: connect(Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))
        cluster.nodes = nodes = Edited(cluster.connection)
        nodes.api, nodes.edit = api, edit
        state, telemetry = AgentState(NAME), Telemetry()
        state.remember(judged(MILD))
        update = NodeUpdate(api_server(cluster, telemetry), state, Reports(state), telemetry)
        state.news.clear()

        assert update.apply(state.known, update.read())

        assert state.news.is_set() is is_news


def judged(memory: Memory) -> Judgement:
    return Judgement(memory, {"gpu-count": outcome_with()}, ())


class Strict(Nodes):
    """Nodes of a cluster whose admission refuses changes of HAMi's list."""

    def patch(self, name: str, change: Mapping[str, Any]) -> NodeState:
        if change["metadata"]["annotations"].keys() & {CORDON, DEVICE_CORDON}:
            raise Forbidden("patch nodes: 403: an agent may change annotations under P only", "patch", "nodes")
        return super().patch(name, change)


@pytest.mark.parametrize("refused", ["the write", "webhookconfigurations", "deployments"])
def test_where_the_cluster_refuses_cordons_the_node_is_tainted(tmp_path: Path, refused: str) -> None:
    uuid = "GPU-00000000-51e0-4000-8000-00000000000a"
    memory = memory_with(active_finding(fault()), gpus={"0000:53:00.0": {"uuid": uuid}})
    settings = Settings(NodeSettings(device_taints=True))
    with ApiStandIn(NAME) as api:
        api.store.create(WEBHOOKS, "", webhook())
        api.store.create(DEPLOYMENTS, NAMESPACE, deployment())
        api.edit_node(NAME, {"metadata": {"annotations": {CARDS: registration([uuid])}}})
        cluster = Cluster(lambda: connect(Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))
        if refused == "the write":
            cluster.nodes = Strict(cluster.connection)
        else:
            api.fail_with(403, path_part=refused)
        state, telemetry = AgentState(NAME), Telemetry()
        state.configure(settings, memory)
        state.remember(judged(memory))
        state.store_evidence(Evidence({HAMI: Hami(runs=True), NVML: UNOBSERVED}), no_driver=False)
        update = NodeUpdate(api_server(cluster, telemetry), state, Reports(state), telemetry)

        update.slot.start()
        node = update.read()
        assert update.apply(state.known, node)
        assert api.node(NAME)["spec"]["taints"][-1]["key"] == UNHEALTHY
        assert CORDON not in api.node(NAME)["metadata"]["annotations"]

        # The next cycle tries no cordon.
        before = len(api.writes)
        node = update.read()
        assert update.apply(state.known, node)
        assert [write for write in api.writes[before:] if write.path.startswith("/api/v1/nodes")] == []
        assert telemetry.registry.get_sample_value("gpu_healthcheck_device_taints_failed") == 1
        update.slot.end()
