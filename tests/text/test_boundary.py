"""Values of foreign JSON: typed, bounded and printable, or refused with their key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field

from healthcheck.text.boundary import (
    LONGEST_MESSAGE,
    LONGEST_NAME,
    MOST_ENTRIES,
    At,
    Moment,
    Text,
    by_name,
    document,
    items,
    read,
)
from healthcheck.text.printable import printable


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
