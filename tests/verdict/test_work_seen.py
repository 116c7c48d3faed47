"""GPUs that wait or idle: series of reads of jobs that stall, each with its healthy twin."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.model import Unobserved
from gpu_healthcheck.healthcheck.probes.nvml import error_causes
from gpu_healthcheck.healthcheck.probes.nvml.gpus import DriverReading, Gpu, Mode
from gpu_healthcheck.healthcheck.verdict.work import Work as State
from gpu_healthcheck.healthcheck.verdict.work import WorkRow
from gpu_healthcheck.healthcheck.verdict.work_seen import GpuPod, NamedWork, waiting_pods
from tests.verdict.gpu_series import (
    CLOSED,
    COPIES,
    DECODING,
    LIMIT_MILLIWATTS,
    LOADER,
    OPEN,
    POD,
    PRODUCTS,
    START,
    TINY,
    UUID,
    WAITS,
    Cycle,
    Form,
    Work,
    cycles,
    every,
    gpu_at,
    pod_of,
)

HOUR, MINUTE = 3600.0, 60.0
STALLED = Work([(HOUR, WAITS)])
INTERVALS = (10.0, 30.0, 300.0, 600.0, 3000.0)
LOST = DriverReading(Unobserved(error_causes.DRIVER_NOT_ANSWERING, "no answer"))
POLLING_AT_30_PERCENT = Form(100, 0, 0.3)
"""Registers and caches alone, such as a miner: busy throughout, without use of memory."""


def states(series: list[Cycle]) -> set[State | None]:
    return {entry.row.state for cycle in series for entry in cycle.named.values()}


def waiting(cycle: Cycle) -> list[NamedWork]:
    return [entry for entry in cycle.named.values() if entry.row.state is State.WAITING]


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("work_before", [0.0, 17 * MINUTE + 3])
@pytest.mark.parametrize("form", [WAITS, Form(100, 1, 0.25), Form(99, 0, 0.12), OPEN, CLOSED])
def test_stalled_job_is_named_within_two_cycles_and_ten_minutes(
    form: Form, work_before: float, interval: float
) -> None:
    work = Work([(work_before, PRODUCTS), (3 * HOUR, form)])
    series = list(cycles(every(interval, work, 3 * HOUR)))
    named = [cycle for cycle in series if cycle.named]

    assert named[0].at <= work_before + 2 * max(interval, 20.0) + max(600.0, 2 * interval)
    assert named[0].at >= work_before + max(600.0, 2 * interval)
    state = State.WAITING if form.busy else State.IDLE
    first = next(at for at, _ in every(interval, work, 3 * HOUR) if at >= work_before + (20 if work_before else 0))
    expected = WorkRow(state=state, since=START + timedelta(seconds=first), pod="train-3-")
    assert named == [cycle for cycle in series if cycle.at >= named[0].at]
    assert {cycle.rows[UUID] for cycle in named} == {expected}


HEALTHY = {
    "products": Work([(HOUR, PRODUCTS)]),
    "copies": Work([(HOUR, COPIES)]),
    "decoding": Work([(HOUR, DECODING)]),
    "tiny kernels": Work([(HOUR, TINY)]),
    "registers only": Work([(HOUR, POLLING_AT_30_PERCENT)]),
    "small use of memory": Work([(HOUR, Form(100, 2, 0.2))]),
    "short breaks": Work([(HOUR, Form(98, 0, 0.2))]),
    "pipeline bubble": Work([(1.4, PRODUCTS), (0.6, WAITS)], repeats=True),
    "long pipeline bubble": Work([(20, PRODUCTS), (45, WAITS)], repeats=True),
    "bursts": Work([(0.02, PRODUCTS), (0.45, OPEN)], repeats=True),
    "slow data loader": Work([(0.17, Form(30, 4, 0.3)), (0.33, LOADER)], repeats=True),
    "notebook": Work([(40, DECODING), (500, OPEN)], repeats=True),
    "evaluation between epochs": Work([(1500, PRODUCTS), (300, WAITS), (60, DECODING)], repeats=True),
    "first initialisation": Work([(4 * MINUTE, OPEN), (5 * MINUTE, WAITS), (HOUR, PRODUCTS)]),
    "slow first initialisation": Work([(9 * MINUTE, WAITS), (HOUR, PRODUCTS)]),
    "checkpoint of nine minutes": Work([(10 * MINUTE, PRODUCTS), (9 * MINUTE, WAITS)], repeats=True),
    "inference with gaps": Work([(30, DECODING), (200, OPEN)], repeats=True),
}


HIDDEN = ("notebook", "inference with gaps")
"""Loads that may fall between two cycles: the driver keeps samples of 20 s, and an idle GPU's energy is not read."""


