"""Writes of a verdict whose answers contain changes of another client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.node.node_update import NodeUpdate
from agent.state.agent_state import AgentState
from agent.state.judgement import Judgement
from agent.telemetry import Telemetry
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.connection import connect
from healthcheck.cluster.kubeconfig import Access
from healthcheck.cluster.nodes import Nodes
from healthcheck.memory.findings import Memory
from healthcheck.model import Severity
from healthcheck.node.state import STATUS, NodeState
from sim.api_stand_in import ApiStandIn
from tests.agent.parts import Reports, api_server
from tests.examples import fault, remembers, says, stands

NAME = "gpu-node-1"
MILD = remembers(stands(fault("EfaCountLow", Severity.MONITOR, "node")))


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
    return Judgement(memory, {"gpu-count": says()}, ())
