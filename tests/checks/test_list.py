"""The list of checks, and how a person names some of them."""

from __future__ import annotations

import re

import pytest

from gpu_healthcheck.healthcheck.checks import (
    CHECKS,
    DEEP_CHECKS,
    GROUPS,
    KERNEL_LINES,
    checks_named,
    groups_in,
    select_checks,
)
from gpu_healthcheck.healthcheck.model import Check, Nature

GROUP_0 = [check.name for check in CHECKS if check.group == "0-nvidia-smi"]
GROUP_9 = [check.name for check in CHECKS if check.group == "9-roce"]
GROUP_2 = [check.name for check in CHECKS if check.group == "2-efa-enumeration"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], []),
        (["0"], GROUP_0),
        (["0-nvidia-smi"], GROUP_0),
        (["efa-count", "driver"], ["driver", "efa-count"]),
        (["2"], GROUP_2),
        (["8"], ["hami"]),
        (["9"], GROUP_9),
        (["roce"], GROUP_9),
        (["nvidia-smi"], GROUP_0),
        (["efa"], GROUP_2),
        (["efa-enumeration"], GROUP_2),
        (["topology"], [check.name for check in CHECKS if check.group == "3-topology-check"]),
        (["7-container-runtime"], [check.name for check in CHECKS if check.group == "7-container-runtime"]),
        (["container-runtime"], ["container-runtime"]),
        (["hami"], ["hami"]),
        (["0", "2", "3", "7", "8", "9"], [check.name for check in CHECKS]),
    ],
)
def test_checks_are_named_by_number_group_or_name_and_keep_their_order(words: list[str], names: list[str]) -> None:
    assert [check.name for check in select_checks(words)] == names


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("99", "9"),
        ("-1", "1"),
        ("", ""),
        ("x" * 999, ""),
        ("0-nvidia", "0-nvidia-smi"),
        ("GPU-COUNT", "gpu-count"),
        ("nvlinks", "nvlink"),
    ],
)
def test_another_word_is_named_with_what_may_be_meant_and_what_is_allowed(word: str, near: str) -> None:
    message = f"no check {word[:40]!r}{f' (did you mean {near}?)' if near else ''}; allowed are "
    with pytest.raises(ValueError, match=re.escape(f"{message}0, 2, 3, 7, 8, 9, 0-nvidia-smi,")):
        select_checks([word])
    with pytest.raises(ValueError, match=re.escape(f"{message}0, 1, 2, 3, 4,")):
        checks_named(word)


DEEP_WORDS = (
    "1",
    "1-dcgm-diag-l2",
    "dcgm-diag-l2",
    "dcgm-l2",
    "4",
    "dcgm-l4",
    "5",
    "nccl-allreduce",
    "6",
    "efa-loopback",
    "rdma-loopback",
    "10",
    "gpu-load",
)


@pytest.mark.parametrize("word", DEEP_WORDS)
def test_a_deep_check_is_named_and_is_no_light_one(word: str) -> None:
    (check,) = checks_named(word)
    assert check in DEEP_CHECKS

    message = (
        f"{word} is not a light check: it needs exclusive use of the GPUs; allowed are 0, 2, 3, 7, 8, 9, 0-nvidia-smi,"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        select_checks(["0", word, "2"])


@pytest.mark.parametrize("check", [*CHECKS, *DEEP_CHECKS], ids=lambda check: check.name)
def test_every_check_is_named_by_its_own_name_and_by_its_group(check: Check) -> None:
    number = groups_in([check])

    assert checks_named(check.name) == (check,)
    assert [check in checks_named(word) for word in (number, GROUPS[number])] == [True, True]


def test_groups_stand_in_their_order() -> None:
    groups = [check.group for check in CHECKS]
    assert groups == sorted(groups)


def test_check_is_listed_in_a_group_of_the_record() -> None:
    assert [check.name for check in CHECKS if check.group not in GROUPS.values()] == []


def test_event_check_declares_how_its_lines_begin() -> None:
    """An event check receives only lines with its declared beginnings. Without any, it would receive none."""
    assert [check.name for check in CHECKS if bool(check.begins) != (check.nature is Nature.EVENT)] == []
    assert all(begin and begin.isascii() and begin.isprintable() and "\\" not in begin for begin in KERNEL_LINES)