@pytest.mark.parametrize("interval", INTERVALS[:3])
@pytest.mark.parametrize("load", HEALTHY)
def test_healthy_work_is_not_named(load: str, interval: float) -> None:
    series = list(cycles(every(interval, HEALTHY[load], 2 * HOUR)))

    assert len(series) == int(2 * HOUR / interval) + 1
    assert states(series) <= ({State.IDLE} if load in HIDDEN and interval == 300.0 else set())


def test_300_000_healthy_node_hours_have_no_waiting_gpu() -> None:
    """Draws 300,000 hours from 816 distinct ones: 17 loads, each with 48 phases of the check cycle and their noise.

    A series has one GPU. More GPUs with the same load add reads of other phases, which the draws contain. The loads are
    those measured on one H200 and the guards above, no record of real clusters.
    """
    noise = random.Random(52)
    loads = {**HEALTHY, "stalled": STALLED}
    distinct = [(load, phase) for load in loads for phase in range(48)]
    named = {}
    for load, phase in distinct:
        offset, work = noise.uniform(0, 300), loads[load]
        reads = [(offset + 300.0 * number, [gpu_at(work, offset + 300.0 * number, noise)]) for number in range(13)]
        named[load, phase] = State.WAITING in states(list(cycles(reads)))
    hours = Counter(noise.choices([hour for hour in distinct if hour[0] in HEALTHY], k=300_000))

    assert [named["stalled", phase] for phase in range(48)] == [True] * 48
    assert hours.total() == 300_000
    assert sum(named[hour] * count for hour, count in hours.items()) == 0


@pytest.mark.parametrize(
    ("work", "state"),
    [
        (Work([(10 * MINUTE, PRODUCTS), (12 * MINUTE, WAITS), (10 * MINUTE, PRODUCTS)], repeats=True), State.WAITING),
        (Work([(10 * MINUTE, PRODUCTS), (12 * MINUTE, OPEN), (10 * MINUTE, PRODUCTS)], repeats=True), State.IDLE),
    ],
)
def test_checkpoint_of_twelve_minutes_is_named_for_two_minutes_and_too_short_for_the_alert(
    work: Work, state: State
) -> None:
    series = list(cycles(every(30.0, work, HOUR)))

    assert states(series) == {state}
    longest = max(entry.work.seconds for cycle in series for entry in cycle.named.values())
    assert 600 <= longest < 12 * MINUTE
    assert all(cycle.at % (32 * MINUTE) < 22 * MINUTE + 30 for cycle in series if cycle.named)


def test_job_in_a_debugger_idles_and_is_no_alert() -> None:
    """SIGSTOP ends no kernel and starts none."""
    stopped = Work([(10 * MINUTE, PRODUCTS), (HOUR, OPEN)])
    series = list(cycles(every(30.0, stopped, HOUR)))

    assert states(series) == {State.IDLE}
    assert {name for cycle in series for name in waiting_pods(waiting(cycle))} == set()


def changed(gpu: Gpu, **load: int | None) -> Gpu:
    assert gpu.load is not None
    return replace(gpu, load=replace(gpu.load, **load))


def test_lowered_power_limit_is_no_work() -> None:
    """130 W of a limit of 300 W are 0.43; of the board's default they are 0.19."""
    reads = every(30.0, STALLED, 1200.0)
    default = [(at, [changed(gpu, default_power_limit_milliwatts=300_000) for gpu in gpus]) for at, gpus in reads]

    assert states(list(cycles(reads))) == {State.WAITING}
    assert states(list(cycles(default))) == set()


