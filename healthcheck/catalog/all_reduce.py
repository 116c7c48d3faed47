"""What an all-reduce over all GPUs of an instance type reaches, where somebody who knows has published it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from healthcheck.catalog.rows import read_rows


class AllReduceRow(Struct, frozen=True):
    """`bus_bandwidth` in GB/s, as nccl-tests counts it, over so many GPUs with messages of 1 GiB or more."""

    instance_type: str
    gpus: int
    bus_bandwidth: int
    source: str


@cache
def all_reduce_table() -> Mapping[str, AllReduceRow]:
    """By type. Raises ValueError for a row that a build should never have let through."""
    table: dict[str, AllReduceRow] = {}
    for line, row in read_rows("all_reduce.csv"):
        if row["type"] in table:
            raise ValueError(f"all_reduce.csv:{line}: a second row for {row['type']!r}")
        table[row["type"]] = AllReduceRow(row["type"], int(row["gpus"]), int(row["bus_bandwidth"]), row["source"])
    return table


def all_reduce_of(instance_type: str) -> AllReduceRow | None:
    """The row of a type; HyperPod's `ml.` in front is dropped. None: nobody has published a figure."""
    return all_reduce_table().get(instance_type.removeprefix("ml."))
