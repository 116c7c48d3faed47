"""The cost of a document is known before it is parsed, and the content of strings costs nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.text import json_cost
from gpu_healthcheck.healthcheck.text.json_cost import JsonCostError, refuse_costly

_VALUES = st.recursive(
    st.none() | st.text(',[{:"\\ab', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(',{:"\\', max_size=4), inner, max_size=4),
)


def _marks(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(len(value) - 1, 0) + len(value) + sum(map(_marks, value.values()))
    if isinstance(value, list):
        return 1 + max(len(value) - 1, 0) + sum(map(_marks, value))
    return 0


@given(_VALUES, st.integers(1, 9))
def test_marks_outside_of_strings_are_counted(value: Any, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_cost, "_CHUNK", chunk)
        assert refuse_costly(json.dumps(value).encode(), 10_000) == _marks(value)


def test_more_than_allowed_is_refused() -> None:
    assert refuse_costly(b"[" + b"{}," * 9 + b"{}]", 20) == 20
    with pytest.raises(JsonCostError, match="over 19 values"):
        refuse_costly(b"[" + b"{}," * 9 + b"{}]", 19)
