"""Pages of memory that were retired, or wait to be (before Ampere)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.retired_pages import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, Observation, Severity
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, RetiredPages
from tests.checks.evidence import ADDRESSES, P5, driver_says, every, healthy, judgements

SUBJECT = f"gpu/{ADDRESSES[3]}"
ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
NONE = RetiredPages(0, 0, pending=False)
PENDING = Finding(
    "RetiredPagesPending", Severity.RESET, SUBJECT, "pages are retired at the next reset of the GPU", ABOUT
)


def over(single: int, double: int, most: int = 60) -> Finding:
    pages = f"{single} pages retired for single-bit and {double} for double-bit errors"
    detail = f"{pages}, more than MAX_RETIRED_PAGES_SBE = {most}"
    return Finding("RetiredPagesLimit", Severity.ISOLATE, SUBJECT, detail, ABOUT)


def judge(*gpus: Gpu, most: int = 60) -> list[Judgement]:
    return judgements(CHECK, replace(P5, max_retired_pages_sbe=most), {NVML: driver_says(*gpus)})


def found(most: int = 60, **more: Any) -> list[Judgement]:
    """Judgements of the third of eight GPUs with that difference, without the line for people."""
    gpus = [*every(retired_pages=NONE)]
    gpus[3] = healthy(3, **more)
    return [judgement for judgement in judge(*gpus, most=most) if not isinstance(judgement, Observation)]


@pytest.mark.parametrize(
    ("pages", "findings"),
    [
        (NONE, []),
        (RetiredPages(60, 0, pending=False), []),
        (RetiredPages(61, 0, pending=False), [over(61, 0)]),
        (RetiredPages(0, 60, pending=False), []),
        (RetiredPages(0, 61, pending=False), [over(0, 61)]),
        (RetiredPages(40, 20, pending=False), []),
        (RetiredPages(40, 21, pending=False), [over(40, 21)]),
        (RetiredPages(2, 0, pending=True), [PENDING]),
        (RetiredPages(64, 0, pending=True), [PENDING, over(64, 0)]),
        (None, []),
    ],
)
def test_gpu_facts_give_the_expected_judgements(pages: RetiredPages | None, findings: list[Judgement]) -> None:
    assert found(retired_pages=pages) == findings


@pytest.mark.parametrize(("most", "findings"), [(4, []), (3, [over(4, 0, most=3)]), (4096, [])])
def test_a_cluster_sets_how_many_are_too_many(most: int, findings: list[Judgement]) -> None:
    assert found(most, retired_pages=RetiredPages(4, 0, pending=False)) == findings


def test_the_most_of_any_gpu_is_shown() -> None:
    few, more = (healthy(index, retired_pages=RetiredPages(index, 7, pending=False)) for index in (0, 5))

    assert judge(few, more, healthy(2), most=20) == [
        Observation("up to 12 retired pages on a GPU", "at most 20, none pending", "MAX_RETIRED_PAGES_SBE")
    ]
