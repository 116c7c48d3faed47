"""What is set aside, while one thread reads it and another adds to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agent.set_aside import SetAside
from healthcheck.model import PREFIX
from healthcheck.node.state import NodeState
from healthcheck.telemetry import Telemetry

NODE = NodeState("n", "uid", "1")
A, B = f"{PREFIX}/a", f"{PREFIX}/b"


def test_another_annotation_can_be_set_aside_while_the_node_is_read() -> None:
    aside = SetAside(Telemetry(), lambda *_: None)
    full = replace(NODE, annotations={A: "x", B: "x"})
    aside.put(full, {A}, ValueError())

    class Read(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            aside.put(full, {B}, ValueError())
            return super().get(key, default)

    assert aside.without(replace(NODE, annotations=Read({A: "x"}))).annotations == {}
    assert aside.without(full).annotations == {}