@pytest.mark.parametrize(
    ("powers", "expected"), [((130, 130), {State.WAITING}), ((130, 400), set()), ((130, None), set())]
)
def test_power_at_both_ends_counts_without_an_energy_counter(
    powers: tuple[int | None, int | None], expected: set[State]
) -> None:
    reads = []
    for number, (at, gpus) in enumerate(every(30.0, STALLED, 1200.0)):
        watts = powers[number % 2]
        milliwatts = None if watts is None else 1000 * watts
        reads.append((at, [changed(gpu, energy_millijoules=None, power_milliwatts=milliwatts) for gpu in gpus]))

    assert states(list(cycles(reads))) == expected


@pytest.mark.parametrize(
    "lacks",
    ["default_power_limit_milliwatts", "memory_utilisation", "utilisation"],
)
def test_unknown_values_are_no_waiting(lacks: str) -> None:
    reads = every(30.0, STALLED, 1200.0)

    assert states(list(cycles([(at, [changed(gpu, **{lacks: None}) for gpu in gpus]) for at, gpus in reads]))) == set()


@pytest.mark.parametrize(
    "change",
    [
        {"mig_mode": Mode(current=True, pending=True)},
        {"error": 15},
        {"load": None},
        {"uuid": "GPU-ffffffff-51e0-4000-8000-000000000001"},
    ],
)
@pytest.mark.parametrize("form", [WAITS, OPEN])
def test_unreadable_or_replaced_gpu_ends_the_row(form: Form, change: dict[str, object]) -> None:
    reads = every(30.0, Work([(HOUR, form)]), 1260.0)
    at, gpus = reads[-1]
    *_, before, after = cycles([*reads[:-1], (at, [replace(gpu, **change) for gpu in gpus])])

    assert UUID in before.rows
    assert after.rows == {}


@pytest.mark.parametrize(("count", "expected"), [(9, set()), (10, {State.IDLE, State.WAITING})])
def test_few_samples_show_nothing(count: int, expected: set[State]) -> None:
    """As after the driver was loaded: the buffer is not full."""
    found: set[State | None] = set()
    for form in (WAITS, OPEN):
        reads = []
        for at, (gpu,) in every(30.0, Work([(HOUR, form)]), 1200.0):
            assert gpu.load is not None
            assert gpu.load.utilisation is not None
            few = replace(gpu.load.utilisation, count=count)
            reads.append((at, [replace(gpu, load=replace(gpu.load, utilisation=few))]))
        found |= states(list(cycles(reads)))

    assert found == expected


def test_driver_loaded_again_starts_anew() -> None:
    reads = every(30.0, STALLED, 1200.0)
    counter = [(at, [changed(gpu, energy_millijoules=5) for gpu in gpus]) for at, gpus in reads[-1:]]
    *_, before, after = cycles([*reads[:-1], *counter])

    assert (set(before.rows), after.rows) == ({UUID}, {})


@pytest.mark.parametrize("interval", [30.0, 300.0])
@pytest.mark.parametrize("form", [WAITS, OPEN])
def test_read_without_an_answer_is_bridged(form: Form, interval: float) -> None:
    reads: list[tuple[float, list[Gpu] | DriverReading]] = [*every(interval, Work([(HOUR, form)]), 1500.0)]
    whole = list(cycles(reads))
    lost = len(reads) - 2
    bridged = list(cycles([*reads[:lost], (reads[lost][0], LOST), *reads[lost + 1 :]]))

    assert bridged[-1].rows == whole[-1].rows != {}
    assert bridged[lost].rows == whole[lost - 1].rows


@pytest.mark.parametrize("form", [WAITS, OPEN])
def test_driver_that_stays_silent_ends_the_row(form: Form) -> None:
    reads: list[tuple[float, list[Gpu] | DriverReading]] = [*every(30.0, Work([(HOUR, form)]), 900.0)]
    silent = [(900.0 + 30 * number, LOST) for number in range(1, 40)]
    later = (900.0 + 30 * 40, [gpu_at(Work([(HOUR, form)]), 2100.0)])
    series = list(cycles([*reads, *silent, later]))

    assert [bool(cycle.rows) for cycle in series[30:]] == [True] * 31 + [False] * 10


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_jump_of_the_wall_clock_names_no_gpu_earlier_or_later(jump: float) -> None:
    named = [cycle.at for cycle in cycles(every(30.0, STALLED, 1500.0), wall_jumps=jump) if cycle.named]

    assert named == [600.0 + 30 * number for number in range(31)]


