"""Published figures of an all-reduce: each with its source, none invented."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.catalog.hardware import AllReduceRow, all_reduce_of, all_reduce_table
from gpu_healthcheck.healthcheck.settings.reading import packaged_profiles


@pytest.mark.parametrize("row", all_reduce_table().values(), ids=lambda row: row.instance_type)
def test_a_figure_is_of_a_type_that_we_know_and_of_all_its_gpus(row: AllReduceRow) -> None:
    profile = packaged_profiles()[row.instance_type]

    assert (profile.gpus, profile.nvlink) == (row.gpus, True)
    assert "issue" in row.source


@pytest.mark.parametrize(
    ("instance_type", "bandwidth"),
    [
        ("p5.48xlarge", 370),
        ("ml.p5en.48xlarge", 370),
        ("p5.4xlarge", None),
        ("p4d.24xlarge", 228),
        ("ml.p4de.24xlarge", 228),
        ("p6-b200.48xlarge", None),
        ("g5.48xlarge", None),
        ("", None),
    ],
)
def test_a_type_without_a_published_figure_has_none(instance_type: str, bandwidth: int | None) -> None:
    row = all_reduce_of(instance_type)

    assert (row.bus_bandwidth if row else None) == bandwidth
