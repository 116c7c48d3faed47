"""Documents as tables, and why one is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.text.documents import MalformedError, json_object, yaml_object

READERS = [json_object, yaml_object]


@pytest.mark.parametrize("read", READERS)
@given(raw=st.one_of(st.binary(), st.text().map(str.encode), st.text(alphabet="[]{}:,\"'\n -&*!=a1").map(str.encode)))
def test_any_bytes_are_a_table_or_malformed(read: Callable[[bytes], dict[str, object]], raw: bytes) -> None:
    try:
        table = read(raw)
    except MalformedError:
        return
    assert isinstance(table, dict)


@pytest.mark.parametrize("raw", [b"[" * 500_000, b'{"a":' * 500_000, b"- " * 500_000, b"a: &a [*a, *a]\nb: *a\n"])
@pytest.mark.parametrize("read", READERS)
def test_deeply_nested_documents_are_refused(read: Callable[[bytes], dict[str, object]], raw: bytes) -> None:
    if read is yaml_object and raw.startswith(b"a:"):
        assert set(read(raw)) == {"a", "b"}
    else:
        with pytest.raises(MalformedError):
            read(raw)


def _doubled(line: str) -> bytes:
    """Each line is nine times the one before it: some hundred bytes for billions."""
    return "".join(["a0: &a0 {x: 1}\n", *(line.format(number, number - 1) for number in range(1, 12))]).encode()


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (_doubled("a{0}: &a{0} {{<<: [" + ", ".join(["*a{1}"] * 9) + "]}}\n"), "aliases expand to more"),
        (_doubled("a{0}: &a{0} [" + ", ".join(["*a{1}"] * 9) + "]\n"), "aliases expand to more"),
        (b"a: 1" + b":1" * 20_000 + b"\n", "a number is too long"),
        (b"a: [{name: 0x" + b"f" * 20_000 + b"}]\n", "a number is too long"),
    ],
)
def test_yaml_that_expands_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(MalformedError, match=why):
        yaml_object(raw)


def test_yaml_anchors_and_merge_keys_are_read() -> None:
    assert yaml_object(b"a: &a {x: 1}\nb: {<<: *a, y: [*a, *a]}\n") == {
        "a": {"x": 1},
        "b": {"x": 1, "y": [{"x": 1}, {"x": 1}]},
    }


@pytest.mark.parametrize("raw", [b'{\n\t"a": {"b": 1}}', b"{a: {b: 1}}", b"a: {b: 1}", b"a:\n  b: 1\n"])
def test_yaml_object_reads_json_with_tabs(raw: bytes) -> None:
    assert yaml_object(raw) == {"a": {"b": 1}}


def test_json_object_replaces_unpaired_surrogates() -> None:
    """It could be written nowhere: not in the record, not on a terminal."""
    assert json_object(rb'{"a\udc00": "\ud800", "b": "\u00e9"}') == {"a?": "?", "b": "\u00e9"}