def test_cycles_in_quick_succession_are_one() -> None:
    """The counter grows every two seconds. Reads closer than five seconds compare nothing, so they end no row."""
    coarse = [
        (at, [changed(gpu, energy_millijoules=133_000 * (round(at) // 2 * 2)) for gpu in gpus])
        for at, gpus in every(1.0, STALLED, 1500.0)
    ]

    assert states(list(cycles(coarse))) == {State.WAITING}


@pytest.mark.parametrize(
    ("pods", "waiting", "idle"),
    [
        ((), (True, None), (False, None)),
        ((POD,), (True, "train-3-"), (True, "train-3-")),
        ((pod_of(1),), (True, None), (False, None)),
        ((POD, pod_of(0, name="other")), (True, None), (True, None)),  # MPS or time slices
        ((pod_of(0, expects=True),), (False, None), (False, None)),
        ((pod_of(0, expects=True), pod_of(0, name="other")), (True, None), (True, None)),
        ((pod_of(0, started=1490.0),), (True, "train-3-"), (False, None)),
        ((pod_of(0, started=60.0),), (True, "train-3-"), (True, "train-3-")),
        ((pod_of(0, started=9e18),), (True, "train-3-"), (False, None)),  # as 64 bits may show
        ((pod_of(0, started=-9e18),), (True, "train-3-"), (True, "train-3-")),
    ],
)
def test_pods_of_the_gpu(
    pods: tuple[GpuPod, ...], waiting: tuple[bool, str | None], idle: tuple[bool, str | None]
) -> None:
    found = []
    for form in (WAITS, OPEN):
        *_, last = cycles(every(300.0, Work([(HOUR, form)]), 1500.0), pods)
        row = last.rows.get(UUID)
        found.append((row is not None, row.pod if row else None))

    assert found == [waiting, idle]


def test_gpu_idles_for_a_pod_since_the_pod_started() -> None:
    series = list(cycles(every(30.0, Work([(HOUR, OPEN)]), 1500.0), [pod_of(0, started=400.0)]))

    assert next(cycle.at for cycle in series if cycle.rows) == 1020.0
    assert series[-1].rows[UUID].since == START + timedelta(seconds=400)


@pytest.mark.parametrize(
    ("forms", "pods", "expected"),
    [
        ((WAITS, WAITS), [pod_of(0, 1)], {("ml", "train-3"): 1200.0}),
        ((WAITS, OPEN), [pod_of(0, 1)], {}),
        ((WAITS, PRODUCTS), [pod_of(0, 1)], {}),
        ((OPEN, OPEN), [pod_of(0, 1)], {}),
        ((WAITS, PRODUCTS), [pod_of(0), pod_of(1, name="b")], {("ml", "train-3"): 1200.0}),
        ((WAITS, WAITS), [pod_of(0), pod_of(0, name="b")], {}),
        ((WAITS, WAITS), [pod_of(0, 1, 2)], {}),
        ((WAITS, WAITS), [], {}),
    ],
)
def test_pod_waits_if_all_its_gpus_wait(
    forms: tuple[Form, ...], pods: list[GpuPod], expected: dict[tuple[str, str], float]
) -> None:
    works = [Work([(HOUR, form)]) for form in forms]
    reads = [(30.0 * n, [gpu_at(work, 30.0 * n, index=i) for i, work in enumerate(works)]) for n in range(41)]
    *_, last = cycles(reads, pods)

    assert waiting_pods(waiting(last)) == expected


def test_series_is_as_the_driver_reports_it() -> None:
    """The energy grows with the power of the phases: half an hour at the limit, then half at 0.19."""
    work = Work([(1800.0, PRODUCTS), (1800.0, WAITS)])
    energies = [work.energy(at) for at in (0.0, 1800.0, 3600.0, 5400.0)]

    assert [round(after - before) for before, after in pairwise(energies)] == [1800, 342, 342]
    assert LIMIT_MILLIWATTS == 700_000
