"""Values of foreign JSON: typed, bounded and printable, or refused with their key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field

from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.text.boundary import (
    LONGEST_MESSAGE,
    LONGEST_NAME,
    MOST_ENTRIES,
    NULL,
    At,
    JsonObject,
    Moment,
    Text,
    as_json,
    by_name,
    document,
    items,
    only,
    read,
    read_row,
)
from gpu_healthcheck.healthcheck.text.moments import exact
from gpu_healthcheck.healthcheck.text.printable import printable


class _Port(Struct, frozen=True):
    name: str = ""
    number: Annotated[int | None, At("containerPort")] = None


class _Service(Struct, frozen=True):
    name: Annotated[str, At("metadata.name", "name")] = ""
    message: Text = ""
    labels: Annotated[Mapping[str, str], At("metadata.labels")] = field(default_factory=dict)
    ports: Annotated[tuple[_Port, ...], At("spec.ports")] = ()
    ready: bool = True
    ratio: float = 0.0
    created: Annotated[Moment, At("metadata.created")] = None
    env: Annotated[Mapping[str, str], by_name("name", "value", "from")] = field(default_factory=dict)
    own: Annotated[int, At()] = 0


@pytest.mark.parametrize(
    ("raw", "attributes"),
    [
        ({}, {"name": "", "ports": (), "ready": True}),
        ({"name": None, "metadata": None, "spec": {"ports": None}}, {"name": "", "ports": (), "labels": {}}),
        ({"metadata": {"name": "a"}, "name": "b"}, {"name": "a"}),
        ({"metadata": {"name": ""}, "name": "b"}, {"name": "b"}),
        ({"metadata": 5, "name": "b"}, {"name": "b"}),
        ({"unknown": object(), "own": 7}, {"own": 0}),
        ({"spec": {"ports": [{"name": "x", "containerPort": 80}, None]}}, {"ports": (_Port("x", 80),)}),
        (
            {"metadata": {"labels": {"a": "b", "n": 1, "f": 0.5, "z": None}}},
            {"labels": {"a": "b", "n": "1", "f": "0.5"}},
        ),
        ({"metadata": {"created": "2026-11-21T01:02:03Z"}}, {"created": datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)}),
        ({"metadata": {"created": "0001-01-01T00:00:00Z"}}, {"created": None}),
        ({"env": [{"name": "A", "value": "1"}, {"name": "B", "from": "x"}, {}]}, {"env": {"A": "1", "B": "x", "": ""}}),
        ({"name": "a\u202eb\n\ud800"}, {"name": "a\\u202eb\\n\\ud800"}),
    ],
)
def test_read_returns_typed_values_and_defaults(raw: object, attributes: Mapping[str, object]) -> None:
    service = read(_Service, raw)
    assert {name: getattr(service, name) for name in attributes} == attributes


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ([], "expected an object, not a list"),
        ("x", "expected an object, not a text"),
        ({"metadata": {"name": 5}}, "metadata.name: expected a text, not a number"),
        ({"name": True, "metadata": {}}, "metadata.name: expected a text, not true or false"),
        ({"spec": {"ports": {}}}, "spec.ports: expected a list, not an object"),
        ({"spec": {"ports": ["x"]}}, "spec.ports: expected an object, not a text"),
        (
            {"spec": {"ports": [{"containerPort": "80"}]}},
            "spec.ports: containerPort: expected a whole number, not a text",
        ),
        ({"spec": {"ports": [{"containerPort": 10**19}]}}, "spec.ports: containerPort: expected a whole number"),
        ({"ratio": math.inf}, "ratio: expected a number"),
        ({"ratio": math.nan}, "ratio: expected a number"),
        ({"ready": "true"}, "ready: expected true or false, not a text"),
        ({"metadata": {"labels": {"a": {}}}}, "metadata.labels: expected"),
        ({"env": ["x"]}, "env: expected an object, not a text"),
    ],
)
def test_read_refuses_a_value_of_the_wrong_type_with_its_key(raw: object, error: str) -> None:
    with pytest.raises(ValueError, match="expected") as refused:
        read(_Service, raw)
    assert str(refused.value).startswith(error)


def test_read_bounds_texts_lists_and_maps() -> None:
    many = {f"k{number}": "x" * 9000 for number in range(5000)}
    service = read(
        _Service,
        {"message": "x" * 9000, "name": "x" * 9000, "metadata": {"labels": many}, "spec": {"ports": [{}] * 5000}},
    )
    assert (len(service.name), len(service.message)) == (LONGEST_NAME, LONGEST_MESSAGE)
    assert (len(service.labels), len(service.ports)) == (MOST_ENTRIES, MOST_ENTRIES)
    assert max(map(len, service.labels.values())) == LONGEST_MESSAGE
    assert len(list(items(many))) == MOST_ENTRIES


def test_a_document_keeps_its_lines_and_shows_the_rest() -> None:
    assert document("a:\r\n\tb\x1b\n", 100) == "a:\n b\\x1b\n"
    assert document("x" * 50 + "\n", 20) == "x" * 20


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["name", "message", "metadata", "spec", "env", "ratio", "ready"]), _JSON))
def test_read_returns_printable_texts_or_raises_value_error(raw: dict[str, Any]) -> None:
    try:
        service = read(_Service, raw)
    except ValueError:
        return
    texts = (service.name, service.message, *service.labels.values(), *service.env.values())
    assert all(text == printable(text) for text in texts)
    json.dumps(service.ratio, allow_nan=False)


# --- rows of our own documents


class Kind(StrEnum):
    A = "a"


class Inner(JsonObject, frozen=True):
    name: str | None = None


class Outer(JsonObject, frozen=True):
    """A field of each type."""

    name: str | None = None
    count: Annotated[int | None, NULL] = None
    at: float | None = None
    seen: datetime | None = None
    severity: Severity | None = None
    kind: Kind | None = None
    known: bool | None = None
    about: Mapping[str, str] | None = None
    reasons: tuple[str, ...] | None = None
    inner: Inner | None = None
    some: tuple[Inner, ...] | None = None
    all: Annotated[tuple[Inner, ...] | None, only(Inner)] = None


WHOLE: dict[str, Any] = {
    "name": "x",
    "count": 7,
    "at": 1.5,
    "seen": "2026-11-21T01:02:03Z",
    "severity": "RESET",
    "kind": "a",
    "known": False,
    "about": {"serial": "1"},
    "reasons": ["r"],
    "inner": {"name": "y"},
    "some": [{"name": "z"}],
    "all": [],
}


def test_a_written_row_is_read_back_in_the_order_of_the_fields() -> None:
    outer = read_row(Outer, WHOLE)

    assert (as_json(outer), list(as_json(outer)), outer.invalid) == (WHOLE, list(WHOLE), frozenset())
    assert (outer.severity, outer.kind, outer.seen) == (
        Severity.RESET,
        Kind.A,
        datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC),
    )


def test_none_is_written_only_where_null_has_a_meaning() -> None:
    assert as_json(Outer()) == {"count": None}
    assert read_row(Outer, {"count": None, "of another version": 1}) == Outer()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", []),
        ("name", None),
        ("count", True),
        ("count", 1.0),
        ("count", -2),
        ("count", 10**19),
        ("at", "1"),
        ("at", 1e14),
        ("seen", "yesterday"),
        ("seen", "2026-11-21T01:02:03"),
        ("severity", "reset"),
        ("severity", ["RESET"]),
        ("kind", 7),
        ("known", 1),
        ("about", ["serial"]),
        ("reasons", "r"),
        ("inner", [1]),
        ("some", {}),
        ("all", [{}, 7]),
    ],
)
def test_a_value_of_the_wrong_type_is_left_out_of_a_row_and_named(name: str, value: Any) -> None:
    outer = read_row(Outer, WHOLE | {name: value})

    assert (getattr(outer, name), outer.invalid) == (None, frozenset({name}))
    with pytest.raises(ValueError, match=f"{name}: a value of another type"):
        outer.must_have("name")


def test_a_missing_key_that_a_row_must_have_is_named() -> None:
    with pytest.raises(ValueError, match="missing at, seen"):
        read_row(Outer, {"name": "x"}).must_have("name", "at", "seen")


def test_invalid_entries_of_lists_and_maps_are_left_out_of_a_row() -> None:
    outer = read_row(Outer, {"some": ["x", {"name": "z"}], "about": {"a": 1, "b": [], "c": None}, "reasons": [1, {}]})

    assert as_json(outer) == {"count": None, "about": {"a": "1"}, "reasons": ["1"], "some": [{"name": "z"}]}


def test_times_of_a_row_are_written_to_the_second_or_exactly() -> None:
    seen = datetime(2026, 11, 21, 1, 2, 3, 5, tzinfo=UTC)

    assert as_json(Outer(seen=seen))["seen"] == "2026-11-21T01:02:03Z"
    assert as_json(Outer(seen=seen), exact)["seen"] == "2026-11-21T01:02:03.000005Z"
