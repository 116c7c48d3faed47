"""Figures that the bench keeps of a measure, and its comparison of two commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.__main__ import MEASURES
from bench.compare import FIGURES, ratios
from bench.outcome import figures

RESULTS = Path(__file__).parents[2] / "bench/results.json"


def cycle(cpu: float, **more: Any) -> dict[str, Any]:
    return {"cycle": {"raw": {"cpu_milliseconds": {"mean": cpu}, **more}}}


def lists_in(value: Any) -> list[Any]:
    below = value.values() if isinstance(value, dict) else ()
    return [value] if isinstance(value, list) else [found for entry in below for found in lists_in(entry)]


def test_results_keep_figures_without_samples() -> None:
    kept = json.loads(RESULTS.read_text())["measures"]

    assert [name for name, entry in kept.items() if lists_in(entry.get("raw", {}))] == []
    assert figures({"ms": {"p50": 1.0, "each": [1.0]}, "timeline": ({"at": 1},)}) == {"ms": {"p50": 1.0}}


def test_compared_figures_are_measured() -> None:
    kept = json.loads(RESULTS.read_text())["measures"]
    assert {measure for measure, *_ in FIGURES.values()} <= set(MEASURES)
    assert len(ratios([(kept, kept)])) == len(FIGURES)
    assert {ratio.middle for ratio in ratios([(kept, kept)])} == {1.0}


def test_ratio_is_the_median_of_its_rounds() -> None:
    rounds = [(cycle(10.0), cycle(ours)) for ours in (10.0, 10.4, 30.0)]
    worse = [(cycle(10.0), cycle(ours)) for ours in (10.0, 10.6, 30.0)]

    assert [(ratio.middle, ratio.is_worse) for ratio in ratios(rounds)] == [(1.04, False)]
    assert [(ratio.middle, ratio.is_worse) for ratio in ratios(worse)] == [(1.06, True)]


def test_figure_of_one_commit_alone_has_no_ratio() -> None:
    judged = {"judge_milliseconds": {"mean": 2.0}}
    assert [ratio.what for ratio in ratios([(cycle(10.0), cycle(10.0, **judged))])] == ["CPU of a light cycle, mean ms"]
