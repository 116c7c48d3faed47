"""`verify`'s report on deep diagnostics, from the records of the Nodes."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest

from cli.verify import Verification, engine_answers, show
from healthcheck.host.console import Screen
from healthcheck.node.state import RESULTS, NodeState


def node(name: str, **inventory: Any) -> NodeState:
    return NodeState(name, "u", "1", annotations={RESULTS: json.dumps({"status": "pass", "inventory": inventory})})


def answers(*nodes: NodeState) -> list[Verification]:
    return list(engine_answers(nodes))


def test_nodes_with_an_unusable_engine_are_listed_with_advice() -> None:
    (found,) = answers(*(node(name, dcgm={"cause": "DcgmEngineEmbedded"}) for name in ("b", "a")), node("c"))

    assert (found.about, found.holds) == ("deep tests", False)
    assert found.said.startswith("left out on a, b: DcgmEngineEmbedded. Run one engine with an address on the node: ")
    assert "dcgm.enabled=true" in found.said
    assert "DCGM_BESIDE_EXPORTER" in found.said


def test_on_a_narrow_terminal_no_name_is_broken() -> None:
    names = [f"ip-10-0-123-{number}.ap-southeast-2.compute.internal" for number in range(5)]
    screen = Screen(file=StringIO(), force_terminal=True, color_system=None, width=80)
    show(answers(*(node(name, dcgm={"cause": "DcgmEngineEmbedded"}) for name in names)), screen)

    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("deep tests  lacking  left out on ")
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("dcgm", [{"host": "127.0.0.1:5555"}, {}, None, "x"])
def test_a_node_with_a_proven_engine_or_none_lacks_nothing(dcgm: object) -> None:
    assert answers(node("a", dcgm=dcgm), NodeState("b", "u", "1")) == []
