"""Published bandwidth of an all-reduce over all GPUs of an instance type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from healthcheck.catalog.csv_rows import read_rows


class AllReduceRow(Struct, frozen=True):
    """Published result of one instance type.

    `bus_bandwidth` is in GB/s, by the definition of nccl-tests, over this number of GPUs with messages of at least
    1 GiB.
    """

    instance_type: str
    gpus: int
    bus_bandwidth: int
    source: str


@cache
def all_reduce_table() -> Mapping[str, AllReduceRow]:
    """Return the rows by instance type.

    Raises ValueError for an invalid row, which the build should reject.
    """
    table: dict[str, AllReduceRow] = {}
    for line, row in read_rows("all_reduce.csv"):
        if row["type"] in table:
            raise ValueError(f"all_reduce.csv:{line}: a second row for {row['type']!r}")
        table[row["type"]] = AllReduceRow(row["type"], int(row["gpus"]), int(row["bus_bandwidth"]), row["source"])
    return table


def all_reduce_of(instance_type: str) -> AllReduceRow | None:
    """Return the row of an instance type, or None if no figure is published.

    HyperPod's prefix `ml.` is dropped.
    """
    return all_reduce_table().get(instance_type.removeprefix("ml."))
