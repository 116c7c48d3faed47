"""NVML through the real child process and the simulated driver's library."""

from __future__ import annotations

import ctypes.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.driver import CHECK
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Evidence,
    Finding,
    Host,
    Judgement,
    Observation,
    ProbeError,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver, child_program
from gpu_healthcheck.healthcheck.probes.nvml.gpus import (
    NONSENSE,
    NVML,
    READINGS,
    DriverReading,
    EccCounts,
    Fabric,
    Gpu,
    Gpus,
    Load,
    MemoryErrors,
    MemoryUse,
    Mode,
    NvLink,
    P2p,
    PcieLink,
    PendingRepair,
    RetiredPages,
    RowRemap,
    Samples,
    SramUnique,
    Temperature,
    ThrottledTime,
    read_driver,
)
from gpu_healthcheck.sim import nvml_library
from gpu_healthcheck.sim.c_library import find_compiler
from gpu_healthcheck.sim.node import SimulatedNode
from tests.checks import evidence

# nvml.h: every nvmlReturn_t but SUCCESS, and one that no header knows.
ERRORS = [*range(1, 31), 999, 12345]
NOT_OF_THE_GPU = (3, 4, 13, 25)
ABSENT = (2, 3, 13, 25)
BROKEN = (8, 11, 15, 16)
GONE = (15, 16)
CAUSES = {9: "DriverNotLoaded", 18: "NvmlLibraryMismatch"}
WITHOUT_ANSWER_OF: dict[str, Callable[[Gpu], Gpu]] = {
    "nvmlDeviceGetPciInfo_v3": lambda gpu: replace(gpu, address=""),
    "nvmlDeviceGetUUID": lambda gpu: replace(gpu, uuid=""),
    "nvmlDeviceGetSerial": lambda gpu: replace(gpu, serial=""),
    "nvmlDeviceGetName": lambda gpu: replace(gpu, name=""),
}
VERSION = "570.133.20"
SHORT = 0.4


class Clock:
    """Seconds of a monotonic clock that moves on request."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def driver(node: SimulatedNode, clock: Clock) -> Iterator[Driver]:
    one = Driver(node.root, use_loader=False, clock=clock)
    yield one
    one.end()


def gpus(reading: DriverReading) -> tuple[Gpu, ...]:
    assert isinstance(reading.answer, Gpus), reading.answer
    return reading.answer.gpus


def cause(reading: DriverReading) -> str:
    assert isinstance(reading.answer, Unobserved), reading.answer
    return reading.answer.cause.name


def detail(reading: DriverReading) -> str:
    assert isinstance(reading.answer, Unobserved), reading.answer
    return reading.answer.detail


def judged(reading: DriverReading) -> list[Judgement]:
    return [
        judgement
        for judgement in CHECK.judge(Evidence({NVML: reading}), Expectation())
        if not isinstance(judgement, Observation)
    ]


NO_USE = Samples(71, 70 * 200_000, 0, 0, 0)
IDLE = Load(utilisation=NO_USE)
BUSY = Load(
    *(345, 2619, 70_000, 0, 0, 0),
    utilisation=Samples(71, 70 * 200_000, 7_029, 99, 99),
    memory_utilisation=NO_USE,
    default_power_limit_milliwatts=700_000,
)
BUSY_SAMPLES = "71 200000 99"
LINK = NvLink(0, active=True, version=6, counters={"replays": 0, "recoveries": 0, "crc_errors": 0})


def healthy(node: SimulatedNode) -> tuple[Gpu, ...]:
    """The GPUs of a p5.48xlarge."""
    return tuple(
        replace(
            evidence.healthy(gpu.index),
            address=gpu.address,
            uuid=gpu.uuid,
            serial=gpu.serial,
            nvlinks=tuple(replace(LINK, link=link) for link in range(18)),
            fabric=Fabric(3, 0, 0, "", 0x1AA, 0),
            throttled=ThrottledTime(0, 0),
            load=IDLE,
            unrepairable_memory=None,
        )
        for gpu in node.gpus
    )


def pairs(node: SimulatedNode, *without: int) -> tuple[P2p, ...]:
    addresses = [gpu.address for gpu in node.gpus if gpu.index not in without]
    return tuple(P2p(text, other, 0, 0) for text, other in combinations(addresses, 2))


class TestAnswers:
    def test_eight_gpus_answer_with_all_their_names(self, node: SimulatedNode, driver: Driver) -> None:
        library = node.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.133.20"

        answer = Gpus(VERSION, str(library), healthy(node), pairs(node))
        assert driver.read() == DriverReading(answer, (), 60.0, None, VERSION, (VERSION,), read_at=1000.0)

    def test_a_lost_gpu_has_no_name_but_its_index_and_the_others_answer(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        node.lose_gpu(3)

        expected = list(healthy(node))
        expected[3] = Gpu(3, 15)
        assert gpus(driver.read()) == tuple(expected)

    def test_a_gpu_that_vanished_moves_the_later_ones_up(self, node: SimulatedNode, driver: Driver) -> None:
        node.remove_gpu(0)

        seen = gpus(driver.read())

        assert [gpu.address for gpu in seen] == [gpu.address for gpu in node.gpus[1:]]
        assert [gpu.index for gpu in seen] == list(range(7))

    def test_every_handle_error_is_reported_for_that_gpu_alone(self, node: SimulatedNode, driver: Driver) -> None:
        answered = {}
        for error in ERRORS:
            node.write_value("nvml/gpu2/error", error)
            seen = gpus(driver.read())
            assert seen[:2] + seen[3:] == healthy(node)[:2] + healthy(node)[3:]
            answered[error] = seen[2]

        assert answered == {error: Gpu(2, error) for error in ERRORS}

    @pytest.mark.parametrize("call", WITHOUT_ANSWER_OF)
    def test_an_error_of_a_call_is_the_gpus_unless_the_call_is_not_for_it(
        self, node: SimulatedNode, driver: Driver, call: str
    ) -> None:
        answered = {}
        for error in ERRORS:
            node.write_value(f"nvml/gpu2/error.{call}", error)
            answered[error] = gpus(driver.read())[2]

        nameless = WITHOUT_ANSWER_OF[call](healthy(node)[2])
        assert {error: gpu for error, gpu in answered.items() if error not in GONE} == {
            error: replace(nameless, error=0 if error in NOT_OF_THE_GPU else error)
            for error in ERRORS
            if error not in GONE
        }
        assert [(answered[error].error, answered[error].fabric) for error in GONE] == [(error, None) for error in GONE]

    @pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlSystemGetDriverVersion"])
    def test_system_error_is_unobserved(self, node: SimulatedNode, driver: Driver, call: str) -> None:
        answered = {}
        for error in ERRORS:
            node.write_value(f"nvml/error/{call}", error)
            answered[error] = cause(driver.read())

        assert answered == {error: CAUSES.get(error, "NvmlError") for error in ERRORS}
        (node.root / "nvml/error" / call).unlink()
        assert gpus(driver.read()) == healthy(node)

    def test_a_system_error_is_reported_with_number_and_library(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/error/nvmlInitWithFlags", 17)

        library = node.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.133.20"
        assert detail(driver.read()).endswith(f"(error 17, {library})")

    def test_a_shutdown_that_fails_spoils_no_answer(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/error/nvmlShutdown", 999)

        assert gpus(driver.read()) == healthy(node)

    def test_one_error_stands_in_for_a_gpu_that_fails_every_call(self, node: SimulatedNode, driver: Driver) -> None:
        for error, call in zip((3, 999, 8, 11), WITHOUT_ANSWER_OF, strict=True):
            node.write_value(f"nvml/gpu2/error.{call}", error)

        nameless = replace(healthy(node)[2], error=999, address="", uuid="", serial="", name="")
        assert gpus(driver.read())[2] == nameless

    def test_gpu_lost_during_a_read_is_not_queried_further(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/gpu2/error.nvmlDeviceGetSerial", 15)
        node.hang("nvmlDeviceGetName")
        for index in (0, 1, *range(3, 8)):
            node.remove_gpu(index)

        first = node.gpus[2]
        assert gpus(driver.read()) == (Gpu(0, 15, first.address, first.uuid),)

    @pytest.mark.parametrize(
        ("file", "value", "message"),
        [
            ("nvml/count", 4294967295, "NVML reports 4294967295 GPUs"),
            ("nvml/count", 257, "NVML reports 257 GPUs"),
        ],
    )
    def test_implausible_answer_is_unobserved(
        self, node: SimulatedNode, driver: Driver, file: str, value: object, message: str
    ) -> None:
        node.write_value(file, value)

        reading = driver.read()

        assert (cause(reading), message in detail(reading)) == ("NvmlNonsense", True)

    @pytest.mark.parametrize("value", [b"nonsense\n", b"99999999:99:99.9.9\n", b"\xff\xfe\n"])
    def test_an_address_that_is_none_leaves_the_gpu_without_one_and_the_others_answer(
        self, node: SimulatedNode, driver: Driver, value: bytes
    ) -> None:
        (node.root / "nvml/gpu2/bus_id").write_bytes(value)

        expected = list(healthy(node))
        expected[2] = replace(expected[2], error=NONSENSE, address="")
        assert gpus(driver.read()) == tuple(expected)

    @pytest.mark.parametrize("name", ["uuid", "serial", "name"])
    def test_a_name_that_is_no_text_makes_no_sense_for_that_gpu_alone(
        self, node: SimulatedNode, driver: Driver, name: str
    ) -> None:
        (node.root / f"nvml/gpu2/{name}").write_bytes(b"\xff\xfe\n")

        expected = list(healthy(node))
        nameless: dict[str, Any] = {name: ""}
        expected[2] = replace(expected[2], error=NONSENSE, **nameless)
        assert gpus(driver.read()) == tuple(expected)

    def test_more_gpus_than_there_are_give_no_handle(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/count", 10)

        assert [(gpu.index, gpu.error) for gpu in gpus(driver.read())[8:]] == [(8, 2), (9, 2)]


@dataclass(frozen=True)
class Call:
    """Values of a p5.48xlarge's GPU without a call, and the readings that an error of that call affects."""

    absent: Callable[[Gpu], Gpu]
    spoils: tuple[str, ...]


