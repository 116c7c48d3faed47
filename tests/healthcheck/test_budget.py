"""The fleet budget's numbers and names."""

from __future__ import annotations

import random

import pytest

from healthcheck.budget import TRIES, allowed, draw, holder_label, slot_name


@pytest.mark.parametrize(
    ("fleet", "percent", "places"),
    [
        (None, 20, 1),
        (None, 100, 1),
        (0, 20, 1),
        (1, 1, 1),
        (1, 100, 1),
        (4, 20, 1),
        (9, 20, 1),
        (10, 20, 2),
        (14, 20, 2),
        (1000, 20, 200),
        (1000, 100, 1000),
        (1000, 1, 10),
    ],
)
def test_how_many_nodes_may_be_tainted(fleet: int | None, percent: int, places: int) -> None:
    assert allowed(fleet, percent) == places


@pytest.mark.parametrize("places", [1, 2, 4, 5, 6, 200])
def test_the_places_that_are_tried_are_below_the_allowed_number_and_none_comes_twice(places: int) -> None:
    for seed in range(50):
        drawn = draw(places, random.Random(seed))

        assert len(set(drawn)) == len(drawn) == min(places, TRIES)
        assert set(drawn) <= {slot_name(number) for number in range(places)}


def test_every_place_is_found_in_the_end() -> None:
    source = random.Random(1)

    assert {name for _ in range(200) for name in draw(20, source)} == {slot_name(number) for number in range(20)}


@pytest.mark.parametrize("name", ["n", "ip-10-0-0-1.ec2.internal", "n" * 253])
def test_a_holders_label_is_one_that_kubernetes_takes(name: str) -> None:
    assert len(holder_label(name)) == 32
    assert holder_label(name).isalnum()
    assert holder_label(name) != holder_label(name + "x")
