"""Earlier hardware of a machine: the count only grows, and is forgotten with the machine."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.content import dump, parse
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, after_cycle, first_seen
from gpu_healthcheck.healthcheck.memory.exits import after_release, begin, gpus_answered
from gpu_healthcheck.healthcheck.memory.findings import MOST_GPUS, Acknowledgement, ActiveFinding, Memory, Release
from gpu_healthcheck.healthcheck.model import Evidence, Nature, Probe, Severity, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.model.node_facts import ONCE_HAD, EarlierHardware, GpuPosition
from gpu_healthcheck.healthcheck.probes.efa.infiniband import RDMA
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from tests.checks.evidence import ADDRESSES, efa_functions, functions, gpu_function, rdma
from tests.examples import BOOT, MACHINE, NOW, WALL, active_finding, fault, memory_with

UNOBSERVED = Unobserved(UnobservedCause.named("ProbeFailed"), "Permission denied")
PLACES = {address: GpuPosition(index // 4, "0000:50:00.0") for index, address in enumerate(ADDRESSES)}
PLACED = tuple(gpu_function(gpu, numa_node=place.numa_node, switch=place.switch) for gpu, place in PLACES.items())
LOW = fault("GpuCountLow", Severity.REBOOT, "node", flickers=True)
KNOWN = EarlierHardware(32, PLACES, 8)


def seen(pci: tuple[PciFunction, ...] | Unobserved, efa: int | Unobserved) -> Evidence:
    facts: dict[Probe[Any], Any] = {FUNCTIONS: pci, RDMA: rdma(efa) if isinstance(efa, int) else efa}
    return Evidence(facts)


def test_first_cycle_records_the_hardware() -> None:
    assert first_seen(EarlierHardware(), seen(PLACED + efa_functions(32), 32)) == KNOWN


def test_without_efa_the_count_is_none_that_was_counted() -> None:
    assert first_seen(EarlierHardware(), seen((), 0)) == EarlierHardware(0, gpus=0)


@pytest.mark.parametrize(("now", "known"), [(31, 32), (0, 32), (32, 32), (33, 33)])
def test_the_count_of_efa_devices_is_only_ever_raised(now: int, known: int) -> None:
    assert first_seen(KNOWN, seen(PLACED, now)).efa == known


@pytest.mark.parametrize(("now", "known"), [(7, 8), (0, 8), (8, 8), (16, 16)])
def test_count_of_gpus_only_rises_and_has_no_address(now: int, known: int) -> None:
    elsewhere = functions(*(f"0001:{bus:02x}:00.0" for bus in range(now)), driver="vfio-pci")

    assert first_seen(KNOWN, seen(elsewhere, 32)).gpus == first_seen(KNOWN, seen(elsewhere, UNOBSERVED)).gpus == known


def test_a_machine_of_another_instance_type_has_had_nothing_yet() -> None:
    memory = replace(memory_with(first=KNOWN), instance_type="ml.p5.48xlarge")

    def after(instance_type: str) -> int | None:
        evidence = seen(functions(ADDRESSES[0]), 0)
        return after_cycle(memory, JudgedCycle((), evidence=evidence, instance_type=instance_type), NOW).first.gpus

    assert [after(text) for text in ("p5.48xlarge", "", "p5.4xlarge")] == [8, 8, 1]


def test_of_an_earlier_version_each_gpu_that_it_met_counts_once() -> None:
    gpus = {address: {"uuid": f"GPU-{index}", "serial": f"165{index}"} for index, address in enumerate(ADDRESSES)}
    moved = {address.replace("0000:", "0001:"): about for address, about in gpus.items()}
    places = {address: GpuPosition(0, "") for address in (*gpus, *moved)}

    def read(known: dict[str, dict[str, str]], places: dict[str, GpuPosition]) -> int | None:
        written = dump(memory_with(first=EarlierHardware(32, places, 0), gpus=known)).split(b"\n")[1]
        without = written.replace(b', "gpus": 0', b"")
        head = json.dumps({"schema": 2, "sha256": hashlib.sha256(without).hexdigest()}).encode()
        return parse(head + b"\n" + without + b"\n").first.gpus

    assert read({}, dict(list(places.items())[:8])) == 8
    assert read({**gpus, **moved}, places) == 8
    assert read({}, {}) is None


def test_a_gpu_keeps_the_place_where_it_was_met() -> None:
    moved = tuple(replace(function, numa_node=7, switch="") for function in PLACED)

    assert first_seen(KNOWN, seen(moved, 32)) == first_seen(KNOWN, seen((), 32)) == KNOWN


def test_position_that_the_kernel_did_not_report_is_learned_later() -> None:
    unplaced = first_seen(EarlierHardware(), seen(functions(*ADDRESSES), 0))
    assert unplaced.places == {}

    assert first_seen(unplaced, seen(PLACED, 0)).places == KNOWN.places


@pytest.mark.parametrize("evidence", [seen(UNOBSERVED, 40), Evidence({}), Evidence({RDMA: rdma(40)})])
def test_a_look_that_did_not_count_tells_nothing(evidence: Evidence) -> None:
    assert first_seen(KNOWN, evidence) == KNOWN
    assert first_seen(EarlierHardware(), evidence) == EarlierHardware()


def test_it_stays_small() -> None:
    many = tuple(gpu_function(f"{domain:04x}:18:00.0", numa_node=0) for domain in range(5000))

    assert len(first_seen(KNOWN, seen(many, 0)).places) == MOST_GPUS


def test_it_outlives_the_boot_and_not_the_machine() -> None:
    memory = memory_with(first=KNOWN)

    assert begin(memory, MACHINE, BOOT, NOW).first == begin(memory, MACHINE, "another boot", NOW).first == KNOWN
    assert begin(memory, "another machine", "another boot", NOW).first == EarlierHardware()


def test_other_hardware_under_the_same_name_has_had_nothing_yet() -> None:
    memory = memory_with(first=KNOWN, gpus={ADDRESSES[0]: {"serial": "1"}})

    def answers(serial: str) -> EarlierHardware:
        return gpus_answered(memory, [Gpu(0, 0, ADDRESSES[0], serial=serial)], 0.0, NOW).first

    assert (answers("1"), answers("2")) == (KNOWN, EarlierHardware())


def test_a_release_accepts_the_smaller_count_and_only_where_it_names_the_finding() -> None:
    missing = active_finding(replace(LOW, source=ONCE_HAD), Nature.LEVEL, check="gpu-count")
    memory = replace(memory_with(missing), first=KNOWN)

    def released(reason: str, standing: ActiveFinding = missing) -> Memory:
        rows = (Acknowledgement(reason, "node", BOOT, None, WALL - timedelta(hours=1)),)
        return after_release(replace(memory, active=(standing,)), Release("ops", "sold", WALL, rows), NOW)

    accepted = released("GpuCountLow")
    assert (accepted.active, accepted.first.gpus, accepted.first.efa) == ((), 0, 32)
    assert first_seen(accepted.first, seen(functions(*ADDRESSES[:7]), 32)).gpus == 7
    assert (released("Xid79").active, released("Xid79").first) == ((missing,), KNOWN)
    # A fault against PCI or the profile recurs at once, and so never ends.
    by_profile = active_finding(LOW, Nature.LEVEL, check="gpu-count")
    assert (released("GpuCountLow", by_profile).active, released("GpuCountLow", by_profile).first) == (
        (by_profile,),
        KNOWN,
    )