def without(reading: str) -> Call:
    return instead(reading, None)


def instead(reading: str, value: Any) -> Call:
    """Another call tells it, or a part of it."""
    changes: dict[str, Any] = {reading: value}
    return Call(lambda gpu: replace(gpu, **changes), (reading,))


def with_links(gpu: Gpu, **changes: Any) -> Gpu:
    return replace(gpu, nvlinks=tuple(replace(link, **changes) for link in gpu.nvlinks or ()))


def uncounted(gpu: Gpu, *fields: str) -> Gpu:
    return with_links(gpu, counters={name: 0 for name in ("replays", "recoveries", "crc_errors") if name not in fields})


def spoiled(gpu: Gpu, readings: tuple[str, ...], error: int) -> Gpu:
    for reading in readings:
        if reading == "recovery_action":
            gpu = replace(gpu, recovery_error=error, recovery_action=None)
        elif reading == "nvlink_counters":
            gpu = replace(with_links(gpu, counters={}), errors={**gpu.errors, reading: error})
        else:
            none: dict[str, Any] = {reading: None}
            gpu = replace(gpu, errors={**gpu.errors, reading: error}, **none)
    return gpu


def without_sram(gpu: Gpu) -> Gpu:
    return replace(gpu, sram_unique=None)


def without_fields(gpu: Gpu) -> Gpu:
    """Return a GPU without the optional fields."""
    return replace(gpu, throttled=None)


ALSO_LOST: dict[str, Callable[[Gpu], Gpu]] = {
    "nvmlDeviceGetSramEccErrorStatus": without_sram,
    "nvmlDeviceGetFieldValues": without_fields,
}
"""Optional readings that another call's failure takes away, whatever its error."""

