"""Figures that the bench keeps of a measure, and its comparison of two commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.compare import FIGURES, ratios
from bench.measures import MEASURES
from bench.report import figures

RESULTS = Path(__file__).parents[2] / "bench/results.json"


def cycle(cpu: float, **more: Any) -> dict[str, Any]:
    return {"cycle": {"raw": {"cpu_milliseconds": {"mean": cpu}, **more}}}


def lists_in(value: Any) -> list[Any]:
    below = value.values() if isinstance(value, dict) else ()
    return [value] if isinstance(value, list) else [found for entry in below for found in lists_in(entry)]


def test_the_results_keep_figures_and_no_samples() -> None:
    kept = json.loads(RESULTS.read_text())["measures"]

    assert [name for name, entry in kept.items() if lists_in(entry.get("raw", {}))] == []
    assert figures({"ms": {"p50": 1.0, "each": [1.0]}, "timeline": ({"at": 1},)}) == {"ms": {"p50": 1.0}}


def test_each_figure_that_is_compared_is_one_that_the_bench_takes() -> None:
    kept = json.loads(RESULTS.read_text())["measures"]
    assert {figure.measure for figure in FIGURES} <= {measure.name for measure in MEASURES}
    assert len(ratios([(kept, kept)])) == len(FIGURES)
    assert {ratio.middle for ratio in ratios([(kept, kept)])} == {1.0}


def test_a_ratio_is_the_middle_one_of_its_rounds() -> None:
    rounds = [(cycle(10.0), cycle(ours)) for ours in (10.0, 10.4, 30.0)]
    worse = [(cycle(10.0), cycle(ours)) for ours in (10.0, 10.6, 30.0)]

    assert [(ratio.middle, ratio.is_worse) for ratio in ratios(rounds)] == [(1.04, False)]
    assert [(ratio.middle, ratio.is_worse) for ratio in ratios(worse)] == [(1.06, True)]


def test_what_one_commit_does_not_measure_has_no_ratio() -> None:
    judged = {"judge_milliseconds": {"mean": 2.0}}
    assert [ratio.what for ratio in ratios([(cycle(10.0), cycle(10.0, **judged))])] == ["CPU of a light cycle, mean ms"]
