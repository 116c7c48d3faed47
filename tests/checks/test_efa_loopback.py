"""Every EFA device transfers data to itself."""

from __future__ import annotations

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.efa_loopback import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity, Unobserved
from gpu_healthcheck.healthcheck.probes.efa.loopback import EFA_LOOPBACK, NOT_RUN
from gpu_healthcheck.healthcheck.probes.loopback import Broken, Loopback, LoopbackReading, LoopbackResult, Measured
from tests.checks.evidence import P5, UNKNOWN_TYPE, judgements


def judge(*answers: LoopbackResult, least: int = 0) -> list[Judgement]:
    loopbacks = tuple(Loopback(f"rdmap{number}s0", answer) for number, answer in enumerate(answers, 16))
    return judgements(CHECK, replace(P5, efa_min_bandwidth=least), {EFA_LOOPBACK: LoopbackReading(loopbacks)})


def at(bandwidth: float) -> Measured:
    return Measured(bandwidth, 1 << 20)


def test_without_a_minimum_speeds_are_shown_and_not_judged() -> None:
    assert judge(at(4321.4), at(0.0)) == [Observation("2 of 2 EFA devices carry data, at 0 to 4321 MB/s")]


def test_a_device_below_the_minimum_is_slow() -> None:
    assert judge(at(4000.0), at(3999.9), least=4000) == [
        Finding(
            "EfaLoopbackSlow",
            Severity.REBOOT,
            "efa/rdmap17s0",
            "3999.90 MB/s with messages of 1048576 bytes; EFA_MIN_BW is 4000",
        ),
        Observation("2 of 2 EFA devices carry data, at 4000 to 4000 MB/s", "at least 4000 MB/s", "EFA_MIN_BW"),
    ]


def test_data_that_was_lost_and_data_that_was_changed_are_two_faults() -> None:
    assert judge(Broken("no end within 180 s"), Broken("changed", corrupt=True), at(4321.0)) == [
        Finding("EfaLoopbackFailed", Severity.REBOOT, "efa/rdmap16s0", "no end within 180 s"),
        Finding("EfaLoopbackCorrupt", Severity.ISOLATE, "efa/rdmap17s0", "changed"),
        Observation("1 of 3 EFA devices carry data, at 4321 to 4321 MB/s"),
    ]


def test_untested_device_is_unobserved_alone() -> None:
    assert judge(Unobserved(NOT_RUN, "no library"), at(4321.0), least=4000) == [
        Unobserved(NOT_RUN, "efa/rdmap16s0: no library", "efa/rdmap16s0"),
        Observation("1 of 2 EFA devices carry data, at 4321 to 4321 MB/s", "at least 4000 MB/s", "EFA_MIN_BW"),
    ]


def test_where_none_was_measured_there_is_no_line_for_a_person() -> None:
    assert judge(Unobserved(NOT_RUN, "no library")) == [
        Unobserved(NOT_RUN, "efa/rdmap16s0: no library", "efa/rdmap16s0"),
    ]


def test_without_the_program_or_a_device_it_does_not_belong_to_the_node() -> None:
    absent = LoopbackReading(absent="fi_pingpong is not installed here")

    assert judgements(CHECK, UNKNOWN_TYPE, {EFA_LOOPBACK: absent}) == [
        NotConfigured("fi_pingpong is not installed here")
    ]
