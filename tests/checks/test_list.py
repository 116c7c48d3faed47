"""The list of checks, and how a person names some of them."""

from __future__ import annotations

import re

import pytest

from healthcheck.checks import CHECKS, GROUPS, KERNEL_LINES, select_checks
from healthcheck.model import Nature

GROUP_0 = [check.name for check in CHECKS if check.group == "0-nvidia-smi"]
GROUP_2 = [check.name for check in CHECKS if check.group == "2-efa-enumeration"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], []),
        (["0"], GROUP_0),
        (["0-nvidia-smi"], GROUP_0),
        (["efa-count", "driver"], ["driver", "efa-count"]),
        (["2"], GROUP_2),
        (["8"], []),
        ([*GROUPS], [check.name for check in CHECKS]),
    ],
)
def test_checks_are_named_by_number_group_or_name_and_keep_their_order(words: list[str], names: list[str]) -> None:
    assert [check.name for check in select_checks(words)] == names


@pytest.mark.parametrize("word", ["9", "-1", "", "nvidia-smi", "GPU-COUNT", "x" * 999])
def test_another_word_is_named_with_what_is_allowed(word: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"no check {word[:40]!r}; allowed are 0, 1, 2,")):
        select_checks([word])


def test_groups_stand_in_their_order() -> None:
    groups = [check.group for check in CHECKS]
    assert groups == sorted(groups)


def test_every_check_stands_in_a_group_of_the_record() -> None:
    assert [check.name for check in CHECKS if check.group not in GROUPS.values()] == []


def test_an_event_check_says_how_its_lines_begin() -> None:
    """Others are not shown to it: one that says nothing would never see any."""
    assert [check.name for check in CHECKS if bool(check.begins) != (check.nature is Nature.EVENT)] == []
    assert all(begin and begin.isascii() and begin.isprintable() and "\\" not in begin for begin in KERNEL_LINES)
