"""Label selectors by table, and the same table answered by a real kube-apiserver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote

import pytest

from gpu_healthcheck.healthcheck.node.label_selector import parse_selector
from gpu_healthcheck.sim.control_plane import ControlPlane

NODES: Mapping[str, Mapping[str, str]] = {
    "bare": {},
    "empty": {"pool": ""},
    "a": {"pool": "a", "example.com/team": "research"},
    "b": {"pool": "b", "in": "x"},
    "spot": {"pool": "a", "spot": "true", "Upper_case.1": "V-1.x_y"},
}
SELECTORS = {
    "pool": {"empty", "a", "b", "spot"},
    "!pool": {"bare"},
    " ! pool ": {"bare"},
    "pool=a": {"a", "spot"},
    "pool==a": {"a", "spot"},
    "pool = a , !spot": {"a"},
    "pool=": {"empty"},
    "pool!=": {"bare", "a", "b", "spot"},
    "pool!=a": {"bare", "empty", "b"},
    "pool in (a,b)": {"a", "b", "spot"},
    "pool in( a , b )": {"a", "b", "spot"},
    "pool in ()": {"empty"},
    "pool in (,b)": {"empty", "b"},
    "pool notin (a)": {"bare", "empty", "b"},
    "pool notin (a,)": {"bare", "b"},
    "in": {"b"},
    "in in (x)": {"b"},
    "in=x,pool=b": {"b"},
    "example.com/team=research": {"a"},
    "example.com/team=research,pool=b": set(),
    "Upper_case.1=V-1.x_y": {"spot"},
    "pool=a,pool=b": set(),
    "upper_case.1": set(),
}
INVALID = (
    *(",", "pool=a,", ",pool", "pool=a pool=b", "pool a", "pool in", "pool in a", "pool in (a", "pool in a)"),
    *("pool in (a b)", "pool=a=b", "pool=/", "!pool=a", "!!pool", "!", "=a", "-pool", "pool-", "pool=-a", "pool=a-"),
    *("/pool", "a/b/c", "Example.com/team", "a..b/c", "pool=\u00e9", "p\u00f6ol", "pool ~ a", "(pool)", "pool=(a)"),
    *("a" * 64, f"pool={'a' * 64}", f"{'a' * 254}/b", "pool not in (a)", "pool IN (a)", "pool=a;spot"),
)
STRICTER = ("", " ", "size > 1", "size<4", "pool=\x00")
"""Refused here alone: no requirement, which selects every node, numeric comparison, and NUL as the end."""


def selected(selector: str) -> set[str]:
    expressions = parse_selector(selector)
    return {
        name
        for name, labels in NODES.items()
        if all(expression.takes(labels.get(expression.key)) for expression in expressions)
    }


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_selector_matches_the_labels_that_it_requires(selector: str) -> None:
    assert selected(selector) == SELECTORS[selector]


@pytest.mark.parametrize("selector", [*INVALID, *STRICTER])
def test_an_invalid_selector_is_refused(selector: str) -> None:
    with pytest.raises(ValueError, match=r"is no label selector\Z"):
        parse_selector(selector)


@pytest.mark.parametrize(
    "selector",
    ["a," * 500_000, "(" * 1_000_000, "a in (" + "b," * 500_000, "!" * 1_000_000, " " * 1_000_000, "a" * 1_000_000],
)
def test_a_selector_of_a_megabyte_is_refused_with_a_short_message(selector: str) -> None:
    with pytest.raises(ValueError, match="is no label selector") as refused:
        parse_selector(selector)

    assert len(str(refused.value)) < 100


@pytest.mark.cluster
def test_kube_apiserver_selects_the_same_nodes(installed: ControlPlane) -> None:
    group = {"selectors": "yes"}
    for name, labels in NODES.items():
        installed.create_node(f"selector-{name}", labels={**labels, **group})
    answers = {}
    for selector in (*SELECTORS, *INVALID):
        query = quote(f"{selector},selectors=yes")
        answer = installed.request("GET", f"/api/v1/nodes?labelSelector={query}")
        found = {entry["metadata"]["name"].removeprefix("selector-") for entry in answer.body.get("items", ())}
        answers[selector] = found if answer.status == 200 else answer.status

    assert answers == {**SELECTORS, **dict.fromkeys(INVALID, 400)}, json.dumps(answers, default=sorted)
