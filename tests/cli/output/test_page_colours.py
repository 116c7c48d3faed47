"""Colours of the HTML pages: readable text, and a status that colour-blind people can tell."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from gpu_healthcheck.cli.fleet import Fleet, FleetBudget
from gpu_healthcheck.cli.output import fleet_page
from gpu_healthcheck.diagnosis.causes.diagnose import Diagnosis
from gpu_healthcheck.diagnosis.report.content import Report
from gpu_healthcheck.diagnosis.report.pages import html_page

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FLEET = fleet_page.text(Fleet(FleetBudget(None, None, None), [], []), NOW)
DIAGNOSIS = html_page(Report(Diagnosis(NOW, (), ())))
SIGHTS = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""Linear RGB as each sight perceives it (Machado, Oliveira and Fernandes, 2009, severity 1.0)."""
LADDER = ("isolate", "reboot", "reset", "unread", "warn", "pass")
"""Fills of the squares, worst first."""
TEXTS = [
    *((ink, paper) for ink in ("ink", "muted", "bad", "doubt", "good") for paper in ("paper", "soft")),
    *((f"on-{fill}", fill) for fill in LADDER),
]
READABLE = 4.5
"""WCAG 2.2, success criterion 1.4.3."""


def palette(scheme: str) -> dict[str, str]:
    """Return the colours by name. The dark scheme replaces those of the light one."""
    roots = re.findall(r"(@media screen and \(prefers-color-scheme: dark\) \{ )?:root \{([^}]*)\}", FLEET)
    named = "".join(words for dark, words in roots if scheme == "dark" or not dark)
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", named))


def luminance(colour: str, sight: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    rows = [sum(a * b for a, b in zip(row, linear, strict=True)) for row in SIGHTS[sight]]
    return sum(weight * min(max(row, 0), 1) for weight, row in zip((0.2126, 0.7152, 0.0722), rows, strict=True))


def contrast(one: str, other: str, sight: str = "full") -> float:
    darker, lighter = sorted((luminance(one, sight), luminance(other, sight)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("ink", "paper"), TEXTS)
def test_page_colours_have_enough_contrast(ink: str, paper: str, scheme: str) -> None:
    colours = palette(scheme)

    assert contrast(colours[ink], colours[paper]) >= READABLE


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_colours_are_more_visible_for_worse_statuses(scheme: str, sight: str) -> None:
    colours = palette(scheme)
    ladder = [contrast(colours[fill], colours["paper"], sight) for fill in LADDER]
    against_healthy = [contrast(colours[fill], colours["pass"], sight) for fill in LADDER]

    assert all(worse > better for worse, better in pairwise(ladder))
    assert all(worse > better for worse, better in pairwise(against_healthy))
    assert min(contrast(colours[fill], colours["pass"], sight) for fill in ("isolate", "reboot")) >= READABLE


def test_page_squares_differ_by_letter_or_shape() -> None:
    marks = dict(re.findall(r'\.(\w+) \{ --fill: [^}]*--mark: "([^"]*)"', FLEET))

    assert list(marks) == list(fleet_page.KINDS)
    assert len(set(marks.values())) == len(marks)
    assert [kind for kind, mark in marks.items() if not mark] == ["pass"]
    sizes = re.findall(r"--side: ([\d.]+)rem; --gap: [^}]*?--letter: ([\d.]+)rem", FLEET)
    assert [side for side, letter in sizes if not float(letter) <= float(side)] == []


@pytest.mark.parametrize("text", [FLEET, DIAGNOSIS])
def test_page_texts_use_only_the_palette(text: str) -> None:
    style = text.partition("<style>")[2].partition("</style>")[0]

    assert re.findall(r"(?<![\w-])(?:color|background): (?!var\(|inherit|none)[^;}]*", style) == []
    assert "opacity" not in style.replace(".off, .filtered .p { opacity: .15; }", "")
