"""Series of reads of eight GPUs, from documented behaviour: the ones that are slower than their siblings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest

from gpu_healthcheck.healthcheck.checks import clocks, gpu_siblings
from gpu_healthcheck.healthcheck.model import Check, Evidence, Finding
from gpu_healthcheck.healthcheck.probes.gpu_pods import GPU_PODS, GpuPods, is_busy
from gpu_healthcheck.healthcheck.probes.nvml.gpus import (
    NVML,
    DriverReading,
    Gpu,
    Gpus,
    Load,
    Mode,
    Samples,
    Snapshot,
    ThrottledTime,
)
from tests.checks.evidence import ADDRESSES, P5, healthy

WINDOW, READS = 300.0, 9
SPAN_SECONDS = WINDOW * (READS - 1)
NS = 10**9
CLOCKS_BY_SETTING, BRAKED = 0x2, 0x80
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


@dataclass(frozen=True)
class State:
    """A GPU at a read, and since the read before."""

    mhz: int = 1980
    memory_mhz: int = 2619
    watts: int = 650
    used: int = 100
    """Percent of the time."""
    capped: float = 0.0
    """Part of the time at the power limit, and so on."""
    heat: float = 0.0
    brake: float = 0.0
    bits: int = 0
    name: str = H100
    uuid: str = ""
    restarts: bool = False
    """Whether the driver was loaded anew since the read before."""
    mig: bool = False


WELL = State()
IDLE = State(mhz=345, watts=70, used=0)
SLOW = State(mhz=1410, watts=420, heat=0.4)
Story = Callable[[int, int], State]
"""State of a GPU at a read, by index and number."""


def gpu_of(index: int, state: State, counters: Mapping[str, float]) -> Gpu:
    load = Load(
        sm_mhz=state.mhz,
        memory_mhz=state.memory_mhz,
        energy_millijoules=int(1000 * counters["joules"]),
        utilisation=Samples(120, 20_000_000, 120 * state.used),
        sm_clock=Samples(120, 20_000_000, 120 * state.mhz),
    )
    time = (int(counters[kind] * NS) for kind in ("capped", "software", "heat", "brake"))
    return healthy(
        index,
        name=state.name,
        uuid=state.uuid or f"GPU-{index}",
        clock_reasons=state.bits,
        load=load,
        throttled=ThrottledTime(*time),
        mig_mode=Mode(current=state.mig, pending=state.mig),
        instances=(1,) if state.mig else (),
    )


def reads_of(story: Story) -> list[tuple[Gpu, ...]]:
    counters = [dict.fromkeys(("joules", "capped", "software", "heat", "brake"), 0.0) for _ in range(8)]
    reads = []
    for number in range(READS):
        gpus = []
        for index, counts in enumerate(counters):
            state = story(index, number)
            if state.restarts or (number and state.uuid != story(index, number - 1).uuid):
                counts.update(dict.fromkeys(counts, 0.0))
            counts["joules"] += state.watts * WINDOW
            for kind in ("capped", "heat", "brake"):
                counts[kind] += getattr(state, kind) * WINDOW
            gpus.append(gpu_of(index, state, counts))
        reads.append(tuple(gpus))
    return reads


def evidence_of(story: Story, pods: Sequence[str]) -> Evidence:
    """Return the evidence of the last read, with the driver's history and the pods at each read."""
    reads = reads_of(story)
    times = [WINDOW * (number + 1) for number in range(READS)]
    held = {f"gpu/{address}": pod for address, pod in zip(ADDRESSES, pods, strict=True) if pod}
    asked = (GpuPods(at, held) for at, gpus in zip(times, reads, strict=True) if sum(map(is_busy, gpus)) >= 4)
    history = tuple(Snapshot(at, gpus) for at, gpus in zip(times[:-1], reads[:-1], strict=True))
    reading = DriverReading(Gpus("580.95.05", "lib", reads[-1]), read_at=times[-1], history=history)
    return Evidence({NVML: reading, GPU_PODS: tuple(asked)}, times[-1])


def found_by(check: Check, story: Story, pods: Sequence[str]) -> dict[int, Finding]:
    """Return the findings of the check at the last read, by index of the GPU."""
    judgements = check.judge(evidence_of(story, pods), P5)
    return {int(one.about["index"]): one for one in judgements if isinstance(one, Finding)}


def only(indices: tuple[int, ...], state: State, others: State = WELL) -> Story:
    return lambda index, _: state if index in indices else others


def noisy(index: int, number: int) -> State:
    return replace(WELL, mhz=1980 - 15 * (7 * index * index + 5 * number) % 120, watts=600 + 13 * index)


def slow_at(*numbers: int) -> Story:
    return lambda index, number: SLOW if index == 5 and number in numbers else replace(WELL, mhz=1965 + index)


def ends_at_each_second_read(index: int, number: int) -> State:
    """The jobs of a queue: each is over before the next read."""
    return IDLE if number % 2 else only((5,), SLOW)(index, number)


def swapped(index: int, number: int) -> State:
    if index != 5:
        return WELL
    return replace(WELL, uuid="GPU-new") if number > 4 else SLOW


def reloaded(index: int, number: int) -> State:
    return replace(SLOW if index == 5 else WELL, restarts=number == 5)


def reloaded_each_time(index: int, _: int) -> State:
    return replace(SLOW if index == 5 else WELL, restarts=True)


def two_products(index: int, _: int) -> State:
    return replace(WELL, name=H200, mhz=1680, watts=560) if index > 3 else WELL


