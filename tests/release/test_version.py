"""The next version replaces the current one where the sources name it, and nowhere else."""

from __future__ import annotations

import pytest

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
def test_current_version_is_renamed(before: str, after: str) -> None:
    assert renamed(before, "0.2.0", "0.3.0") == after
