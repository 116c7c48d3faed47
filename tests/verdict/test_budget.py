"""The fleet budget's numbers and names."""

from __future__ import annotations

import random

import pytest

from gpu_healthcheck.healthcheck.verdict.budget import (
    MOST_NUMBERS,
    TRIES,
    Slot,
    allowed,
    draw,
    draw_free,
    holder_label,
    occupancy,
    oldest_first,
    slot_name,
)


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


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("n", "n"),
        ("ip-10-0-0-1.ec2.internal", "ip-10-0-0-1.ec2.internal"),
        ("n" * 63, "n" * 63),
        ("n" * 64, "n" * 62 + "0"),
        ("n" * 61 + "." + "n" * 191, "n" * 61 + ".0"),
    ],
)
def test_a_holders_label_is_its_nodes_name_as_far_as_a_label_has_room(name: str, label: str) -> None:
    assert holder_label(name) == label


class TestAListing:
    def test_counts_each_holder_once(self) -> None:
        taken = occupancy([slot(0, "a"), slot(1, "b"), slot(2, "a")])

        assert (len(taken.since), taken.surplus) == (2, 1)

    @pytest.mark.parametrize(("holder", "before"), [("a", 0), ("b", 1), ("c", 2), ("nobody", 3)])
    def test_names_the_earlier_owner(self, holder: str, before: int) -> None:
        """An owner of several slots counts from its first."""
        taken = occupancy([slot(7, "a", 11), slot(1, "b", 12), slot(2, "c", 13), slot(0, "a", 14)])

        assert taken.before(holder) == before

    def test_leaves_one_name_more_for_each_that_a_holder_has_too_much(self) -> None:
        taken = occupancy([slot(number, "greedy") for number in range(4)])

        drawn = {name for seed in range(50) for name in draw_free(taken, 4, "n", random.Random(seed))}

        assert drawn == {"slot-4", "slot-5", "slot-6"}

    def test_without_anybody_greedy_leaves_the_names_below_the_allowed_number(self) -> None:
        taken = occupancy([slot(0, "a"), slot(2, "b")])

        assert set(draw_free(taken, 4, "n", random.Random(1))) == {"slot-1", "slot-3"}

    def test_with_every_number_taken_leaves_a_node_its_own_name(self) -> None:
        taken = occupancy(slot(number, "greedy") for number in range(MOST_NUMBERS))

        assert draw_free(taken, 4, "n", random.Random(1)) == ["n"]

    def test_of_a_holders_places_has_the_oldest_first(self) -> None:
        ours = [slot(3, "a", 12), slot(5, "a", 11), slot(4, "a", 12)]

        assert [one.name for one in oldest_first(ours)] == ["slot-5", "slot-3", "slot-4"]


def slot(number: int, holder: str, made: int = 0) -> Slot:
    return Slot(slot_name(number), holder, made=made)
