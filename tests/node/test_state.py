"""Facts of a Node: owners of labels by managedFields, and its number of EFA devices."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.cluster.nodes import node_state
from gpu_healthcheck.healthcheck.node.state import STATUS, FieldManager, managers_of_label
from gpu_healthcheck.healthcheck.text.moments import EARLIEST

AT = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)


def entry(*labels: str, manager: str = "kubectl-label", time: str = "2026-11-21T01:02:03Z") -> dict[str, Any]:
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {".": {}, **{f"f:{label}": {} for label in labels}}}}
    return {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": time, "fieldsV1": fields}


def test_the_owners_of_a_label_are_the_managers_with_its_entry() -> None:
    fields = [entry("team"), entry(STATUS, "team"), entry(STATUS, manager="gpu-healthcheck"), entry()]

    assert managers_of_label(fields, STATUS) == (FieldManager("kubectl-label", AT), FieldManager("gpu-healthcheck", AT))


@pytest.mark.parametrize(
    "fields",
    [None, {}, "x", [None, 7, "x", []], [{}], [{"fieldsV1": None}], [{"fieldsV1": {"f:metadata": []}}]],
)
def test_malformed_managed_fields_name_no_manager(fields: object) -> None:
    assert managers_of_label(fields, STATUS) == ()


@pytest.mark.parametrize("time", ["", "yesterday", "2026-11-21T01:02:03"])
def test_an_owner_without_a_time_is_older_than_everything(time: str) -> None:
    (owner,) = managers_of_label([entry(STATUS, time=time)], STATUS)

    assert owner.at == EARLIEST


@pytest.mark.parametrize(("quantity", "count"), [("32", 32), ("0", 0)])
def test_the_efa_devices_that_pods_may_ask_for(quantity: str, count: int) -> None:
    status = {"capacity": {"vpc.amazonaws.com/efa": "7"}, "allocatable": {"vpc.amazonaws.com/efa": quantity}}

    assert node_state({"metadata": {"name": "n"}, "status": status}).efa_allocatable == count


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"allocatable": None},
        {"allocatable": {"cpu": "8"}},
        *(
            {"allocatable": {"vpc.amazonaws.com/efa": text}}
            for text in ("", "1k", "-1", "1.5", "²", "9" * 5000, 3, None)
        ),
    ],
)
def test_a_count_that_the_node_does_not_plainly_say_is_none(status: dict[str, Any]) -> None:
    assert node_state({"metadata": {"name": "n"}, "status": status}).efa_allocatable is None
