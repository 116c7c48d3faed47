"""JSON objects as typed rows: valid values are typed, invalid ones reported, and written ones read back."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import pytest

from healthcheck.model import Severity
from healthcheck.text.json_rows import (
    NULL,
    JsonObject,
    as_json,
    names,
    one_of,
    only_rows,
    row,
    row_in,
    rows,
    seconds,
    text,
    whole,
    word,
    words,
    yes,
)
from healthcheck.text.moments import exact, moment_or_none


class Kind(StrEnum):
    A = "a"


class Inner(JsonObject, frozen=True):
    name: Annotated[str | None, text] = None


class Outer(JsonObject, frozen=True):
    """A field of each sort."""

    name: Annotated[str | None, word] = None
    count: Annotated[int | None, whole, NULL] = None
    at: Annotated[float | None, seconds] = None
    seen: Annotated[datetime | None, moment_or_none] = None
    severity: Annotated[Severity | None, one_of(Severity.__members__)] = None
    kind: Annotated[Kind | None, one_of({"a": Kind.A})] = None
    known: Annotated[bool | None, yes] = None
    about: Annotated[dict[str, str] | None, names] = None
    reasons: Annotated[tuple[str, ...] | None, words] = None
    inner: Annotated[Inner | None, row(Inner)] = None
    some: Annotated[tuple[Inner, ...] | None, rows(Inner)] = None
    all: Annotated[tuple[Inner, ...] | None, only_rows(Inner)] = None


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


def test_what_was_written_is_read_back_in_the_order_of_the_fields() -> None:
    outer = row_in(Outer, WHOLE)

    assert (as_json(outer), list(as_json(outer)), outer.odd) == (WHOLE, list(WHOLE), frozenset())
    assert (outer.severity, outer.kind, outer.seen) == (
        Severity.RESET,
        Kind.A,
        datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC),
    )


def test_what_is_not_said_is_not_written_but_where_null_says_something() -> None:
    assert as_json(Outer()) == {"count": None}
    assert row_in(Outer, {"count": None, "of another version": 1}) == Outer()


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
def test_a_value_of_another_kind_is_left_out_and_named(name: str, value: Any) -> None:
    outer = row_in(Outer, WHOLE | {name: value})

    assert (getattr(outer, name), outer.odd) == (None, frozenset({name}))
    with pytest.raises(ValueError, match=f"{name}: a value of another type"):
        outer.must_have("name")


def test_what_must_be_there_is_named_where_it_is_missing() -> None:
    with pytest.raises(ValueError, match="missing at, seen"):
        row_in(Outer, {"name": "x"}).must_have("name", "at", "seen")


def test_what_is_none_among_others_is_left_out() -> None:
    outer = row_in(Outer, {"some": ["x", {"name": "z"}], "about": {"a": 1, "b": [], "c": None}, "reasons": [1, {}]})

    assert as_json(outer) == {"count": None, "about": {"a": "1"}, "reasons": ["1"], "some": [{"name": "z"}]}


def test_times_are_written_as_finely_as_they_are_asked_for() -> None:
    seen = datetime(2026, 11, 21, 1, 2, 3, 5, tzinfo=UTC)

    assert as_json(Outer(seen=seen))["seen"] == "2026-11-21T01:02:03Z"
    assert as_json(Outer(seen=seen), exact)["seen"] == "2026-11-21T01:02:03.000005Z"
