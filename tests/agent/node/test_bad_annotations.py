"""Skipped annotations of the Node, while one thread reads it and another adds to it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from agent.node.bad_annotations import BadAnnotations
from agent.state.agent_state import AgentState
from agent.telemetry import Telemetry
from healthcheck.model import PREFIX
from healthcheck.node.state import NodeState
from tests.agent.parts import Reports

NODE = NodeState("n", "uid", "1")
A, B = f"{PREFIX}/a", f"{PREFIX}/b"


def test_another_annotation_can_be_skipped_while_the_node_is_read() -> None:
    bad = BadAnnotations(Telemetry(), Reports(AgentState("n")))
    full = replace(NODE, annotations={A: "x", B: "x"})
    bad.skip(full, {A}, ValueError())

    class Read(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            bad.skip(full, {B}, ValueError())
            return super().get(key, default)

    assert bad.without(replace(NODE, annotations=Read({A: "x"}))).annotations == {}
    assert bad.without(full).annotations == {}