CALLS: dict[str, Call] = {
    **{row.call: without(name) for name, row in READINGS.items() if row.call.startswith("nvml")},
    "nvmlDeviceGetMigMode": Call(lambda gpu: replace(gpu, mig_mode=None, instances=None), ("instances", "mig_mode")),
    "nvmlDeviceGetTotalEccErrors": without("ecc"),
    "nvmlDeviceGetSramEccErrorStatus": Call(
        lambda gpu: replace(without_sram(gpu), sram_threshold_exceeded=None), ("sram_threshold_exceeded",)
    ),
    "nvmlDeviceGetRemappedRows": without("row_remap"),
    "nvmlDeviceGetRowRemapperHistogram": without("exhausted_banks"),
    "nvmlDeviceGetCurrentClocksEventReasons": instead("clock_reasons", 1),
    "nvmlDeviceGetTemperature": instead("temperature", Temperature(None, None, 52, -2)),
    "nvmlDeviceGetTemperatureThreshold": instead("temperature", Temperature(34, None, 52, -2)),
    "nvmlDeviceGetMarginTemperature": instead("temperature", Temperature(34, None, None, -2)),
    "field.194": instead("temperature", Temperature(34, None, 52, None)),
    "field.230": without("recovery_action"),
    "field.29": without("retired_pages"),
    "field.30": without("retired_pages"),
    "field.31": without("retired_pages"),
    "nvmlDeviceValidateInforom": without("inforom_valid"),
    "nvmlDeviceGetMemoryInfo_v2": instead("memory", MemoryUse(80 << 30, 0, 600 << 20)),
    "nvmlDeviceGetComputeRunningProcesses_v3": without("processes"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": instead("processes", 0),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": instead("processes", 0),
    "nvmlDeviceGetCurrPcieLinkWidth": without("pcie"),
    "nvmlDeviceGetMaxPcieLinkWidth": without("pcie"),
    "nvmlDeviceGetNvLinkState": without("nvlinks"),
    "nvmlDeviceGetNvLinkVersion": Call(lambda gpu: with_links(gpu, version=None), ("nvlinks",)),
    "field.161": Call(lambda gpu: uncounted(gpu, "replays"), ("nvlink_counters",)),
    "field.162": Call(lambda gpu: uncounted(gpu, "recoveries"), ("nvlink_counters",)),
    "field.163": Call(lambda gpu: uncounted(gpu, "crc_errors"), ("nvlink_counters",)),
    "nvmlDeviceGetFieldValues": Call(  # the counters come from the older calls
        lambda gpu: replace(without_fields(gpu), recovery_action=None, temperature=Temperature(34, None, 52, None)),
        ("recovery_action", "retired_pages", "temperature", "nvlink_counters"),
    ),
    "nvmlDeviceGetGpuFabricInfoV": instead("fabric", Fabric(3, 0, 0, "")),
}


OLD_CALLS: dict[str, Call] = {
    "nvmlDeviceGetCurrentClocksThrottleReasons": without("clock_reasons"),
    "nvmlDeviceGetMemoryInfo": without("memory"),
    "nvmlDeviceGetComputeRunningProcesses_v2": without("processes"),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": instead("processes", 0),
    "nvmlDeviceGetNvLinkErrorCounter": Call(lambda gpu: with_links(gpu, counters={}), ("nvlink_counters",)),
    "nvmlDeviceGetGpuFabricInfo": without("fabric"),
}


SINGLE_NUMBERS = [
    (file, 7 if is_number else 1 - number, {name: 7 if is_number else not number})
    for name, row in READINGS.items()
    for file, number in row.healthy.items()
    if len(row.healthy) == 1 and isinstance(number, int)
    for is_number in [get_type_hints(Gpu)[name] != bool | None]
]
"""File, another value and reading of each reading that is one number."""


def age(node: SimulatedNode) -> None:
    """Gives the node a library that lacks the newer functions."""
    library = node.library.resolve()
    library.unlink()
    library.write_bytes(nvml_library.build("-DOLD_LIBRARY").read_bytes())


class TestReadings:
    """A p5.48xlarge of two GPUs, so that hundreds of reads are quick."""

    @pytest.fixture
    def node(self, node: SimulatedNode) -> SimulatedNode:
        for index in range(2, 8):
            node.remove_gpu(index)
        return node

    def answered(self, driver: Driver) -> Gpu:
        return gpus(driver.read())[0]

    @pytest.mark.parametrize(
        ("file", "value", "expected"),
        [
            *SINGLE_NUMBERS,
            ("minor", 5, {"minor": 5}),
            ("ecc_mode_current", 0, {"ecc_mode": Mode(current=False, pending=True)}),
            ("ecc_mode_pending", 0, {"ecc_mode": Mode(current=True, pending=False)}),
            ("mig_pending", 1, {"mig_mode": Mode(current=False, pending=True)}),
            ("ecc_corrected_volatile", 1, {"ecc": EccCounts(1, 0, 0, 0)}),
            ("ecc_uncorrected_volatile", 2, {"ecc": EccCounts(0, 2, 0, 0)}),
            ("ecc_corrected_aggregate", 2**40, {"ecc": EccCounts(0, 0, 2**40, 0)}),
            ("ecc_uncorrected_aggregate", 4, {"ecc": EccCounts(0, 0, 0, 4)}),
            ("remap_corrected", 3, {"row_remap": RowRemap(3, 0, pending=False, failed=False)}),
            ("remap_uncorrected", 4, {"row_remap": RowRemap(0, 4, pending=False, failed=False)}),
            ("remap_pending", 1, {"row_remap": RowRemap(0, 0, pending=True, failed=False)}),
            ("remap_failed", 1, {"row_remap": RowRemap(0, 0, pending=False, failed=True)}),
            ("remap_histogram", "636 1 1 1 2", {"exhausted_banks": 2}),
            ("repair_channel", 1, {"repair": PendingRepair(channel_pending=True, tpc_pending=False)}),
            ("repair_tpc", 1, {"repair": PendingRepair(channel_pending=False, tpc_pending=True)}),
            ("clocks_event_reasons", 0, {"clock_reasons": 0}),
            ("temperature", 91, {"temperature": Temperature(91, None, 52, -2)}),
            ("temperature_slowdown", 89, {"temperature": Temperature(34, 89, 52, -2)}),
            ("temperature_margin", -3, {"temperature": Temperature(34, None, -3, -2)}),
            ("field/194", 0, {"temperature": Temperature(34, None, 52, 0)}),
            ("memory_used", 5 << 30, {"memory": MemoryUse(80 << 30, 600 << 20, 5 << 30)}),
            ("processes", "4711 4712 4711", {"processes": 2}),
            ("pcie_width", 8, {"pcie": PcieLink(8, 16, 1, 5)}),
            ("pcie_max_width", 8, {"pcie": PcieLink(16, 8, 1, 5)}),
            ("fabric_state", 2, {"fabric": Fabric(2, 0, 0, "", 0x1AA, 0)}),
            ("fabric_status", 999, {"fabric": Fabric(3, 999, 0, "", 0x1AA, 0)}),
            ("fabric_clique", 32766, {"fabric": Fabric(3, 0, 32766, "", 0x1AA, 0)}),
            (
                "fabric_cluster",
                "b2c3d4e5-0000-4000-8000-0123456789ab",
                {"fabric": Fabric(3, 0, 0, "b2c3d4e5-0000-4000-8000-0123456789ab", 0x1AA, 0)},
            ),
            ("fabric_health_mask", 0x1A9, {"fabric": Fabric(3, 0, 0, "", 0x1A9, 0)}),
            ("fabric_health_summary", 2, {"fabric": Fabric(3, 0, 0, "", 0x1AA, 2)}),
            ("fabric_newest_version", 2, {"fabric": Fabric(3, 0, 0, "", 0x1AA)}),
            ("dram_corrected", 9_600_000_000, {"memory_errors": MemoryErrors(9_600_000_000, 0)}),
            ("sram_corrected", 12, {"memory_errors": MemoryErrors(0, 12)}),
            ("field/74", 5 * 10**9, {"throttled": ThrottledTime(5 * 10**9, 0)}),
            ("field/75", 6 * 10**9, {"throttled": ThrottledTime(0, 6 * 10**9)}),
            ("field/186", 690_123, {}),  # idle
            ("samples/1", "4 1000 100 90 89", {"load": replace(BUSY, utilisation=Samples(4, 3000, 379, 89, 100))}),
            ("samples/1", "1 1000 100", {"load": replace(BUSY, utilisation=Samples(1, 0, 100, 100, 100))}),
            ("samples/1", BUSY_SAMPLES, {"load": BUSY}),
            ("samples/5", "2 500 1980 1965", {}),  # idle
            ("unrepairable_memory", 1, {"unrepairable_memory": True}),
            ("unrepairable_memory", 0, {"unrepairable_memory": False}),
        ],
    )
    def test_a_value_of_the_driver_is_shown(
        self, node: SimulatedNode, driver: Driver, file: str, value: object, expected: dict[str, Any]
    ) -> None:
        node.write_value(f"nvml/gpu0/{file}", value)

        assert self.answered(driver) == replace(healthy(node)[0], **expected)

    @pytest.mark.parametrize(
        ("field", "value", "expected"),
        [
            (186, 690_123, {"power_milliwatts": 690_123}),
            (189, 300_000, {"default_power_limit_milliwatts": 300_000}),
            (83, 2**41, {"energy_millijoules": 2**41}),
            (138, 9, {"nvlink_sent_kib": 9}),
            (139, 10, {"nvlink_received_kib": 10}),
            (138, -1, {"nvlink_sent_kib": None}),
            (138, "7 of type 99", {"nvlink_sent_kib": None}),
            (138, "7 of type 0", {"nvlink_sent_kib": None}),
        ],
    )
    def test_power_and_traffic_are_read_under_load(
        self, node: SimulatedNode, driver: Driver, field: int, value: object, expected: dict[str, Any]
    ) -> None:
        node.write_value("nvml/gpu0/samples/1", BUSY_SAMPLES)
        node.write_value(f"nvml/gpu0/field/{field}", value)

        assert self.answered(driver).load == replace(BUSY, **expected)

    def test_buffers_of_clocks_are_read_under_load(self, node: SimulatedNode, driver: Driver) -> None:
        values = {"1": BUSY_SAMPLES, "5": "2 500 1980 1965", "6": "1024 1 2619"}
        for kind, value in values.items():
            node.write_value(f"nvml/gpu0/samples/{kind}", value)

        clocks = {
            "sm_clock": Samples(2, 500, 3945, 1965, 1980),
            "memory_clock": Samples(1024, 1023, 2619 * 1024, 2619, 2619),
        }
        assert self.answered(driver).load == replace(BUSY, sm_mhz=None, memory_mhz=None, **clocks)

    def test_memory_utilisation_without_a_buffer_is_the_current_one(self, node: SimulatedNode, driver: Driver) -> None:
        for name, value in {"samples/1": BUSY_SAMPLES, "utilization_gpu": 99, "utilization_memory": 23}.items():
            node.write_value(f"nvml/gpu0/{name}", value)
        (node.root / "nvml/gpu0/samples/2").unlink()

        assert self.answered(driver).load == replace(BUSY, memory_utilisation=Samples(1, 0, 23, 23, 23))

    def test_default_power_limit_without_its_field_is_the_functions(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/gpu0/samples/1", BUSY_SAMPLES)
        (node.root / "nvml/gpu0/field/189").unlink()
        unknown = self.answered(driver).load
        node.write_value("nvml/gpu0/power_default_limit", 400_000)

        expected = replace(BUSY, default_power_limit_milliwatts=400_000)
        assert self.answered(driver).load == expected
        assert unknown == replace(BUSY, default_power_limit_milliwatts=None)

    def test_clocks_without_a_buffer_are_the_current_ones(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/gpu0/samples/1", BUSY_SAMPLES)
        node.write_value("nvml/gpu0/samples/6", "1025 1 2619")
        (node.root / "nvml/gpu0/samples/5").unlink()
        node.write_value("nvml/gpu0/sm_clock", 1980)
        known = self.answered(driver).load
        node.write_value("nvml/gpu0/sm_clock", "fast")
        node.write_value("nvml/gpu0/error.nvmlDeviceGetClockInfo", 999)

        unknown = replace(BUSY, sm_mhz=None, memory_mhz=None)
        assert (known, self.answered(driver).load) == (replace(BUSY, sm_mhz=1980), unknown)

    @pytest.mark.parametrize(
        ("version", "first"),
        [
            ("570.133.20", None),
            ("575.57.08", 251),
            ("580.65.06", None),
            ("580.82.07", 269),
            ("580.126.20", 269),
            ("590.44.01", 269),
            ("615.78.08", 269),
            ("580", None),
            ("580.x", None),
            ("", None),
        ],
    )
    def test_throttled_time_has_the_field_numbers_of_the_drivers_version(
        self, node: SimulatedNode, driver: Driver, version: str, first: int | None
    ) -> None:
        node.write_value("nvml/driver_version", version)
        for offset in range(3):
            node.write_value(f"nvml/gpu0/field/{251 + offset}", 251 + offset)
            node.write_value(f"nvml/gpu0/field/{269 + offset}", 269 + offset)
        node.write_value("nvml/gpu0/field/75", 75)

        expected = ThrottledTime(0, 75) if first is None else ThrottledTime(0, first, first + 1, first + 2)
        assert self.answered(driver).throttled == expected

    @pytest.mark.parametrize("value", [0, 1])
    def test_the_flag_of_unrepairable_memory_is_read_with_a_version_before_it_too(
        self, node: SimulatedNode, driver: Driver, value: int
    ) -> None:
        node.write_value("nvml/gpu0/unrepairable_memory", value)
        node.write_value("nvml/gpu0/unrepairable_with_version", "")

        assert self.answered(driver).unrepairable_memory is bool(value)

    def test_inactive_rows_are_those_of_both_kinds(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/gpu0/field/301", 2)
        alone = self.answered(driver).row_remap
        node.write_value("nvml/gpu0/field/302", 3)

        known = RowRemap(0, 0, pending=False, failed=False)
        assert (alone, self.answered(driver).row_remap) == (known, replace(known, inactive=5))

    @pytest.mark.parametrize(
        ("entries", "expected"),
        [
            ("", SramUnique(0, 0)),
            ("0 1 0 0 64 1 9;0 1 0 0 65 1 1;0 1 0 0 66 0 1", SramUnique(2, 1)),
            ("0 1 0 0 64 1 1;0 2 0 0 64 1 1;0 1 1 0 64 1 1;0 1 0 1 64 1 1;1 1 0 0 64 1 1", SramUnique(1, 0)),
            ("0 1 0 0 64 0 1;0 1 0 0 65 0 1;0 1 0 0 66 0 1", SramUnique(0, 3)),
            ("nonsense", None),
        ],
    )
    def test_unique_errors_of_the_sram_are_the_most_of_one_bank(
        self, node: SimulatedNode, driver: Driver, entries: str, expected: SramUnique | None
    ) -> None:
        node.write_value("nvml/gpu0/sram/secded_aggregate", 1)
        node.write_value("nvml/gpu0/sram_unique", entries)

        assert self.answered(driver).sram_unique == expected

    @pytest.mark.parametrize(
        ("call", "lost"),
        [
            ("nvmlDeviceGetMemoryErrorCounter", {"memory_errors": None}),
            ("field.75", {"throttled": ThrottledTime(0, None)}),
            ("field.138", {}),  # not called while the GPU is idle
            ("field.301", {}),
            ("nvmlDeviceGetClockInfo", {}),  # not called while the GPU is idle
            ("nvmlDeviceGetSamples", {"load": replace(BUSY, utilisation=None, memory_utilisation=None)}),
            ("nvmlDeviceGetUnrepairableMemoryFlag_v1", {"unrepairable_memory": None}),
            ("nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts", {"sram_unique": None}),
        ],
    )
    def test_an_optional_reading_that_fails_is_absent_whatever_the_error(
        self, node: SimulatedNode, driver: Driver, call: str, lost: dict[str, Any]
    ) -> None:
        for file, value in {
            "unrepairable_memory": 1,
            "sram/parity_aggregate": 1,
            "sram_unique": "0 0 0 0 0 1 1",
        }.items():
            node.write_value(f"nvml/gpu0/{file}", value)
        sound = self.answered(driver)
        answered = {}
        for error in ERRORS:
            node.write_value(f"nvml/gpu0/error.{call}", error)
            answered[error] = self.answered(driver)

        assert answered == dict.fromkeys(ERRORS, replace(sound, **lost))

    @pytest.mark.parametrize(
        ("file", "value", "lost"),
        [
            ("field/74", -1, {"throttled": ThrottledTime(None, 0)}),
            ("samples/1", "1025 1000 100", {"load": replace(BUSY, utilisation=None)}),
            ("samples/1", "0 1000 100", {"load": replace(BUSY, utilisation=None)}),
            ("samples/1", "100 1000", {"load": replace(BUSY, utilisation=None)}),
        ],
    )
    def test_an_optional_reading_that_makes_no_sense_is_absent(
        self, node: SimulatedNode, driver: Driver, file: str, value: object, lost: dict[str, Any]
    ) -> None:
        node.write_value(f"nvml/gpu0/{file}", value)

        assert self.answered(driver) == replace(healthy(node)[0], **lost)

    def test_a_link_has_its_own_state_version_and_counters(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/gpu0/nvlink/3/state", 0)
        node.write_value("nvml/gpu0/nvlink/4/version", 4)
        node.write_value("nvml/gpu0/nvlink/5/field/162", 2**40)

        links = list(healthy(node)[0].nvlinks or ())
        links[3] = NvLink(3, active=False)
        links[4] = replace(links[4], version=4)
        links[5] = replace(links[5], counters={"replays": 0, "recoveries": 2**40, "crc_errors": 0})
        assert self.answered(driver).nvlinks == tuple(links)

    @pytest.mark.parametrize(("version", "is_read"), [("610.43.02", False), ("615.78.08", True), ("620.10.01", True)])
    def test_the_fourth_structure_of_a_fabric_is_read_from_r615_on(
        self, node: SimulatedNode, driver: Driver, version: str, is_read: bool
    ) -> None:
        node.write_value("nvml/driver_version", version)
        for file, value in {"clique": 32766, "newest_version": 4, "health_mask": 0x91AA, "health_summary": 1}.items():
            node.write_value(f"nvml/gpu0/fabric_{file}", value)
        node.write_value("nvml/gpu0/error.nvmlDeviceGetGpuFabricInfoV", 2)
        node.write_value("nvml/gpu0/error.nvmlDeviceGetGpuFabricInfo", 13)

        assert self.answered(driver).fabric == (Fabric(3, 0, 32766, "", 0x91AA, 1) if is_read else None)

    def test_an_r615_library_without_the_fourth_structure_is_asked_for_the_third(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        node.write_value("nvml/driver_version", "615.78.08")

        assert self.answered(driver).fabric == Fabric(3, 0, 0, "", 0x1AA, 0)

    @pytest.mark.parametrize(
        ("version", "file", "value", "is_disabled"),
        [
            ("615.78.08", "state", 3, True),
            ("615.78.08", "field/165", 3, True),
            ("615.78.08", "field/165", 2, False),
            ("615.78.08", "field/165", 1, False),
            ("615.78.08", "field/165", 0, False),
            ("615.78.08", "state", 2, False),
            ("610.43.02", "field/165", 3, False),
        ],
    )
    def test_a_link_without_traffic_is_active(
        self, node: SimulatedNode, driver: Driver, version: str, file: str, value: int, is_disabled: bool
    ) -> None:
        node.write_value("nvml/driver_version", version)
        node.write_value(f"nvml/gpu0/nvlink/3/{file}", value)

        links = self.answered(driver).nvlinks
        assert links is not None
        assert [link.traffic_disabled for link in links] == [is_disabled and link.link == 3 for link in links]
        assert all(link.active for link in links)

    def test_retired_pages_are_those_of_a_gpu_that_remaps_no_rows(self, node: SimulatedNode, driver: Driver) -> None:
        for file, value in {"retired_sbe": 3, "retired_dbe": 1, "retired_pending": 1}.items():
            node.write_value(f"nvml/gpu0/{file}", value)

        assert self.answered(driver).retired_pages == RetiredPages(3, 1, pending=True)

    @pytest.mark.parametrize("call", CALLS)
    def test_every_call_error_is_an_absence_or_reported_with_its_reading(
        self, node: SimulatedNode, driver: Driver, call: str
    ) -> None:
        if call in ("field.29", "field.30", "field.31"):
            for file in ("retired_sbe", "retired_dbe", "retired_pending"):
                node.write_value(f"nvml/gpu0/{file}", 0)
        self.meet_every_error(node, driver, call, CALLS[call])

    @pytest.mark.parametrize("call", OLD_CALLS)
    def test_every_error_of_the_calls_of_an_old_library_too(
        self, node: SimulatedNode, driver: Driver, call: str
    ) -> None:
        age(node)
        if call == "nvmlDeviceGetNvLinkErrorCounter":
            for field in (161, 162, 163):
                node.write_value(f"nvml/gpu0/error.field.{field}", 3)

        self.meet_every_error(node, driver, call, OLD_CALLS[call])

    def meet_every_error(self, node: SimulatedNode, driver: Driver, call: str, about: Call) -> None:
        sound = self.answered(driver)
        driver.end()  # a child remembers a valid InfoROM
        answered = {}
        for error in ERRORS:
            node.write_value(f"nvml/gpu0/error.{call}", error)
            answered[error] = self.answered(driver)

        less = ALSO_LOST[call](sound) if call in ALSO_LOST else sound
        expected = {error: spoiled(less, about.spoils, error) for error in ERRORS}
        expected |= dict.fromkeys(ABSENT, about.absent(sound))
        expected |= {error: replace(expected[error], error=error) for error in BROKEN if error not in GONE}
        if call == "nvmlDeviceValidateInforom":
            expected[14] = replace(sound, inforom_valid=False)
        if call == "nvmlDeviceGetComputeRunningProcesses_v3":  # there is an older one
            expected[13] = sound
        for error in GONE:
            lost = answered.pop(error)
            del expected[error]
            assert (lost.error, {*lost.errors.values(), lost.recovery_error}) in [(error, {error}), (error, {0, error})]
        assert answered == expected

    @pytest.mark.parametrize("field", [214, 215, 221])
    def test_links_of_nvlink_5_count_other_things(self, make_node: Callable[[str], SimulatedNode], field: int) -> None:
        node = make_node("p6-b200.48xlarge")
        node.write_value(f"nvml/gpu0/nvlink/17/field/{field}", 5)
        driver = Driver(node.root, use_loader=False)

        links = gpus(driver.read())[0].nvlinks
        driver.end()

        names = {214: "recovery_failures", 215: "recoveries", 221: "symbol_errors"}
        counters = dict.fromkeys(names.values(), 0)
        assert links is not None
        assert links[0] == NvLink(0, active=True, version=7, counters=counters)
        assert links[17] == NvLink(17, active=True, version=7, counters=counters | {names[field]: 5})

    def test_p2p_is_read_for_each_pair(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/gpu0/p2p_nvlink.1", 5)

        answer = driver.read().answer

        assert isinstance(answer, Gpus)
        assert answer.p2p == (P2p(node.gpus[0].address, node.gpus[1].address, 0, 5),)

    def test_p2p_is_not_asked_of_a_gpu_that_failed_or_is_divided(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/error/nvmlDeviceGetP2PStatus", 999)
        node.divide_gpu(0, {})
        divided = driver.read().answer
        node.write_value("nvml/gpu0/mig_current", 0)
        node.lose_gpu(1)
        lost = driver.read().answer

        assert isinstance(divided, Gpus)
        assert isinstance(lost, Gpus)
        assert [(gpus.p2p, [gpu.errors for gpu in gpus.gpus]) for gpus in (divided, lost)] == [((), [{}, {}])] * 2

    def test_every_pair_error_is_reported_with_both_gpus(self, node: SimulatedNode, driver: Driver) -> None:
        answered = {}
        for error in ERRORS:
            node.write_value("nvml/gpu1/error.nvmlDeviceGetP2PStatus", error)
            answer = driver.read().answer
            assert isinstance(answer, Gpus)
            answered[error] = (answer.p2p, *(gpu.errors for gpu in answer.gpus))

        assert answered == {
            error: ((), {}, {}) if error in ABSENT else ((), {"p2p": error}, {"p2p": error}) for error in ERRORS
        }

    def test_a_library_without_the_newer_functions_has_absences_only(self, node: SimulatedNode, driver: Driver) -> None:
        age(node)
        node.write_value("nvml/gpu0/processes", "4711 4712")

        assert self.answered(driver) == replace(
            healthy(node)[0],
            sram_threshold_exceeded=None,
            exhausted_banks=None,
            repair=None,
            temperature=Temperature(34, None, None, -2),
            memory=MemoryUse(80 << 30, 0, 600 << 20),
            processes=2,
            fabric=Fabric(3, 0, 0, ""),
            sram_unique=None,
        )

    @pytest.mark.parametrize(
        ("file", "value", "reading"),
        [
            ("temperature", 2**31, "temperature"),
            ("temperature", 2**32 - 1, "temperature"),
            ("temperature_margin", -5000, "temperature"),
            ("field/194", 2**40, "temperature"),
            ("field/194", "0 of type 7", "temperature"),
            ("field/194", "0 of type -1", "temperature"),
            ("field/230", -1, "recovery_action"),
            ("field/230", 2**32, "recovery_action"),
            ("field/230", "0 of type 99", "recovery_action"),
            ("field/230", "0 of type 0", "recovery_action"),
            ("nvlink/3/field/162", -7, "nvlink_counters"),
            ("nvlink/3/field/162", "7 of type 2147483647", "nvlink_counters"),
            ("nvlink/3/field/162", "7 of type 0", "nvlink_counters"),
        ],
    )
    def test_implausible_reading_is_lost_alone(
        self, node: SimulatedNode, driver: Driver, file: str, value: object, reading: str
    ) -> None:
        node.write_value(f"nvml/gpu0/{file}", value)

        expected = (spoiled(healthy(node)[0], (reading,), NONSENSE), healthy(node)[1])
        assert gpus(driver.read())[:2] == expected

    @pytest.mark.parametrize(("kind", "number"), [(1, 7), (2, 7), (3, 7), (4, 7), (5, 7), (6, 7)])
    def test_a_field_has_any_type_of_whole_numbers(
        self, node: SimulatedNode, driver: Driver, kind: int, number: int
    ) -> None:
        node.write_value("nvml/gpu0/field/230", f"7 of type {kind}")

        assert self.answered(driver) == replace(healthy(node)[0], recovery_action=number)

    @pytest.mark.parametrize("value", ["", "three", "-1", "4294967295", "18446744073709551615", "\x7f", "0x", "1 2"])
    def test_malformed_value_silences_no_other_gpu(self, node: SimulatedNode, driver: Driver, value: str) -> None:
        driver.read()
        child = driver.child_pid
        folder = node.root / "nvml/gpu0"
        for file in sorted([*folder.glob("*"), *folder.glob("field/*"), *folder.glob("nvlink/0/**/*")]):
            if not file.is_file():
                continue
            before = file.read_bytes()
            file.write_text(f"{value}\n")
            seen = gpus(driver.read())
            file.write_bytes(before)
            assert seen[1] == healthy(node)[1], file

        assert (self.answered(driver), driver.child_pid) == (healthy(node)[0], child)


class TestHistory:
    """Earlier reads of the same driver, for rates over minutes and hours."""

    def ages(self, reading: DriverReading) -> list[float]:
        return [reading.read_at - earlier.at for earlier in reading.history]

    def test_reads_are_kept_minutes_apart_for_an_hour(self, driver: Driver, clock: Clock) -> None:
        ages = []
        for _ in range(20):
            ages.append(self.ages(driver.read()))
            clock.seconds += 10.0
            driver.read()  # too early for another one
            clock.seconds += 290.0

        assert (ages[0], ages[1], ages[2]) == ([], [300.0], [600.0, 300.0])
        assert ages[-1] == [300.0 * number for number in range(14, 0, -1)]

    def test_it_has_what_is_compared_and_no_more(self, node: SimulatedNode, driver: Driver, clock: Clock) -> None:
        node.lose_gpu(1)
        first = gpus(driver.read())[0]
        clock.seconds += 300.0

        earlier = driver.read().history[0].gpus

        assert (len(earlier), earlier[0].load, earlier[0].fabric) == (7, first.load, None)
        assert (earlier[0].uuid, earlier[0].address) == (first.uuid, first.address)

    def test_a_changed_driver_has_none(self, node: SimulatedNode, driver: Driver, clock: Clock) -> None:
        driver.read()
        clock.seconds += 300.0
        node.write_value("sys/module/nvidia/version", "580.95.05")
        node.write_value("nvml/nvml_version", "13.580.95.05")
        driver.read()
        clock.seconds += 300.0

        assert driver.read().history == ()

    def test_a_pause_ends_it(self, driver: Driver, clock: Clock) -> None:
        driver.read()
        driver.pause()
        clock.seconds += 300.0

        assert driver.read().history == ()

    def test_failed_read_is_not_part_of_it(self, node: SimulatedNode, driver: Driver, clock: Clock) -> None:
        node.write_value("nvml/error/nvmlDeviceGetCount_v2", 999)
        driver.read()
        clock.seconds += 300.0
        (node.root / "nvml/error/nvmlDeviceGetCount_v2").unlink()

        assert driver.read().history == ()


READS_AN_HOUR_APART = """
import json, sys
from gpu_healthcheck.healthcheck.probes.nvml.child import find_queries, read_gpus
from gpu_healthcheck.healthcheck.probes.nvml.library import Library
from gpu_healthcheck.healthcheck.probes.nvml.queries import Inforoms

root, seconds = sys.argv[1], 0.0
library, inforoms = Library(root, use_loader=False), Inforoms(lambda: seconds)
wanted = find_queries('[["uuid", "uuid", "gpu"], ["inforom_valid", "inforom_valid", "reading"]]')
for line in sys.stdin:
    seconds = float(line)
    print(json.dumps([gpu["inforom_valid"] for gpu in read_gpus(library, inforoms, wanted)["gpus"]]), flush=True)
"""


class TestInforom:
    """It is read from flash, so that it is not tested at every read."""

    def corrupt(self, node: SimulatedNode, index: int, *, valid: int = 0) -> None:
        node.write_value(f"nvml/gpu{index}/inforom", valid)

    def valid(self, driver: Driver) -> list[bool | None]:
        return [gpu.inforom_valid for gpu in gpus(driver.read())[:3]]

    def test_a_valid_one_stays_so_while_the_child_lives(self, node: SimulatedNode, driver: Driver) -> None:
        seen = [self.valid(driver)]
        self.corrupt(node, 1)
        seen.append(self.valid(driver))
        driver.end()
        seen.append(self.valid(driver))

        assert seen == [[True, True, True], [True, True, True], [True, False, True]]

    def test_corrupted_inforom_is_tested_in_each_cycle_until_it_is_fixed(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        self.corrupt(node, 1)
        seen = [self.valid(driver)[1], self.valid(driver)[1]]
        self.corrupt(node, 1, valid=1)
        seen.append(self.valid(driver)[1])
        self.corrupt(node, 1)
        seen.append(self.valid(driver)[1])

        assert seen == [False, False, True, True]

    def test_failed_test_is_repeated_in_the_next_cycle(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/gpu1/error.nvmlDeviceValidateInforom", 999)
        failed = gpus(driver.read())[1]
        (node.root / "nvml/gpu1/error.nvmlDeviceValidateInforom").unlink()

        assert (failed.inforom_valid, failed.errors) == (None, {"inforom_valid": 999})
        assert gpus(driver.read()) == healthy(node)

    def test_inforom_of_a_gpu_without_a_uuid_is_tested_in_each_cycle(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/gpu1/error.nvmlDeviceGetUUID", 3)
        before = self.valid(driver)[1]
        self.corrupt(node, 1)

        assert (before, self.valid(driver)[1]) == (True, False)

    def test_a_gpu_that_comes_in_the_place_of_another_is_tested(self, node: SimulatedNode, driver: Driver) -> None:
        self.valid(driver)
        node.write_value("nvml/gpu1/uuid", "GPU-another")
        self.corrupt(node, 1)

        assert self.valid(driver)[1] is False

    def test_a_valid_one_is_tested_again_after_an_hour(self, node: SimulatedNode) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", READS_AN_HOUR_APART, node.root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdin
            assert child.stdout
            seen = {}
            for seconds in (10, 3609, 3610, 3611):
                child.stdin.write(f"{seconds}\n")
                child.stdin.flush()
                seen[seconds] = json.loads(child.stdout.readline())[1]
                self.corrupt(node, 1, valid=int(seconds == 3610))
            child.stdin.close()

        assert seen == {10: 1, 3609: 1, 3610: 0, 3611: 1}


class TestInstances:
    def instances(self, driver: Driver) -> tuple[int, ...] | None:
        return gpus(driver.read())[2].instances

    def test_each_gpu_instance_is_listed_once_in_order_without_gaps(self, node: SimulatedNode, driver: Driver) -> None:
        node.divide_gpu(2, {0: 9, 1: 5, 4: 5, 6: 1})

        seen = gpus(driver.read())

        uuids = {node.mig_uuid(2, device): instance for device, instance in {0: 9, 1: 5, 4: 5, 6: 1}.items()}
        mode = Mode(current=True, pending=True)
        assert seen[2] == replace(healthy(node)[2], instances=(1, 5, 9), mig_mode=mode, mig_devices=uuids)
        assert seen[:2] + seen[3:] == healthy(node)[:2] + healthy(node)[3:]

    def test_mig_mode_without_instances_has_none(self, node: SimulatedNode, driver: Driver) -> None:
        node.divide_gpu(2, {})

        assert self.instances(driver) == ()

    def test_a_mode_that_is_only_pending_is_not_on(self, node: SimulatedNode, driver: Driver) -> None:
        node.divide_gpu(2, {0: 1})
        node.write_value("nvml/gpu2/mig_current", 0)

        assert self.instances(driver) == ()

    def test_gpu_without_mig_support_is_absent(self, make_node: Callable[[str], SimulatedNode]) -> None:
        driver = Driver(make_node("g6.xlarge").root, use_loader=False)

        reading = driver.read()
        driver.end()

        assert [(gpu.error, gpu.instances) for gpu in gpus(reading)] == [(0, None)]

    @pytest.mark.parametrize(
        "call",
        ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId"],
    )
    def test_error_of_any_call_is_unobserved(self, node: SimulatedNode, driver: Driver, call: str) -> None:
        node.divide_gpu(2, {0: 1})
        answered = {}
        for error in (3, 4, 13, 999):
            node.write_value(f"nvml/gpu2/error.{call}", error)
            answered[error] = gpus(driver.read())[2]

        unknown = replace(healthy(node)[2], instances=None, mig_mode=Mode(current=True, pending=True))
        assert answered == {
            error: replace(unknown, errors={} if error in ABSENT else {"instances": error}) for error in answered
        }

    def test_an_unknown_uuid_of_an_instance_is_no_error(self, node: SimulatedNode, driver: Driver) -> None:
        node.divide_gpu(2, {0: 1})
        known = gpus(driver.read())[2]
        node.write_value("nvml/gpu2/mig/0", 1)
        node.write_value("nvml/gpu2/error.nvmlDeviceGetGpuInstanceId", 999)

        assert known.mig_devices == {node.mig_uuid(2, 0): 1}
        assert gpus(driver.read())[2].mig_devices is None

    def test_a_count_that_no_gpu_has_can_t_say(self, node: SimulatedNode, driver: Driver) -> None:
        node.divide_gpu(2, {0: 1})
        node.write_value("nvml/gpu2/mig_most", 4294967295)

        assert self.instances(driver) is None


class TestHangs:
    def hang(self, node: SimulatedNode, driver: Driver, function: str = "") -> DriverReading:
        driver.read()
        node.hang(function)
        driver.deadline_seconds = SHORT
        return driver.read()

    @pytest.mark.parametrize(
        "function", ["", "nvmlInitWithFlags", "nvmlDeviceGetSerial", "nvmlDeviceGetMigMode", "nvmlShutdown"]
    )
    def test_call_that_never_returns_misses_its_deadline_and_its_child_ends(
        self, node: SimulatedNode, driver: Driver, function: str
    ) -> None:
        driver.read()
        child = driver.child_pid

        reading = self.hang(node, driver, function)

        assert (cause(reading), reading.missed, reading.stuck_pid) == ("DriverNotAnswering", (1000.0,), None)
        assert detail(reading) == "no answer in time; its process was killed (deadline 0.4 s)"
        assert (driver.child_pid, Path(f"/proc/{child}").exists()) == (None, False)

    def test_two_misses_half_a_minute_apart_are_a_fault_and_not_before(
        self, node: SimulatedNode, driver: Driver, clock: Clock
    ) -> None:
        findingses = [judged(self.hang(node, driver))]
        for _ in range(3):
            clock.seconds += 15
            findingses.append(judged(driver.read()))

        fault = Finding(
            "DriverUnresponsive", Severity.REBOOT, "driver", "no answer within 0.4 s, since 1000 s after boot"
        )
        assert [isinstance(findings[0], Unobserved) for findings in findingses] == [True, True, False, False]
        assert findingses[2:] == [[fault], [fault]]

    def test_a_driver_that_answers_again_is_no_fault_any_more(
        self, node: SimulatedNode, driver: Driver, clock: Clock
    ) -> None:
        self.hang(node, driver)
        clock.seconds += 60
        assert len(driver.read().missed) == 2

        node.unhang()
        driver.deadline_seconds = 60
        reading = driver.read()

        assert (gpus(reading), reading.missed, judged(reading)) == (healthy(node), (), [])

    @pytest.mark.parametrize("error", [9, 18, 999])
    def test_a_driver_that_refuses_does_not_hang(self, node: SimulatedNode, driver: Driver, error: int) -> None:
        self.hang(node, driver)
        node.unhang()
        node.write_value("nvml/error/nvmlInitWithFlags", error)
        driver.deadline_seconds = 60

        assert driver.read().missed == ()

    def test_a_new_driver_is_not_blamed_for_the_old_ones_hang(
        self, node: SimulatedNode, driver: Driver, clock: Clock
    ) -> None:
        self.hang(node, driver)
        node.unhang()
        node.driver_unload()
        node.driver_load("580.65.06")
        clock.seconds += 60

        reading = driver.read()

        assert (cause(reading), reading.missed) == ("DriverBeingChanged", ())


class TestCrashes:
    @pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetUUID", "nvmlShutdown"])
    def test_driver_crash_fails_one_read_and_the_next_has_a_new_child(
        self, node: SimulatedNode, driver: Driver, function: str
    ) -> None:
        driver.read()
        first = driver.child_pid
        node.crash(function)

        reading = driver.read()

        assert (cause(reading), reading.missed) == ("NvmlCrashed", ())
        assert detail(reading) == "the probe of NVML failed: the child was ended by SIGSEGV"
        node.stop_crashing()
        assert gpus(driver.read()) == healthy(node)
        assert driver.child_pid != first

    def test_a_child_that_the_oom_killer_took_is_replaced(self, node: SimulatedNode, driver: Driver) -> None:
        driver.read()
        assert driver.child_pid
        os.kill(driver.child_pid, signal.SIGKILL)

        seen = driver.read().answer

        assert isinstance(seen, Unobserved) or seen.gpus == healthy(node)
        assert gpus(driver.read()) == healthy(node)


def devices(pid: int | None) -> list[str]:
    """The driver's devices that a process has open."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(descriptor.readlink().name)
        except FileNotFoundError:
            continue
    return sorted(name for name in links if name.startswith("nvidia"))


class TestHandles:
    def test_device_is_closed_between_cycles(self, node: SimulatedNode, driver: Driver) -> None:
        for _ in range(3):
            assert gpus(driver.read()) == healthy(node)
            assert devices(driver.child_pid) == []

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("nvml/gpu2/error", 15),
            ("nvml/gpu2/error.nvmlDeviceGetUUID", 999),
            ("nvml/error/nvmlDeviceGetCount_v2", 999),
            ("nvml/error/nvmlSystemGetDriverVersion", 17),
            ("nvml/count", 4294967295),
            ("nvml/gpu0/bus_id", "nonsense"),
        ],
    )
    def test_device_is_closed_after_a_failed_cycle(
        self, node: SimulatedNode, driver: Driver, path: str, value: object
    ) -> None:
        node.write_value(path, value)
        driver.read()

        assert devices(driver.child_pid) == []

    def test_devices_are_open_during_a_read_and_closed_after_its_end(self, node: SimulatedNode, driver: Driver) -> None:
        driver.read()
        child = driver.child_pid
        assert child
        node.hang("nvmlDeviceGetName")
        reader = threading.Thread(target=driver.read)
        reader.start()
        seen: list[str] = []
        while "nvidia0" not in seen and reader.is_alive():
            seen = devices(child)
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        reader.join()

        assert seen == ["nvidia0", "nvidiactl"]
        assert Path(f"/proc/{child}").exists() is False


class TestDriverChanges:
    def test_a_new_version_is_reported_once_and_read_with_its_own_library(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        driver.read()
        node.driver_unload()
        node.driver_load("580.65.06")

        first, second = driver.read(), driver.read()

        assert first.answer == Unobserved(
            UnobservedCause.named("DriverBeingChanged"), "driver 570.133.20 became 580.65.06"
        )
        assert gpus(second) == healthy(node)
        assert isinstance(second.answer, Gpus)
        assert second.answer.driver_version == "580.65.06"
        assert second.answer.library.endswith("libnvidia-ml.so.580.65.06")

    def test_an_unloaded_driver_is_being_changed_then_not_loaded_then_back(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        driver.read()
        node.driver_unload()

        gone = [driver.read(), driver.read(), driver.read()]
        node.driver_load()
        back = driver.read()

        assert gone[0].answer == Unobserved(
            UnobservedCause.named("DriverBeingChanged"), "driver 570.133.20 became unloaded"
        )
        assert [cause(reading) for reading in gone[1:]] == ["DriverNotLoaded"] * 2
        assert gpus(back) == healthy(node)

    def test_driver_loaded_after_the_agents_start_is_observed_at_once(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        node.driver_unload()
        assert cause(driver.read()) == "DriverNotLoaded"

        node.driver_load()

        assert gpus(driver.read()) == healthy(node)

    def test_a_library_that_was_replaced_is_loaded_anew(self, node: SimulatedNode, driver: Driver) -> None:
        driver.read()
        node.install_library("570.133.20")

        reading = driver.read()

        assert cause(reading) == "DriverBeingChanged"
        assert detail(reading).endswith("libnvidia-ml.so.570.133.20 was replaced")
        assert gpus(driver.read()) == healthy(node)

    def test_a_library_upgraded_without_its_driver_mismatches_until_the_reboot(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        driver.read()
        node.install_library("580.65.06")

        causes = [cause(driver.read()) for _ in range(3)]
        node.reboot()
        after = [driver.read(), driver.read()]

        assert causes == ["DriverBeingChanged", "NvmlLibraryMismatch", "NvmlLibraryMismatch"]
        assert cause(after[0]) == "DriverBeingChanged"
        assert gpus(after[1]) == healthy(node)

    def test_a_mismatch_is_timed_until_nvml_answers_otherwise_or_the_driver_is_changed(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        now = [1000.0]
        driver.clock = lambda: now[0]
        node.install_library("580.65.06")

        def seconds(later: float) -> float | None:
            now[0] += later
            return driver.read().mismatch_seconds

        assert [seconds(0.0), seconds(10.0), seconds(170.0)] == [0.0, 10.0, 180.0]
        driver.pause()
        assert seconds(10.0) == 0.0
        node.driver_load()
        assert [seconds(10.0), seconds(10.0)] == [None, None]

    def test_removed_library_is_reported(self, node: SimulatedNode, driver: Driver) -> None:
        driver.read()
        for file in node.library.parent.iterdir():
            file.unlink()

        causes = [cause(driver.read()), cause(driver.read())]

        assert causes == ["DriverBeingChanged", "NvmlLibraryNotFound"]


# Below a host's root, and below the GPU operator's driver container.
PLACES = [
    *(
        f"{root}{place}"
        for root in ("", "run/nvidia/driver/")
        for place in (
            "usr/lib64",
            "usr/lib/x86_64-linux-gnu",
            "usr/lib/aarch64-linux-gnu",
            "lib64",
            "lib/x86_64-linux-gnu",
            "lib/aarch64-linux-gnu",
            "usr/lib",
        )
    ),
    "home/kubernetes/bin/nvidia/lib64",
    "usr/local/nvidia/lib64",
    "opt/nvidia/lib64",
    "opt/nvidia/current/usr/lib64",
    "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "usr/local/glibc/usr/lib",
]
SONAME = "libnvidia-ml.so.1"


@pytest.fixture
def library(node: SimulatedNode) -> Path:
    """The library's file, put where nothing looks for it; the usual place is empty."""
    away = node.root / "somewhere/else/libnvidia-ml.so.570.133.20"
    away.parent.mkdir(parents=True)
    (node.library.parent / "libnvidia-ml.so.570.133.20").rename(away)
    node.library.unlink()
    return away


class TestLibraryPlaces:
    @pytest.mark.parametrize("place", PLACES)
    def test_the_library_is_found_in_every_known_place(
        self, node: SimulatedNode, driver: Driver, library: Path, place: str
    ) -> None:
        (node.root / place).mkdir(parents=True, exist_ok=True)
        library.rename(node.root / place / SONAME)

        reading = driver.read()

        assert isinstance(reading.answer, Gpus), reading.answer
        assert reading.answer.library == str(node.root / place / SONAME)
        assert reading.answer.gpus == healthy(node)

    @pytest.mark.parametrize(
        "links",
        [
            {"usr/lib64/" + SONAME: "/somewhere/else/libnvidia-ml.so.570.133.20"},
            {"usr/lib64/" + SONAME: "../../somewhere/else/libnvidia-ml.so.570.133.20"},
            {"usr/lib64/" + SONAME: "../../../../../../../../../somewhere/else/libnvidia-ml.so.570.133.20"},
            {
                "usr/lib64/" + SONAME: "/alternatives/nvml",
                "alternatives/nvml": "/somewhere/else/libnvidia-ml.so.570.133.20",
            },
            {
                "opt/nvidia": "/bundle",
                "bundle/lib64": "/somewhere/else",
                "somewhere/else/" + SONAME: "libnvidia-ml.so.570.133.20",
            },
            {"lib64": "/somewhere/else", "somewhere/else/" + SONAME: "./libnvidia-ml.so.570.133.20"},
            {
                "run/nvidia/driver": "/somewhere",
                "somewhere/lib64": "else/",
                "somewhere/else/" + SONAME: "/somewhere/./else/../else/libnvidia-ml.so.570.133.20",
            },
        ],
    )
    def test_links_of_the_hosts_tree_are_followed_inside_that_tree(
        self, node: SimulatedNode, driver: Driver, library: Path, links: dict[str, str]
    ) -> None:
        for path, target in links.items():
            (node.root / path).parent.mkdir(parents=True, exist_ok=True)
            (node.root / path).symlink_to(target)

        reading = driver.read()

        assert isinstance(reading.answer, Gpus), reading.answer
        assert reading.answer.library == str(library)

    @pytest.mark.usefixtures("library")
    def test_tree_without_a_library_is_reported(self, node: SimulatedNode, driver: Driver) -> None:
        answer = driver.read().answer

        assert isinstance(answer, Unobserved)
        assert answer.cause.name == "NvmlLibraryNotFound"
        assert answer.detail == (
            f"libnvidia-ml.so.1 was not found under {node.root}: not in usr/lib64, usr/lib/x86_64-linux-gnu, "
            "usr/lib/aarch64-linux-gnu, lib64, lib/x86_64-linux-gnu, lib/aarch64-linux-gnu, usr/lib, the same below "
            "run/nvidia/driver and opt/nvidia/*, nor in home/kubernetes/bin/nvidia/lib64, usr/local/nvidia/lib64, "
            "opt/nvidia/lib64, x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla, "
            "aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla, usr/local/glibc/usr/lib"
        )

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("/gone/libnvidia-ml.so.1", "gone/libnvidia-ml.so.1: cannot open shared object file: No such file"),
            ("libnvidia-ml.so.1", "too many symbolic links"),
            ("/usr/lib64", "cannot read file data: Is a directory"),
        ],
    )
    @pytest.mark.usefixtures("library")
    def test_a_link_that_leads_to_no_library_is_named(
        self, node: SimulatedNode, driver: Driver, target: str, message: str
    ) -> None:
        (node.root / "usr/lib64").mkdir(parents=True)
        (node.root / "usr/lib64" / SONAME).symlink_to(target)

        reading = driver.read()

        assert cause(reading) == "NvmlLibraryNotFound"
        assert message in detail(reading)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "file too short"),
            (b"This is a stub. Install the NVIDIA driver.\n" * 40, "invalid ELF header"),
            (b"\x7fELF" + b"\x00" * 2000, "wrong ELF class"),
        ],
    )
    @pytest.mark.usefixtures("library")
    def test_a_file_that_is_no_library_is_named(
        self, node: SimulatedNode, driver: Driver, content: bytes, message: str
    ) -> None:
        path = node.root / "usr/lib64" / SONAME
        path.parent.mkdir(parents=True)
        path.write_bytes(content)

        reading = driver.read()

        assert cause(reading) == "NvmlLibraryNotFound"
        assert str(path) in detail(reading)
        assert message in detail(reading)

    def test_a_bad_file_in_one_place_hides_no_good_one_in_another(
        self, node: SimulatedNode, driver: Driver, library: Path
    ) -> None:
        for place in ("usr/lib64", "lib64", "opt/nvidia/lib64"):
            (node.root / place).mkdir(parents=True)
        (node.root / "usr/lib64" / SONAME).write_bytes(b"a stub")
        (node.root / "lib64" / SONAME).symlink_to(SONAME)
        library.rename(node.root / "opt/nvidia/lib64" / SONAME)

        assert gpus(driver.read()) == healthy(node)

    def test_a_library_that_appears_later_is_found(self, node: SimulatedNode, driver: Driver, library: Path) -> None:
        assert cause(driver.read()) == "NvmlLibraryNotFound"

        (node.root / "usr/lib64").mkdir(parents=True)
        library.rename(node.root / "usr/lib64" / SONAME)

        assert gpus(driver.read()) == healthy(node)

    def test_the_loaders_own_path_comes_first(
        self, node: SimulatedNode, library: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (library.parent / SONAME).symlink_to(library.name)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
        (node.root / "usr/lib64").mkdir(parents=True)
        (node.root / "usr/lib64" / SONAME).write_bytes(b"never looked at")
        driver = Driver(node.root)

        reading = driver.read()
        driver.end()

        assert isinstance(reading.answer, Gpus), reading.answer
        assert reading.answer.library == str(library)

    def test_missing_library_in_the_loaders_path_uses_the_hosts(self, node: SimulatedNode) -> None:
        if ctypes.util.find_library("nvidia-ml"):
            pytest.skip("this machine has a driver's library of its own")
        driver = Driver(node.root)

        reading = driver.read()
        driver.end()

        assert gpus(reading) == healthy(node)


PRINTS = """
#include <stdio.h>
static void say(const char *what) { puts(what); fflush(stdout); fprintf(stderr, "%s\\n", what); }
__attribute__((constructor)) static void hello(void) { say("hello from the driver"); }
int nvmlInitWithFlags(unsigned flags) { say("{\\"gpus\\": []}"); return (int)flags + 9; }
const char *nvmlErrorString(int result) { (void)result; return "Driver Not Loaded"; }
"""


class TestChild:
    def test_a_library_that_prints_writes_neither_into_the_answers_nor_into_the_log(
        self, node: SimulatedNode, driver: Driver, library: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        source = library.with_suffix(".c")
        source.write_text(PRINTS)
        (node.root / "usr/lib64").mkdir(parents=True)
        made = node.root / "usr/lib64" / SONAME
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{SONAME}"]
        subprocess.run([*find_compiler(), *flags, "-o", made, source], check=True)

        for _ in range(2):
            assert driver.read().answer == Unobserved(
                UnobservedCause.named("DriverNotLoaded"), f"NVML: Driver Not Loaded ({made})"
            )
        assert capfd.readouterr() == ("", "")

    def test_childs_own_message_is_logged(
        self, node: SimulatedNode, driver: Driver, capfd: pytest.CaptureFixture[str]
    ) -> None:
        node.write_value("nvml/error/nvmlShutdown", 999)

        driver.read()

        assert capfd.readouterr() == ("", "nvmlShutdown: Unknown Error\n")

    def test_library_without_a_function_is_unobserved(self, node: SimulatedNode, driver: Driver, library: Path) -> None:
        source = library.with_suffix(".c")
        source.write_text("int nothing_of_nvml;")
        (node.root / "usr/lib64").mkdir(parents=True)
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{SONAME}"]
        subprocess.run([*find_compiler(), *flags, "-o", node.root / "usr/lib64" / SONAME, source], check=True)

        reading = driver.read()

        assert cause(reading) == "NvmlError"
        assert "(error 13, " in detail(reading)

    def test_child_is_the_first_victim_of_the_oom_killer(self, driver: Driver) -> None:
        driver.read()

        assert Path(f"/proc/{driver.child_pid}/oom_score_adj").read_text() == "1000\n"

    def test_child_ends_without_a_parent(self, node: SimulatedNode) -> None:
        done = subprocess.run(
            child_program(node.root, use_loader=False),
            input=b"read\nread\n",
            capture_output=True,
            check=True,
        )

        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert [len(answer["gpus"]) for answer in answers] == [8, 8]
        assert done.stderr == b""


class TestProbe:
    def test_the_probe_asks_the_hosts_driver(self, node: SimulatedNode, driver: Driver) -> None:
        assert gpus(read_driver(Host(node.root, driver.read))) == healthy(node)

    def test_a_host_with_an_inaccessible_driver_is_not_checked(self, node: SimulatedNode) -> None:
        with pytest.raises(ProbeError, match="this check cycle does not read the driver"):
            read_driver(Host(node.root))
