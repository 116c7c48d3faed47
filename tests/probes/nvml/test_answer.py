"""The child's line as facts: invalid parts, and the reading that each belongs to."""

from __future__ import annotations

import json
from typing import get_type_hints

import pynvml
import pytest

from gpu_healthcheck.healthcheck.model import Unobserved
from gpu_healthcheck.healthcheck.probes.nvml import queries
from gpu_healthcheck.healthcheck.probes.nvml.answer import read_answer
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NONSENSE, READINGS, Gpu, Gpus, NvLink, Unsigned


def line(**changes: object) -> bytes:
    answer = {"library": "/lib/nvml", "driver_version": "570", "gpus": [{"index": 0, "error": 0}]}
    return json.dumps(answer | changes).encode()


TWO_GPUS: list[dict[str, object]] = [
    {"index": index, "error": 0, "address": address} for index, address in enumerate(("0000:53:00.0", "0000:64:00.0"))
]
LINK = [0, 1, 6, {}, 0]
NO_NUMBERS: tuple[object, ...] = ("7", -1, 1.5, True, [], {}, 2**64)
NUMBERS = (Unsigned | None, int | None, bool | None)
NO_READINGS: dict[str, tuple[object, ...]] = {
    **{name: NO_NUMBERS for name, kind in get_type_hints(Gpu).items() if name in READINGS and kind in NUMBERS},
    "ecc_mode": (*NO_NUMBERS, "on", [1], [1, 1, 1], ["1", "1"], [-1, 0], {"1": 1, "0": 1}),
    "mig_mode": (1, [1], [1, "0"]),
    "ecc": (0, [0, 0, 0], [0, 0, 0, -1], [0, 0, 0, 2**64], [0, 0, 0, "0"]),
    "row_remap": (0, [0, 0, 0], [0, 0, 0, 0], [0, -1, 0, 0, None], [0, 0, 0, 0.5, None], [0, 0, 0, 0, -1]),
    "retired_pages": (0, [0, 0], [-1, 0, 0], ["", 0, 0]),
    "repair": (0, [0], [0, -1]),
    "temperature": (34, [34, None, None], [4294967295, None, None, None], ["34", None, None, None]),
    "memory": (0, [1, 0], [1, 0, -1], [None, 0, 0], [0, 0, 2**64]),
    "pcie": (16, [16], [16, 16], [16, -16, None, None], [8, 16, -1, 5], [8, 16, "5", 5]),
    "nvlinks": (
        18,
        "links",
        [1],
        [[0, 1]],
        [[0, 1, "6", {}, 0]],
        [[0, "1", 6, {}, 0]],
        [[0, 1, -6, {}, 0]],
        [LINK] * 37,
    ),
    "fabric": (3, [3, 0], [-3, 0, 0, "", None, None], [3, 0, 0, 7, None, None], [3, 0, 0, "x", 0, 0]),
    "instances": ("1", [-1], [1] * 65),
    "memory_errors": (0, [0], [0, -1], [0, "0"], [0, 2**64]),
    "throttled": (0, [0] * 3, [0, 0, 0, -1], [True] * 4),
    "load": (0, [0] * 10, [*[0] * 8, [100, 1], None, None], [*[0] * 8, [0, 0, 0], None, None]),
    "sram_unique": (0, [0], [0, -1], [0, 0, 0]),
    "mig_devices": (1, ["MIG-1"], {"MIG-1": "0"}, {"MIG-1": -1}, {f"MIG-{number}": 0 for number in range(65)}),
}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello",
        b"null",
        b"7",
        b"[]",
        b'"gpus"',
        b"{}",
        b"\xff\xfe",
        b'{"gpus": 1}\n{"gpus": 2}',
        line(gpus=7),
        line(gpus=["x"]),
        line(gpus=[{}]),
        line(gpus=[{"index": "0", "error": 0}]),
        line(gpus=[{"index": 0, "error": None}]),
        line(gpus=[{"index": 0, "error": 0, "errors": {"recovery_action": None}}]),
        line(gpus=[{"index": 0, "error": 0, "errors": 7}]),
        line(gpus=[{"index": 0, "error": 0, "nonsense": 7}]),
        line(p2p=7),
        line(p2p=[[0, 1, 0, 0]]),
        line(gpus=TWO_GPUS, p2p=[[0, 1]]),
        line(gpus=TWO_GPUS, p2p=[[0, 1, -1, 0]]),
        line(gpus=TWO_GPUS, p2p=[[0, 1, 0, "yes"]]),
        b'{"library": "/lib/nvml", "error": 9}',
    ],
)
def test_a_line_that_is_no_answer_is_nonsense_but_came_back(raw: bytes) -> None:
    answer = read_answer(raw)

    assert isinstance(answer.gpus, Unobserved)
    assert (answer.gpus.cause.name, answer.answered_by_driver) == ("NvmlNonsense", True)


