"""Owner of a cordon, and the time to lift it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.cluster.nodes import node_state
from gpu_healthcheck.healthcheck.deep.claim import RunKind
from gpu_healthcheck.healthcheck.node.state import CORDONED_BY, RUN, FieldManager, NodeState
from gpu_healthcheck.healthcheck.operations.drain import cordon, cordoned_by, lift, why_kept

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
US, PERSON = FieldManager("gpu-healthcheck", NOW), FieldManager("kubectl", NOW)
OURS = NodeState(
    "n",
    resource_version="7",
    annotations={CORDONED_BY: "gpu-quarantine-n", "team": "x"},
    cordoned=True,
    cordon_managers=(US,),
    mark_managers=(US,),
)
PERSONS = replace(OURS, annotations={}, cordon_managers=(PERSON,))
STALE = replace(OURS, cordoned=False, cordon_managers=())
"""A person uncordoned it; kubectl leaves the mark."""
AGAIN = replace(OURS, cordon_managers=(PERSON,))
"""... and cordoned it later."""


def under(kind: RunKind, until: timedelta) -> NodeState:
    run = {"kind": kind.value, "holder": "gpu-quarantine-n", "until": (NOW + until).isoformat()}
    return replace(OURS, annotations={**OURS.annotations, RUN: json.dumps(run)})


@pytest.mark.parametrize(
    ("node", "by"),
    [
        (OURS, "gpu-quarantine-n"),
        (replace(OURS, cordon_managers=()), ""),
        (replace(OURS, cordon_managers=(), mark_managers=()), ""),
        (replace(OURS, mark_managers=()), ""),
        (replace(OURS, mark_managers=(PERSON,)), ""),
        (PERSONS, ""),
        (STALE, ""),
        (AGAIN, ""),
        (replace(OURS, cordon_managers=(US, PERSON)), ""),
        (replace(OURS, annotations={CORDONED_BY: ""}), ""),
        (replace(OURS, annotations={CORDONED_BY: "x" * 100_000}), "x" * 319 + "…"),
    ],
)
def test_a_cordon_is_ours_where_a_run_says_so_and_nobody_else_wrote_it(node: NodeState, by: str) -> None:
    assert cordoned_by(node) == by


@pytest.mark.parametrize(
    "node", [OURS, STALE, replace(PERSONS, cordoned=False), under(RunKind.QUARANTINE, -timedelta(1))]
)
def test_nothing_speaks_against_lifting_our_own_or_none(node: NodeState) -> None:
    assert why_kept(node, NOW) == ""


@pytest.mark.parametrize("node", [PERSONS, AGAIN])
def test_a_persons_cordon_is_kept(node: NodeState) -> None:
    assert why_kept(node, NOW) == "it was not cordoned by a quarantine run"
    assert "spec" not in (lift(node, NOW) or {})


def test_a_cordon_is_kept_while_its_run_goes_on() -> None:
    node = under(RunKind.QUARANTINE, timedelta(hours=1))

    assert why_kept(node, NOW) == "the quarantine run gpu-quarantine-n owns it until 2026-11-21T13:00:00Z"
    assert lift(node, NOW) is None


def test_cordon_and_mark_go_in_one_patch() -> None:
    assert lift(OURS, NOW) == {
        "metadata": {"resourceVersion": "7", "annotations": {CORDONED_BY: None}},
        "spec": {"unschedulable": None},
    }
    assert lift(under(RunKind.L2, timedelta(hours=1)), NOW) == lift(OURS, NOW)


@pytest.mark.parametrize("node", [STALE, AGAIN])
def test_a_mark_that_speaks_of_no_cordon_of_ours_goes_alone(node: NodeState) -> None:
    assert lift(node, NOW) == {"metadata": {"resourceVersion": "7", "annotations": {CORDONED_BY: None}}}


def test_without_a_mark_there_is_nothing_to_lift() -> None:
    assert lift(PERSONS, NOW) is None


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"f:spec": {"f:unschedulable": {}}}, ["kubectl"]),
        ({"f:spec": {"f:taints": {}}}, []),
        ({"f:spec": []}, []),
        ({"f:metadata": {"f:unschedulable": {}}}, []),
        (None, []),
    ],
)
def test_who_set_a_cordon_stands_in_the_managed_fields(fields: Any, names: list[str]) -> None:
    entry = {"manager": "kubectl", "time": "2026-11-21T12:00:00Z", "fieldsV1": fields}
    node = node_state({"metadata": {"name": "n", "managedFields": [entry]}})

    assert [manager.name for manager in node.cordon_managers] == names


def test_a_cordon_and_its_mark_come_in_one_patch() -> None:
    assert cordon(replace(STALE, resource_version="8"), "gpu-quarantine-n") == {
        "metadata": {"resourceVersion": "8", "annotations": {CORDONED_BY: "gpu-quarantine-n"}},
        "spec": {"unschedulable": True},
    }


@pytest.mark.parametrize("node", [OURS, PERSONS, AGAIN])
def test_a_node_that_is_cordoned_keeps_whoever_cordoned_it(node: NodeState) -> None:
    assert cordon(node, "gpu-quarantine-other") is None
