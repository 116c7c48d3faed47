"""GPUs by their user, on terminals of any width: no name is truncated."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.text import Text

from cli.output.allocation_table import page
from diagnosis.answers.allocation import allocation
from healthcheck.host.console import Screen
from healthcheck.node.state import UNHEALTHY
from tests.diagnosis.states import node, pod, snapshot

NODE, POD = "ip-10-0-123-45.us-west-2.compute.internal", "distributed-training-worker-0-of-64"


@pytest.mark.parametrize(("width", "begins"), [(60, f"{NODE}: 8 GPUs, "), (80, f"{NODE}: 8 GPUs, "), (200, "Node ")])
def test_names_are_whole_on_a_terminal_of_any_width(width: int, begins: str) -> None:
    screen = Screen(file=StringIO(), width=width)
    allocated = allocation(snapshot(node(NODE), pod(POD, 6, on=NODE)))

    for part in page(allocated, screen):
        screen.print(part, soft_wrap=isinstance(part, Text))

    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith(begins)
    assert f"team/{POD} 6" in text
    assert "2 free" in text or " 6     2 " in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


@pytest.mark.parametrize("width", [80, 300])
def test_a_node_that_takes_no_new_pods_says_why(width: int) -> None:
    taint = {"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}
    screen = Screen(file=StringIO(), width=width)
    for part in page(allocation(snapshot(node(NODE, taints=[taint]), node("b"), pod(POD, 6, on=NODE))), screen):
        screen.print(part, soft_wrap=isinstance(part, Text))

    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "our taint unhealthy" in text
    assert "8 of 16 free" in text
