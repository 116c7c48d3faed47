"""Documents as tables, and why one is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.text.documents import MalformedError, json_object, yaml_object

READERS = [json_object, yaml_object]


@pytest.mark.parametrize("read", READERS)
@given(raw=st.one_of(st.binary(), st.text().map(str.encode), st.text(alphabet="[]{}:,\"'\n -&*!=a1").map(str.encode)))
def test_any_bytes_are_a_table_or_none(read: Callable[[bytes], dict[str, object]], raw: bytes) -> None:
    try:
        table = read(raw)
    except MalformedError:
        return
    assert isinstance(table, dict)


@pytest.mark.parametrize("raw", [b"[" * 500_000, b'{"a":' * 500_000, b"- " * 500_000, b"a: &a [*a, *a]\nb: *a\n"])
@pytest.mark.parametrize("read", READERS)
def test_what_is_nested_without_end_is_refused(read: Callable[[bytes], dict[str, object]], raw: bytes) -> None:
    if read is yaml_object and raw.startswith(b"a:"):
        assert set(read(raw)) == {"a", "b"}
    else:
        with pytest.raises(MalformedError):
            read(raw)


@pytest.mark.parametrize("raw", [b'{\n\t"a": {"b": 1}}', b"{a: {b: 1}}", b"a: {b: 1}", b"a:\n  b: 1\n"])
def test_json_is_yaml_tabs_included(raw: bytes) -> None:
    assert yaml_object(raw) == {"a": {"b": 1}}


def test_half_a_character_gets_a_sign_in_its_place() -> None:
    """It could be written nowhere: not in the record, not on a terminal."""
    assert json_object(rb'{"a\udc00": "\ud800", "b": "\u00e9"}') == {"a?": "?", "b": "\u00e9"}
