"""Who owns a label, by what the API server notes of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from healthcheck.node import STATUS, FieldManager, managers_of_label

AT = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)


def entry(*labels: str, manager: str = "kubectl-label", time: str = "2026-11-21T01:02:03Z") -> dict[str, Any]:
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {".": {}, **{f"f:{label}": {} for label in labels}}}}
    return {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": time, "fieldsV1": fields}


def test_the_owners_of_a_label_are_those_whose_entry_has_it() -> None:
    fields = [entry("team"), entry(STATUS, "team"), entry(STATUS, manager="gpu-healthcheck"), entry()]

    assert managers_of_label(fields, STATUS) == (FieldManager("kubectl-label", AT), FieldManager("gpu-healthcheck", AT))


@pytest.mark.parametrize(
    "fields",
    [None, {}, "x", [None, 7, "x", []], [{}], [{"fieldsV1": None}], [{"fieldsV1": {"f:metadata": []}}]],
)
def test_notes_of_another_shape_name_nobody(fields: object) -> None:
    assert managers_of_label(fields, STATUS) == ()


@pytest.mark.parametrize("time", ["", "yesterday", "2026-11-21T01:02:03"])
def test_an_owner_without_a_time_is_older_than_everything(time: str) -> None:
    (owner,) = managers_of_label([entry(STATUS, time=time)], STATUS)

    assert owner.at < datetime(1970, 1, 1, tzinfo=UTC)
