"""Some of many by name, and how many more there are."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.text.naming import named


@pytest.mark.parametrize(
    ("many", "message"),
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c"], "a, b and 1 more"), (range(7), "0, 1 and 5 more")],
)
def test_the_first_are_named_and_the_rest_counted(many: list[str], message: str) -> None:
    assert named(many, 2) == message
