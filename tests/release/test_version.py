"""The next version is written where the sources name the one of now, and nowhere else; its changes have a section."""

from __future__ import annotations

import pytest

from release.changelog import section
from sim.release.__main__ import named
from tools.version import renamed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('__version__ = "0.2.0"', '__version__ = "0.3.0"'),
        ("image: gpu-healthcheck:0.2.0", "image: gpu-healthcheck:0.3.0"),
        ("gpu-healthcheck:0.2.0-slim", "gpu-healthcheck:0.3.0-slim"),
        ("    newTag: 0.2.0", "    newTag: 0.3.0"),
        ("ARG VERSION=0.2.0", "ARG VERSION=0.3.0"),
        ("$ git checkout v0.2.0 && make", "$ git checkout v0.3.0 && make"),
        ("The deep runs of 0.2.0 gave their records", "The deep runs of 0.2.0 gave their records"),
        ("gpu-healthcheck:0.2.01", "gpu-healthcheck:0.2.01"),
        ("DCGM_VERSION 0.2.0", "DCGM_VERSION 0.2.0"),
    ],
)
def test_the_version_of_now_is_renamed(before: str, after: str) -> None:
    assert renamed(before, "0.2.0", "0.3.0") == after


@pytest.mark.parametrize(
    "changelog",
    ["## Unreleased\n\nthis\n\n## 0.1.0 - 2026-11-22\n\nthat\n", "## Unreleased\n\n## 0.2.0 - 2026-11-23\n\nthis\n"],
)
def test_a_rehearsal_finds_what_changed_before_and_after_it_is_named(changelog: str) -> None:
    assert section(named(changelog, "0.2.0"), "0.2.0") == "this\n"
