"""Published speeds of GPUs: arithmetic in TFLOPS, copies in GB/s."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from healthcheck.catalog.csv_rows import read_rows


@cache
def gpu_speed_table() -> Mapping[tuple[str, str], float]:
    """Return the figures by the GPU's product name and the quantity.

    Raises ValueError for an invalid row, which the build should reject.
    """
    table: dict[tuple[str, str], float] = {}
    for line, row in read_rows("gpu_speeds.csv"):
        key = (row["gpu"], row["quantity"])
        if key in table:
            raise ValueError(f"gpu_speeds.csv:{line}: a second row for {key}")
        table[key] = float(row["figure"])
    return table
