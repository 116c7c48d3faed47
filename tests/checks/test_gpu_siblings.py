"""Comparison of the GPUs of one pod over the driver's history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.gpu_siblings import CHECK, NOT_COMPARED, NOW
from gpu_healthcheck.healthcheck.model import (
    PROBE_FAILED,
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    TooEarly,
    Unobserved,
)
from gpu_healthcheck.healthcheck.model.node_facts import DeepDiagnostic
from gpu_healthcheck.healthcheck.probes.gpu_pods import GPU_PODS, GpuPods
from gpu_healthcheck.healthcheck.probes.nvml.gpus import (
    NVML,
    DriverReading,
    Gpu,
    Gpus,
    Load,
    Mode,
    Samples,
    Snapshot,
    Temperature,
    ThrottledTime,
)
from tests.checks.evidence import ADDRESSES, P5, driver_says, healthy

SUBJECT = f"gpu/{ADDRESSES[5]}"
WINDOW = 300.0
IN_ONE = dict.fromkeys((f"gpu/{address}" for address in ADDRESSES), "ml/train")
NOT_ASKED: dict[str, str] = {}
NS = 10**9


def busy(index: int, mhz: int = 1980, watts: int = 650, at: float = 0.0, **more: Any) -> Gpu:
    """A GPU that was busy since 0; its counters at this time."""
    load = Load(
        sm_mhz=mhz,
        memory_mhz=2619,
        energy_millijoules=int(watts * 1000 * at),
        nvlink_sent_kib=int(1e8 * at),
        nvlink_received_kib=int(1e8 * at),
        utilisation=Samples(120, 20_000_000, 12_000),
        sm_clock=Samples(120, 20_000_000, 120 * mhz),
    )
    return healthy(index, **{"load": load, **more})


def node(at: float, slow: bool = True, **more: Any) -> tuple[Gpu, ...]:
    hot = ThrottledTime(0, int(0.6 * NS * at), int(0.3 * NS * at), 0)
    fault = {"temperature": Temperature(85, None, 2, -2), "throttled": hot} if slow else {}
    clock, watts = (1410, 410) if slow else (1980, 650)
    return tuple(
        busy(index, clock, watts, at, **fault, **more) if index == 5 else busy(index, at=at, **more)
        for index in range(8)
    )


def judge(
    reads: Sequence[tuple[Gpu, ...]],
    pods: Sequence[dict[str, str] | None] | None = None,
    run: DeepDiagnostic | None = None,
    window: float = WINDOW,
    check: Check = CHECK,
) -> list[Judgement]:
    """Judge reads in a row, with the pods at each; without pods, one pod holds all GPUs.

    `None`: the kubelet refused. `NOT_ASKED`: it was not asked.
    """
    times = [window * number for number in range(1, len(reads) + 1)]
    history = tuple(Snapshot(at, gpus) for at, gpus in zip(times[:-1], reads[:-1], strict=True))
    reading = DriverReading(Gpus("580.95.05", "lib", reads[-1]), read_at=times[-1], history=history)
    held = [IN_ONE] * len(times) if pods is None else pods
    asked = tuple(
        GpuPods(at, error="refused") if one is None else GpuPods(at, one)
        for at, one in zip(times, held, strict=True)
        if one is not NOT_ASKED
    )
    found = check.judge(Evidence({NVML: reading, GPU_PODS: asked}), replace(P5, deep_run=run))
    return [judgement for judgement in found if not isinstance(judgement, Observation)]


def reads(states: str, **more: Any) -> list[tuple[Gpu, ...]]:
    """Reads at intervals: `x` GPU 5 is slow, `.` equal, `i` all idle."""
    times = [WINDOW * number for number in range(1, len(states) + 1)]
    return [
        tuple(map(healthy, range(8))) if state == "i" else node(at, slow=state == "x", **more)
        for at, state in zip(times, states, strict=True)
    ]


def of(judgements: list[Judgement]) -> list[Judgement]:
    """Return the judgements about GPU 5."""
    return [one for one in judgements if getattr(one, "subject", SUBJECT) == SUBJECT]


def test_a_slow_gpu_is_found_in_the_third_window_with_its_figures() -> None:
    early = of(judge(reads("xxx")))
    (found,) = (one for one in judge(reads("xxxx")) if isinstance(one, Finding))

    assert early == [TooEarly("2 of 6 measurements of work in one pod in the last hour", SUBJECT)]
    assert (found.reason, found.severity.name, found.subject) == ("GpuSlowerThanSiblings", "MONITOR", SUBJECT)
    assert found.detail == (
        "SM clock 1410 MHz, 30 % below the median of its 7 siblings (1980 MHz), in 3 of 3 measurements; power 400 W "
        "(siblings 650 W), software thermal slowdown 60 % of the time (0 %), hardware thermal slowdown 30 % of the "
        "time (0 %), 0 °C from its temperature limit (50 °C)"
    )


def test_time_in_a_power_brake_is_found_without_a_lower_clock_in_the_samples() -> None:
    braked = [
        tuple(
            replace(gpu, throttled=ThrottledTime(0, 0, 0, int(0.45 * NS * WINDOW * number))) if gpu.index == 5 else gpu
            for gpu in gpus
        )
        for number, gpus in enumerate(reads("....."), 1)
    ]
    (found,) = (one for one in judge(braked) if isinstance(one, Finding))

    assert found.detail == (
        "45 % of the time in hardware thermal slowdown or power brake, the median of its 7 siblings 0 %, in 4 of 4 "
        "measurements; power brake 45 % of the time (0 %)"
    )


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (".....", "equal"),
        ("xxxxxxxx", "slow"),
        ("xxxxxxx...", "slow"),  # one of its three slow windows has a slow end
        ("xxxxxxx......", "equal"),
        ("xxxxi", "later"),  # idle: nothing shows that it is better
        ("xxxxixx", "slow"),
        ("iiiiiiiiiiii", "later"),
        ("x", "later"),
        ("....i", "later"),
        (".....i", "equal"),
    ],
)
def test_work_alone_shows_or_ends_it(states: str, expected: str) -> None:
    kinds = {Finding: "slow", TooEarly: "later"}
    assert [kinds[type(one)] for one in of(judge(reads(states)))] == ([] if expected == "equal" else [expected])


def test_gpus_of_different_pods_are_not_compared() -> None:
    split = {subject: "ml/serve" if index > 4 else "ml/train" for index, subject in enumerate(IN_ONE)}
    moved = dict.fromkeys(IN_ONE, "ml/other")

    assert [type(one) for one in of(judge(reads("xxxxx"), [split] * 5))] == [TooEarly]
    assert [type(one) for one in of(judge(reads("xxxxx"), [IN_ONE, moved] * 2 + [IN_ONE]))] == [TooEarly]
    assert [type(one) for one in of(judge(reads("xxxxx"), [dict[str, str]()] * 5))] == [TooEarly]


@pytest.mark.parametrize(
    ("states", "asked", "expected"),
    [
        (".....", 0, []),
        ("ii.....", 0, []),
        ("..", 0, [TooEarly]),
        ("xxxxx", 0, [TooEarly]),
        ("....xxxx", 4, [Finding]),
        ("...xxx", 3, [TooEarly]),
        ("xxxx.....", 6, []),
    ],
)
def test_without_a_difference_no_pods_are_needed(states: str, asked: int, expected: list[type]) -> None:
    """The kubelet names pods at the first reads with a slow GPU, or from these on."""
    held = [IN_ONE] * asked
    first = [NOT_ASKED] * (len(states) - asked)
    pods = [*held, *first] if states[0] == "x" else [*first, *held]

    assert [type(one) for one in of(judge(reads(states), pods))] == expected


def test_three_gpus_of_a_pod_are_not_compared() -> None:
    three = dict(list(IN_ONE.items())[4:7])

    assert [type(one) for one in of(judge(reads("xxxxx"), [three] * 5))] == [TooEarly]


def test_gpus_of_another_product_and_replaced_gpus_are_not_compared() -> None:
    other = [
        tuple(replace(gpu, name="NVIDIA H200") if gpu.index == 5 else gpu for gpu in gpus) for gpus in reads("xxxxx")
    ]
    swapped = [*reads("xxxx"), tuple(replace(gpu, uuid=f"{gpu.uuid}-new") for gpu in node(5 * WINDOW))]

    assert [type(one) for one in of(judge(other))] == [TooEarly]
    assert [type(one) for one in of(judge(swapped))] == [TooEarly]


def test_counters_that_began_anew_are_no_figures() -> None:
    later = [node(WINDOW * (9 - number)) for number in range(5)]

    assert [type(judgement) for judgement in of(judge(later))] == [TooEarly]


def test_mig_is_not_compared() -> None:
    divided = reads("xxxxx", mig_mode=Mode(current=True, pending=True), instances=(1, 2))

    assert judge(divided) == [NotConfigured("fewer than 4 GPUs without MIG")]


def test_a_deep_diagnostic_is_no_work_and_begins_the_windows_anew() -> None:
    running, ended = DeepDiagnostic("quarantine", 0.0), DeepDiagnostic("quarantine", 0.0, 3 * WINDOW)

    assert judge(reads("xxxxx"), run=running) == [TooEarly("a deep test uses the GPUs")]
    assert [type(one) for one in of(judge(reads("xxxxx"), run=ended))] == [TooEarly]
    assert [type(one) for one in of(judge(reads("xxxxxxxxx"), run=ended))] == [Finding]


def test_long_gaps_are_no_windows() -> None:
    assert [type(one) for one in of(judge(reads("xxxxx"), window=1900.0))] == [TooEarly]


def test_a_kubelet_that_never_answers_is_reported_after_many_windows() -> None:
    message = "the kubelet does not name the pods of the GPUs: refused"

    assert [type(one) for one in of(judge(reads("xxxxx"), [None] * 5))] == [TooEarly]
    assert judge(reads("xxxxxx"), [None] * 6) == [Unobserved(PROBE_FAILED, message)]
    assert [type(one) for one in of(judge(reads("xxxxxxxxx"), [None] * 3 + [IN_ONE] * 6))] == [Finding]


def test_a_single_cycle_judges_nothing() -> None:
    reading = driver_says(*node(WINDOW))
    found = list(CHECK.judge(Evidence({NVML: reading, GPU_PODS: ()}), P5))

    assert {type(one) for one in found} == {TooEarly, Observation}


MINUTE = 60.0
FEW = "8 of 8 GPUs were busy at both reads, and 4 of one pod are needed"


@pytest.mark.parametrize(
    ("states", "pods", "detail"),
    [
        ("xx", [IN_ONE] * 2, ""),
        ("x", [IN_ONE], "the driver did not answer at the first read"),
        ("ii", [IN_ONE] * 2, "0 of 8 GPUs were busy at both reads, and 4 of one pod are needed"),
        ("ix", [IN_ONE] * 2, "0 of 8 GPUs were busy at both reads, and 4 of one pod are needed"),
        ("xx", [IN_ONE, {}], FEW),
        (
            "xx",
            [dict(list(IN_ONE.items())[4:7])] * 2,
            "8 of 8 GPUs were busy at both reads, and 4 of one pod are needed",
        ),
        (
            "xx",
            [None, IN_ONE],
            f"{FEW}; the kubelet does not name their pods: refused",
        ),
        ("..", [IN_ONE] * 2, None),
        ("..", [None, None], None),  # GPUs that do not differ need no pods
    ],
)
def test_one_measurement_shows_a_slow_gpu_or_why_none_was_compared(
    states: str, pods: list[dict[str, str] | None], detail: str | None
) -> None:
    reads_now = [node(MINUTE * at, slow=state == "x") for at, state in enumerate(states, 1)]
    reads_now = [tuple(map(healthy, range(8))) if s == "i" else gpus for s, gpus in zip(states, reads_now, strict=True)]
    judgements = judge(reads_now, pods, window=MINUTE, check=NOW)

    if detail:
        assert judgements == [Unobserved(NOT_COMPARED, f"could not compare: {detail}")]
    elif detail is None:
        assert judgements == []
    else:
        (found,) = judgements
        assert isinstance(found, Finding)
        assert (found.reason, found.subject) == ("GpuSlowerThanSiblings", SUBJECT)
        assert "(1980 MHz), in 1 of 1 measurements; power" in found.detail


def test_one_measurement_of_too_few_gpus_without_mig_is_not_configured() -> None:
    mig = [node(MINUTE * at, mig_mode=Mode(True, True)) for at in (1, 2)]

    assert [type(one) for one in judge(mig, window=MINUTE, check=NOW)] == [NotConfigured]