def read(**values: object) -> tuple[Gpu, ...]:
    """Read two GPUs, the first with these values."""
    answer = read_answer(line(gpus=[TWO_GPUS[0] | values, TWO_GPUS[1]])).gpus
    assert isinstance(answer, Gpus)
    return answer.gpus


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in NO_READINGS.items() for value in values])
def test_invalid_reading_is_an_error_of_that_reading_of_that_gpu(name: str, value: object) -> None:
    spoiled, other = read(**{name: value})

    if READINGS[name].on_failure == "none":
        assert spoiled == Gpu(0, address="0000:53:00.0")
    elif name == "recovery_action":
        assert spoiled == Gpu(0, address="0000:53:00.0", recovery_error=NONSENSE)
    else:
        assert spoiled == Gpu(0, address="0000:53:00.0", errors={name: NONSENSE})
    assert other == Gpu(1, address="0000:64:00.0")


def test_each_reading_has_invalid_values_and_its_call_a_function() -> None:
    names = {name for name, row in READINGS.items() if row.on_failure == "gpu"}
    assert READINGS.keys() == NO_READINGS.keys() | names | {"nvlink_counters"}
    assert {
        row.call for row in READINGS.values() if not hasattr(queries, row.call) and not hasattr(pynvml, row.call)
    } == set()


@pytest.mark.parametrize("name", ["address", "uuid", "serial", "name"])
@pytest.mark.parametrize("value", [7, ["x"], {}, True])
def test_a_name_that_makes_no_sense_is_an_error_of_that_gpu(name: str, value: object) -> None:
    nameless, other = read(**{name: value})

    assert (nameless.error, getattr(nameless, name), nameless.errors) == (NONSENSE, "", {})
    assert other == Gpu(1, address="0000:64:00.0")


def test_an_error_of_the_gpu_counts_for_more_than_a_name_that_makes_no_sense() -> None:
    assert read(error=15, uuid=7)[0].error == 15


def test_failure_of_the_child_is_an_error() -> None:
    first = read(nonsense=["temperature", "recovery_action"])[0]

    assert (first.error, first.errors, first.recovery_error) == (0, {"temperature": NONSENSE}, NONSENSE)
    assert read(nonsense=["uuid"])[0].error == NONSENSE


@pytest.mark.parametrize("counters", [7, [], {"0": 7}, {"0": {"replays": -1}}, {"0": {"replays": "0"}}, {"x": {}}])
def test_counters_of_links_that_are_no_counts_leave_their_states_known(counters: object) -> None:
    first = read(nvlinks=[LINK], nvlink_counters=counters)[0]

    assert (first.nvlinks, first.errors) == ((NvLink(0, True, 6),), {"nvlink_counters": NONSENSE})


def test_a_whole_line_is_read() -> None:
    assert read_answer(line()).gpus == Gpus("570", "/lib/nvml", (Gpu(0),))
