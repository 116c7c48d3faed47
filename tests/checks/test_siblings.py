"""Which GPUs of a pod are slower than the others in one window, and in which windows they have to be."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.siblings import Deviation, Figures, is_slow, slower

USUAL = Figures(1980.0, 2619.0, 650.0, 0.0, 0.0)
CAPPED = Figures(1500.0, 2619.0, 695.0, 1.0, 0.0)
SLOW = (Deviation("sm_mhz", 1410.0, 1980.0),)


def deviations_of(one: Figures, *others: Figures) -> tuple[Deviation, ...] | None:
    """Return the deviations of the first; the others have none."""
    first, *rest = slower([one, *others])
    assert set(rest) == {()}
    return first


@pytest.mark.parametrize(
    ("change", "deviations"),
    [
        ({}, ()),
        ({"sm_mhz": 1410.0, "watts": 410.0}, SLOW),
        ({"sm_mhz": 1410.0}, SLOW),
        ({"sm_mhz": 1410.0, "capped": None, "watts": 640.0}, SLOW),
        ({"sm_mhz": 1410.0, "capped": None, "watts": 660.0}, ()),
        ({"sm_mhz": 1410.0, "watts": None}, None),
        ({"sm_mhz": 1783.0}, ()),
        ({"sm_mhz": 1781.0}, (Deviation("sm_mhz", 1781.0, 1980.0),)),
        ({"sm_mhz": 2200.0}, ()),
        ({"sm_mhz": None}, None),
        ({"sm_mhz": None, "hardware_slowdown": 0.45}, (Deviation("hardware_slowdown", 0.45, 0.0),)),
        ({"watts": 200.0}, ()),
        ({"sm_mhz": 1410.0, "watts": 700.0, "capped": 1.0}, ()),
        ({"sm_mhz": 1410.0, "watts": 500.0, "capped": 0.5}, ()),
        ({"sm_mhz": 1410.0, "watts": 500.0, "capped": 0.95}, SLOW),
        ({"memory_mhz": 1593.0}, (Deviation("memory_mhz", 1593.0, 2619.0),)),
        ({"hardware_slowdown": 0.1}, ()),
        ({"hardware_slowdown": 0.45}, (Deviation("hardware_slowdown", 0.45, 0.0),)),
    ],
)
def test_a_gpu_is_slow_if_its_work_does_not_explain_it(
    change: dict[str, float | None], deviations: tuple[Deviation, ...] | None
) -> None:
    assert deviations_of(replace(USUAL, **change), *[USUAL] * 7) == deviations


def test_at_the_power_limit_a_gpu_held_down_by_something_else_is_slow() -> None:
    hot = replace(CAPPED, sm_mhz=1275.0, watts=480.0, capped=0.0)

    assert deviations_of(hot, *[CAPPED] * 7) == (Deviation("sm_mhz", 1275.0, 1500.0),)


def test_gpu_at_its_power_limit_makes_no_other_slow() -> None:
    idle = replace(CAPPED, sm_mhz=1950.0, watts=420.0, capped=0.2)

    assert slower([idle, *[CAPPED] * 7]) == [()] * 8


def test_clocks_that_differ_on_all_show_nothing() -> None:
    clocks = (1500.0, 1600.0, 1700.0, 1800.0, 1850.0, 1900.0, 1950.0, 1980.0)

    assert slower([replace(USUAL, sm_mhz=clock) for clock in clocks]) == [()] * 8


def test_two_of_eight_and_one_of_four_are_found() -> None:
    slow = replace(USUAL, sm_mhz=1410.0, watts=410.0)

    assert slower([slow, *[USUAL] * 6, slow]) == [SLOW, *[()] * 6, SLOW]
    assert slower([USUAL, slow, USUAL, USUAL]) == [(), SLOW, (), ()]


def test_three_are_not_compared() -> None:
    slow = replace(USUAL, sm_mhz=1410.0)

    assert slower([slow, USUAL, USUAL]) == [None] * 3
    assert slower([slow, *[replace(USUAL, watts=None)] * 7]) == [None] * 8


@pytest.mark.parametrize(
    ("windows", "slow"),
    [
        ("", None),
        ("xx", None),
        ("xxx", True),
        ("...", None),
        ("....", False),
        ("xx...", None),
        ("..x.x", None),
        ("xx....", False),
        ("x.x.x.", True),
    ],
)
def test_three_of_six_windows_decide(windows: str, slow: bool | None) -> None:
    assert is_slow([letter == "x" for letter in windows]) is slow
