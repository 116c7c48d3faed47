"""Position of each GPU in the machine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.gpu_placement import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware, GpuPosition
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from tests.checks.evidence import ADDRESSES, P5, efa_functions, gpu_function, judgements

SWITCHES = tuple(f"0000:00:{slot:02x}.0" for slot in range(0x10, 0x18))
FIRST = {address: GpuPosition(index // 4, SWITCHES[index]) for index, address in enumerate(ADDRESSES)}


def functions(places: Mapping[str, GpuPosition]) -> tuple[PciFunction, ...]:
    gpus = [gpu_function(address, numa_node=place.numa_node, switch=place.switch) for address, place in places.items()]
    return (*efa_functions(4), *gpus)


def judge(now: Mapping[str, GpuPosition], first: Mapping[str, GpuPosition]) -> list[Judgement]:
    return judgements(CHECK, replace(P5, first=EarlierHardware(places=first)), {FUNCTIONS: functions(now)})


def seen(message: str) -> Observation:
    return Observation(
        f"GPUs by NUMA node: {message}", "the same positions as in the first check cycle", "this machine's memory"
    )


@pytest.mark.parametrize(
    ("place", "message", "nodes"),
    [
        (GpuPosition(0, SWITCHES[7]), f"on NUMA node 0 below {SWITCHES[7]}", "4 on 0, 4 on 1"),
        (GpuPosition(1, SWITCHES[3]), f"on NUMA node 1 below {SWITCHES[3]}", "3 on 0, 5 on 1"),
        (GpuPosition(-1, SWITCHES[3]), f"on no NUMA node below {SWITCHES[3]}", "1 on none, 3 on 0, 4 on 1"),
        (GpuPosition(0, ""), "on NUMA node 0 below the root", "4 on 0, 4 on 1"),
    ],
)
def test_a_gpu_at_another_place_is_found_with_both(place: GpuPosition, message: str, nodes: str) -> None:
    detail = f"{message}, at first on NUMA node 0 below {SWITCHES[3]}"

    assert judge({**FIRST, ADDRESSES[3]: place}, FIRST) == [
        Finding("GpuMoved", Severity.MONITOR, f"gpu/{ADDRESSES[3]}", detail, flickers=True),
        seen(nodes),
    ]


def test_gpus_where_they_were_are_no_finding() -> None:
    assert judge(FIRST, FIRST) == [seen("4 on 0, 4 on 1")]


def test_gpus_that_were_never_met_are_not_expected_anywhere() -> None:
    assert judge(FIRST, {}) == [Observation("GPUs by NUMA node: 4 on 0, 4 on 1")]


def test_added_and_removed_gpus_have_not_moved() -> None:
    known = dict(list(FIRST.items())[:4])

    assert judge(FIRST, known) == [seen("4 on 0, 4 on 1")]
    assert judge(known, FIRST) == [seen("4 on 0")]


def test_a_node_without_gpus_has_none_to_place() -> None:
    assert judge({}, FIRST) == [NotConfigured("no GPU on PCI")]
