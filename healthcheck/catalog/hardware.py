"""Published properties of hardware, by instance type or GPU.

The interconnect of an instance type (NVLinks, NVSwitches and the services that they need), the bandwidth of an
all-reduce over all of its GPUs, and the speeds of GPUs: arithmetic in TFLOPS, copies in GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows

_WORDS = {"yes": True, "no": False}


class FabricRow(Struct, frozen=True):
    """The interconnect of one instance type.

    `instance_type` is a type, or a family whose types are all the same (`g5`).
    """

    instance_type: str
    links_per_gpu: int
    nvlink_version: int
    """nvmlNvlinkVersion_t: 2 is NVLink 2, 4 is NVLink 3, 6 is NVLink 4, 7 is NVLink 5; 0 without links."""
    nvswitches: int | None
    """Number of NVSwitches on PCI; None if it is unknown."""
    fabric_manager: bool
    """Whether the node has to run the fabric manager."""
    imex: bool
    """Whether the node has to run nvidia-imex, as for a fabric across several nodes."""
    source: str


@cache
def fabrics() -> Mapping[str, FabricRow]:
    """Return the rows by type or family.

    Raises ValueError for an invalid row, which the build should reject.
    """
    table: dict[str, FabricRow] = {}
    for line, row in read_rows("fabrics.csv"):
        name = row["type"]
        if name in table or not {row["fabric_manager"], row["imex"]} <= set(_WORDS):
            raise ValueError(f"fabrics.csv:{line}: type {name!r}: a second row, or neither yes nor no")
        table[name] = FabricRow(
            name,
            int(row["links_per_gpu"]),
            int(row["nvlink_version"]),
            int(row["nvswitches"]) if row["nvswitches"] else None,
            _WORDS[row["fabric_manager"]],
            _WORDS[row["imex"]],
            row["source"],
        )
    return table


def fabric_of(instance_type: str) -> FabricRow | None:
    """Return the row of a type, else of its family; None if there is no expectation.

    HyperPod's prefix `ml.` is dropped.
    """
    name = instance_type.removeprefix("ml.")
    return fabrics().get(name) or fabrics().get(name.partition(".")[0])


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
