"""What a machine once had: counted up and never down, and forgotten with the machine."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from healthcheck.checks.expectation import FirstSeen, Place
from healthcheck.memory.exits import begin, gpus_answered
from healthcheck.memory.findings import MOST_GPUS
from healthcheck.memory.looks import first_seen
from healthcheck.model import Cause, Evidence, Probe, Unobserved
from healthcheck.probes.efa.infiniband import RDMA
from healthcheck.probes.nvml.gpus import Gpu
from healthcheck.probes.pci import FUNCTIONS, PciFunction
from tests.checks.evidence import ADDRESSES, efa_functions, functions, gpu_function, rdma
from tests.examples import BOOT, MACHINE, NOW, remembers

BLIND = Unobserved(Cause.named("ProbeFailed"), "Permission denied")
PLACES = {address: Place(index // 4, "0000:50:00.0") for index, address in enumerate(ADDRESSES)}
PLACED = tuple(gpu_function(gpu, numa_node=place.numa_node, switch=place.switch) for gpu, place in PLACES.items())
KNOWN = FirstSeen(32, PLACES)


def seen(pci: tuple[PciFunction, ...] | Unobserved, efa: int | Unobserved) -> Evidence:
    facts: dict[Probe[Any], Any] = {FUNCTIONS: pci, RDMA: rdma(efa) if isinstance(efa, int) else efa}
    return Evidence(facts)


def test_a_first_look_learns_what_is_there() -> None:
    assert first_seen(FirstSeen(), seen(PLACED + efa_functions(32), 32)) == KNOWN


def test_without_efa_the_count_is_none_that_was_counted() -> None:
    assert first_seen(FirstSeen(), seen((), 0)) == FirstSeen(0)


@pytest.mark.parametrize(("now", "known"), [(31, 32), (0, 32), (32, 32), (33, 33)])
def test_the_count_of_efa_devices_is_only_ever_raised(now: int, known: int) -> None:
    assert first_seen(KNOWN, seen(PLACED, now)).efa == known


def test_a_gpu_keeps_the_place_where_it_was_met() -> None:
    moved = tuple(replace(one, numa_node=7, switch="") for one in PLACED)

    assert first_seen(KNOWN, seen(moved, 32)) == first_seen(KNOWN, seen((), 32)) == KNOWN


def test_a_place_of_which_the_kernel_says_nothing_is_learned_when_it_does() -> None:
    unplaced = first_seen(FirstSeen(), seen(functions(*ADDRESSES), 0))
    assert unplaced.places == {}

    assert first_seen(unplaced, seen(PLACED, 0)).places == KNOWN.places


@pytest.mark.parametrize("evidence", [seen(BLIND, 40), seen((), BLIND), Evidence({}), Evidence({RDMA: rdma(40)})])
def test_a_look_that_did_not_count_tells_nothing(evidence: Evidence) -> None:
    assert first_seen(KNOWN, evidence) == KNOWN
    assert first_seen(FirstSeen(), evidence) == FirstSeen()


def test_it_stays_small() -> None:
    many = tuple(gpu_function(f"{domain:04x}:18:00.0", numa_node=0) for domain in range(5000))

    assert len(first_seen(KNOWN, seen(many, 0)).places) == MOST_GPUS


def test_it_outlives_the_boot_and_not_the_machine() -> None:
    memory = remembers(first=KNOWN)

    assert begin(memory, MACHINE, BOOT, NOW).first == begin(memory, MACHINE, "another boot", NOW).first == KNOWN
    assert begin(memory, "another machine", "another boot", NOW).first == FirstSeen()


def test_other_hardware_under_the_same_name_has_had_nothing_yet() -> None:
    memory = remembers(first=KNOWN, gpus={ADDRESSES[0]: {"serial": "1"}})

    def answers(serial: str) -> FirstSeen:
        return gpus_answered(memory, [Gpu(0, 0, ADDRESSES[0], serial=serial)], 0.0, NOW).first

    assert (answers("1"), answers("2")) == (KNOWN, FirstSeen())
