"""JSON of which two readers could make two things is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.text.strict_json import DEEPEST, loads
from tests.hostile import ANY_TEXT

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("how", [{}, {"separators": (",", ":"), "ensure_ascii": False}], ids=["wide", "as a record"])
@given(value=VALUES)
def test_loads_returns_the_document_with_printable_texts(how: dict[str, Any], value: Any) -> None:
    assert loads(json.dumps(value, **how), 10**6) == with_printable_texts(value)


def with_printable_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(key): with_printable_texts(entry) for key, entry in value.items()}
    return (
        [with_printable_texts(entry) for entry in value]
        if isinstance(value, list)
        else printable(value)
        if isinstance(value, str)
        else value
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a":1,"a":1}', "the key 'a' occurs twice"),
        ('{"status":"fail","x":{},"status":"pass"}', "the key 'status' occurs twice"),
        (r'[{"b":[{"a":1,"\u0061":2}]}]', "the key 'a' occurs twice"),
        ("[NaN]", "NaN is not a number"),
        ("-Infinity", "-Infinity is not a number"),
        ("1e999", "1e999 is not a number"),
        ("[" * 100_000, f"nested deeper than {DEEPEST}"),
        ("[" * (DEEPEST + 1) + "1" + "]" * (DEEPEST + 1), f"nested deeper than {DEEPEST}"),
        ("9" * 5000, "Exceeds the limit"),
        ("x" * 200_001, "200001 characters; at most 200000 are read"),
        ("", "Expecting value"),
    ],
)
def test_loads_refuses_ambiguous_json_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        loads(text, 200_000)


def test_loads_reads_json_of_the_greatest_depth() -> None:
    assert loads("[" * DEEPEST + "]" * DEEPEST, 1000)