def slow_with_another_product(index: int, number: int) -> State:
    return replace(two_products(index, number), mhz=1400, watts=400) if index == 6 else two_products(index, number)


def pod_with_another(index: int, number: int) -> State:
    """GPUs 0 to 3 do other work in another pod, at lower clocks."""
    return replace(WELL, mhz=1500, watts=690, capped=0.7) if index < 4 else only((5,), SLOW)(index, number)


class Row(NamedTuple):
    what: str
    story: Story
    slower: set[int]
    pods: tuple[str, ...] = ("ml/train",) * 8
    is_healthy: bool = False
    """Whether no GPU has a fault."""


FOUR = ("ml/a",) * 4 + ("ml/b",) * 4
HALF = State(used=50, mhz=1980, watts=330)
POLLING = State(watts=260)
ROWS = (
    Row("equal", only((), WELL), set(), is_healthy=True),
    Row("noise of the clocks", noisy, set(), is_healthy=True),
    Row("one slow by heat", only((5,), SLOW), {5}),
    Row("two slow by heat", only((2, 5), SLOW), {2, 5}),
    Row("half of the node is braked", only((4, 5, 6, 7), State(mhz=990, watts=300, brake=0.9)), {4, 5, 6, 7}),
    Row("all are braked", only(tuple(range(8)), State(mhz=990, watts=300, brake=0.9)), set()),
    Row("slow at one read", slow_at(7), set()),
    Row("slow at two reads, which are the ends of four windows", slow_at(4, 7), {5}),
    Row("slow an hour ago", slow_at(0, 1, 2), set()),
    Row(
        "reaches its limit earlier, now and then",
        only((5,), State(mhz=1700, watts=690, capped=0.6)),
        set(),
        is_healthy=True,
    ),
    Row("always at a lower limit", only((5,), State(mhz=1410, watts=500, capped=1.0)), {5}),
    Row(
        "always at the same limit, with harder work",
        only((5,), State(mhz=1600, watts=695, capped=1.0)),
        set(),
        is_healthy=True,
    ),
    Row("a pipeline's stage that is idle for half of the time", only((5,), HALF), set(), is_healthy=True),
    Row("a pipeline's stage that polls", only((5,), POLLING), set(), is_healthy=True),
    Row("slow beside a stage that is idle", lambda i, _: {0: HALF, 5: SLOW}.get(i, WELL), {5}),
    Row("all but the slow one wait for it", only((5,), SLOW, POLLING), {5}),
    Row("a pod with four of eight GPUs", pod_with_another, {5}, FOUR),
    Row(
        "a healthy pod with four of eight GPUs",
        lambda i, n: WELL if i == 5 else pod_with_another(i, n),
        set(),
        FOUR,
        is_healthy=True,
    ),
    Row("three GPUs without a pod, the others equal", only((5,), SLOW), set(), ("ml/train",) * 5 + ("",) * 3),
    Row("jobs that end in mid-window", ends_at_each_second_read, set()),
    Row("clocks locked on one", only((5,), State(mhz=1200, watts=380, bits=CLOCKS_BY_SETTING)), {5}),
    Row(
        "clocks locked on all",
        only(tuple(range(8)), State(mhz=1200, watts=380, bits=CLOCKS_BY_SETTING)),
        set(),
        is_healthy=True,
    ),
    Row("a memory clock that stays low", only((5,), State(memory_mhz=1593, watts=500)), {5}),
    Row("a slow GPU that was swapped", swapped, set()),
    Row("a slow GPU after a reload of the driver", reloaded, {5}),
    Row("a driver that is reloaded between all reads", reloaded_each_time, set()),
    Row("one with MIG beside a slow one", lambda i, _: {0: State(mig=True, mhz=900), 5: SLOW}.get(i, WELL), {5}),
    Row("a slow one with MIG", only((5,), replace(SLOW, mig=True)), set()),
    Row("two products", two_products, set(), is_healthy=True),
    Row("two products, one GPU slow", slow_with_another_product, {6}),
    Row("an H200 alone among H100", only((5,), replace(SLOW, name=H200)), set()),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_series_is_judged_by_the_gpus_that_hold_the_job_back(row: Row) -> None:
    assert set(found_by(gpu_siblings.CHECK, row.story, row.pods)) == row.slower


def test_a_brake_of_all_gpus_shows_in_its_own_time() -> None:
    """No sibling differs, so only the driver's counter shows it."""
    braked = found_by(clocks.CHECK, only(tuple(range(8)), State(mhz=990, watts=300, brake=0.9)), ["ml/train"] * 8)

    assert {finding.reason for finding in braked.values()} == {"PowerBrake"}
    assert (len(braked), {finding.detail[:20] for finding in braked.values()}) == (8, {"over 75% of the time"})


def test_clocks_that_a_person_limits_are_named_in_the_detail() -> None:
    limited = State(mhz=1200, watts=380, bits=CLOCKS_BY_SETTING)
    for bits, is_named in ((CLOCKS_BY_SETTING, True), (0, False)):
        found = found_by(gpu_siblings.CHECK, only((5,), replace(limited, bits=bits)), ["ml/train"] * 8)
        assert ("a setting limits its clocks" in found[5].detail) is is_named
    both = found_by(gpu_siblings.CHECK, only((5,), replace(SLOW, bits=2), replace(WELL, bits=2)), ["ml/train"] * 8)
    assert "a setting" not in both[5].detail
