"""Check: no GPU is slower than the other GPUs that the same pod holds.

Two reads of the driver at least four minutes apart are a measurement. It is judged if the samples of the driver at both
ends show that the GPUs were busy, and if the kubelet names the same pod for them at both ends. While the node's busy
GPUs do not differ, the kubelet is not asked, and no GPU is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import siblings
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import answering, found
from gpu_healthcheck.healthcheck.checks.siblings import LEAST_SIBLINGS, OUTLIERS, WINDOWS, Deviation, Figures
from gpu_healthcheck.healthcheck.model import (
    PROBE_FAILED,
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
    Unobserved,
    UnobservedCause,
    counted,
)
from gpu_healthcheck.healthcheck.model.node_facts import DeepDiagnostic
from gpu_healthcheck.healthcheck.probes.gpu_pods import GPU_PODS, LEAST_DIFFERENCE, GpuPods, is_busy, is_due
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu, Gpus, Snapshot

LONGEST_WINDOW_SECONDS = 1800.0
_LEAST_FAILURES = 6
"""Failed questions to the kubelet, without an answer in the last hour, from which the check can't judge."""
_NANOSECONDS = 1e9
_LIMITED_BY_SETTING = 0x2
"""nvmlClocksEventReasonApplicationsClocksSetting (nvml.h)."""

SLOWER = Reason(
    "GpuSlowerThanSiblings",
    Severity.MONITOR,
    "A GPU is slower than the other GPUs of its pod: it has no error, but a job that uses them together waits for it.",
    "Quarantine the node: its tests measure each GPU. Check cooling, power supply, power limit and clock settings.",
    threshold=(
        f"more than {siblings.MOST_DEVIATIONS:g} standard deviations and {100 * LEAST_DIFFERENCE:g} % from "
        f"the median, in {OUTLIERS} of {WINDOWS} measurements between check cycles, among {LEAST_SIBLINGS} or more "
        "busy GPUs of one pod"
    ),
    source="robust outliers as in Guard (arXiv 2605.17879) and Megatron-LM's straggler detection (PR 4662)",
)
NOT_COMPARED = UnobservedCause(
    "GpusNotCompared",
    "`check siblings --now` could not compare the GPUs: too few GPUs of one pod were busy all the time.",
    f"Run it again while one pod keeps {LEAST_SIBLINGS} or more GPUs busy.",
)


class Work(Struct, frozen=True):
    """One GPU at both ends of a window."""

    before: Gpu
    now: Gpu
    seconds: float


class _Comparison(Struct, frozen=True):
    """Work of one GPU and of its siblings in a window; `slower` is `()` if it was not slower."""

    at: float
    """End of the window."""
    work: Work
    siblings: tuple[Work, ...]
    slower: tuple[Deviation, ...]


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    gpus, whole = yield from _comparable(evidence)
    if not whole:
        return
    run, reading, pods = expected.deep_run, evidence[NVML], evidence[GPU_PODS]
    if run is not None and run.until is None:
        yield TooEarly("a deep test uses the GPUs")
        return
    if len(pods) >= _LEAST_FAILURES and all(snapshot.error for snapshot in pods):
        yield Unobserved(PROBE_FAILED, f"the kubelet does not name the pods of the GPUs: {pods[-1].error}")
        return
    comparisons = _compare(_windows(reading, run), {snapshot.at: snapshot.pods for snapshot in pods}, whole)
    for gpu in whole:
        yield from _judge_gpu(gpu, comparisons[gpu.subject], reading)
    yield _compared(
        comparisons,
        len(gpus),
        f"none more than {100 * LEAST_DIFFERENCE:g} % slower in {OUTLIERS} of {WINDOWS} measurements",
    )


def judge_now(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    """Judge the GPUs by one measurement: the last snapshot of the driver's history and this read."""
    gpus, whole = yield from _comparable(evidence)
    if not whole:
        return
    reading, pods = evidence[NVML], evidence[GPU_PODS]
    ends = (*reading.history[-1:], Snapshot(reading.read_at, tuple(whole)))
    held = {snapshot.at: snapshot.pods for snapshot in pods if not snapshot.error}
    comparisons = _compare(pairwise(ends), held, whole)
    for gpu in whole:
        for snapshot in comparisons[gpu.subject]:
            if snapshot.slower:
                yield found(SLOWER, gpu, _detail([snapshot], 1))
    yield _compared(comparisons, len(gpus), f"none more than {100 * LEAST_DIFFERENCE:g} % slower")
    if not any(comparisons.values()):
        yield Unobserved(NOT_COMPARED, f"could not compare: {_why_not_compared(ends, len(whole), pods)}")


def _why_not_compared(ends: Sequence[Snapshot], gpus: int, pods: Iterable[GpuPods]) -> str:
    if len(ends) == 1:
        return "the driver did not answer at the first read"
    at_first, at_last = ({gpu.uuid for gpu in end.gpus if is_busy(gpu)} for end in ends)
    busy = f"{len(at_first & at_last)} of {counted(gpus, 'GPU')} were busy at both reads"
    error = next(
        (f"; the kubelet does not name their pods: {snapshot.error}" for snapshot in pods if snapshot.error), ""
    )
    return f"{busy}, and {LEAST_SIBLINGS} of one pod are needed{error}"


def _comparable(evidence: Evidence) -> Generator[Judgement, None, tuple[tuple[Gpu, ...], list[Gpu]]]:
    """Return the GPUs, and those without MIG; none of the latter if they are too few."""
    gpus = yield from answering(evidence)
    whole = [gpu for gpu in gpus if not (gpu.mig_mode is not None and gpu.mig_mode.current) and not gpu.instances]
    if gpus and len(whole) < LEAST_SIBLINGS:
        yield NotConfigured(f"fewer than {LEAST_SIBLINGS} GPUs without MIG")
        return gpus, []
    return gpus, whole


def _compared(comparisons: Mapping[str, list[_Comparison]], gpus: int, expectation: str) -> Observation:
    compared = sum(bool(entries) for entries in comparisons.values())
    return Observation(f"{compared} of {counted(gpus, 'GPU')} compared with other busy GPUs", expectation)


def _judge_gpu(gpu: Gpu, comparisons: list[_Comparison], reading: DriverReading) -> Iterator[Judgement]:
    """Judge a GPU by its last windows, the newest first.

    Only a window that has just ended shows a slow GPU, so that a release or a quarantine of an idle node holds.
    """
    is_slow = siblings.is_slow([bool(comparison.slower) for comparison in comparisons])
    newest = reading.read_at if is_due(reading) else reading.history[-1].at
    if is_slow and comparisons[0].at == newest:
        yield found(
            SLOWER, gpu, _detail([comparison for comparison in comparisons if comparison.slower], len(comparisons))
        )
    elif is_slow is not False:
        yield TooEarly(f"{len(comparisons)} of {WINDOWS} measurements of work in one pod in the last hour", gpu.subject)


def _windows(reading: DriverReading, run: DeepDiagnostic | None) -> Iterator[tuple[Snapshot, Snapshot]]:
    """Yield both ends of the windows since the last deep diagnostic, the newest first."""
    if not isinstance(reading.answer, Gpus):
        return
    current = (Snapshot(reading.read_at, reading.answer.gpus),) if is_due(reading) else ()
    snapshots = [*reading.history, *current]
    for before, now in reversed(list(pairwise(snapshots))):
        if run is not None and (before.at < run.since or run.covers(before.at)):
            return
        if now.at - before.at <= LONGEST_WINDOW_SECONDS:
            yield before, now


def _compare(
    windows: Iterable[tuple[Snapshot, Snapshot]], pods: Mapping[float, Mapping[str, str]], gpus: list[Gpu]
) -> dict[str, list[_Comparison]]:
    """Return the last windows in which each GPU was compared, the newest first."""
    comparisons: dict[str, list[_Comparison]] = {gpu.subject: [] for gpu in gpus}
    for before, now in windows:
        if all(_is_settled(entries) for entries in comparisons.values()):
            break
        is_asked = before.at in pods and now.at in pods
        held = _held(pods[before.at], pods[now.at]) if is_asked else dict.fromkeys(comparisons, "")
        for group in _groups(gpus, before, now, held):
            figures = [figures_of(work) for work in group]
            if not is_asked and not siblings.are_alike(figures):
                continue
            for work, slower in zip(group, siblings.slower(figures), strict=True):
                if slower is not None and len(comparisons[work.now.subject]) < WINDOWS:
                    other_work = tuple(sibling for sibling in group if sibling is not work)
                    comparisons[work.now.subject].append(_Comparison(now.at, work, other_work, slower))
    return comparisons


def _is_settled(comparisons: list[_Comparison]) -> bool:
    """Whether earlier windows cannot change the result: there are enough, or enough without an outlier."""
    return len(comparisons) == WINDOWS or sum(not comparison.slower for comparison in comparisons) > WINDOWS - OUTLIERS


def _held(first: Mapping[str, str], last: Mapping[str, str]) -> dict[str, str]:
    """Return the pod of each GPU that the same pod held at both ends of a window."""
    return {subject: pod for subject, pod in last.items() if first.get(subject) == pod}


def _groups(gpus: list[Gpu], before: Snapshot, now: Snapshot, pods: Mapping[str, str]) -> Iterator[list[Work]]:
    """Yield the busy GPUs of each pod and product that are enough for a comparison."""
    groups: dict[tuple[str, str], list[Work]] = {}
    first, last = ({(gpu.address, gpu.uuid): gpu for gpu in read.gpus if is_busy(gpu)} for read in (before, now))
    for gpu in gpus:
        key = gpu.address, gpu.uuid
        if gpu.subject in pods and key in first and key in last:
            work = Work(first[key], last[key], now.at - before.at)
            groups.setdefault((pods[gpu.subject], gpu.name), []).append(work)
    for group in groups.values():
        if len(group) >= LEAST_SIBLINGS:
            yield group


def figures_of(work: Work) -> Figures:
    before, now = work.before.load, work.now.load
    if before is None or now is None:
        return Figures()
    return Figures(
        _mean(before.mean_sm_mhz, now.mean_sm_mhz),
        _mean(before.mean_memory_mhz, now.mean_memory_mhz),
        _watts(work),
        _share(work, "software_power"),
        _hardware_slowdown(work),
    )


def _watts(work: Work) -> float | None:
    """Return the mean power of the window from the energy counter; without it, the power at both ends."""
    before, now = work.before.load, work.now.load
    if before is None or now is None:
        return None
    milliwatts = _rise(work, before.energy_millijoules, now.energy_millijoules)
    milliwatts = milliwatts or _mean(before.power_milliwatts, now.power_milliwatts)
    return None if milliwatts is None else milliwatts / 1000


def _hardware_slowdown(work: Work) -> float | None:
    shares = [_share(work, name) for name in ("hardware_thermal", "power_brake")]
    return max((share for share in shares if share is not None), default=None)


def _share(work: Work, reason: str) -> float | None:
    rise = _rise(work, getattr(work.before.throttled, reason, None), getattr(work.now.throttled, reason, None))
    return None if rise is None else min(rise / _NANOSECONDS, 1.0)


def _mean(before: float | None, now: float | None) -> float | None:
    """Return the mean of a value at both ends of the window; None if it is unknown at one."""
    return None if before is None or now is None else (before + now) / 2


def _rise(work: Work, before: int | None, now: int | None) -> float | None:
    """Return the rise of a counter in a second; None if it is unknown, or counts anew."""
    return None if before is None or now is None or now < before else (now - before) / work.seconds


def _detail(slow: list[_Comparison], windows: int) -> str:
    """Return the figures of the slow windows, in steps that rarely change, so that the record is rarely written."""
    name = slow[0].slower[0].name
    worst = [deviation for comparison in slow for deviation in comparison.slower if deviation.name == name]
    value, usual = (siblings.median([getattr(deviation, key) for deviation in worst]) for key in ("value", "median"))
    count = len(slow[0].siblings)
    if name == "hardware_slowdown":
        figures = (
            f"{_percent(value)} of the time in hardware thermal slowdown or power brake, the median of its {count} "
            f"siblings {_percent(usual)}"
        )
    else:
        clock = "memory clock" if name == "memory_mhz" else "SM clock"
        below = 5 * round(20 * (1 - value / usual))
        figures = (
            f"{clock} {_stepped(value, 15)} MHz, {below} % below the median of its {count} siblings "
            f"({_stepped(usual, 15)} MHz)"
        )
    explanations = list(_explain(slow[0]))
    return f"{figures}, in {len(slow)} of {windows} measurements{'; ' if explanations else ''}{', '.join(explanations)}"


def _explain(comparison: _Comparison) -> Iterator[str]:
    """Yield figures that may explain the difference, with the siblings' median; each only if it is worse."""
    for render, read, sign, least in _EXPLANATIONS:
        value = read(comparison.work)
        sibling_values = [
            sibling_value for sibling in comparison.siblings if (sibling_value := read(sibling)) is not None
        ]
        if value is None or len(sibling_values) < LEAST_SIBLINGS - 1:
            continue
        usual = siblings.median(sibling_values)
        if sign * (value - usual) > max(least, LEAST_DIFFERENCE * abs(usual)):
            yield render(value, usual)
    if _is_limited(comparison.work) and not any(map(_is_limited, comparison.siblings)):
        yield "a setting limits its clocks (nvidia-smi -q -d CLOCK)"


def _is_limited(work: Work) -> bool:
    return bool((work.now.clock_reasons or 0) & _LIMITED_BY_SETTING)


def _stepped(value: float, step: int) -> int:
    return step * round(value / step)


def _percent(share: float) -> str:
    return f"{5 * round(20 * share)} %"


def _margin(gpu: Gpu) -> int | None:
    return None if gpu.temperature is None else gpu.temperature.margin_celsius


def _time_in(reason: str) -> Callable[[Work], float | None]:
    return lambda work: _share(work, reason)


def _counter(read: Callable[[Gpu], int | None], scale: float) -> Callable[[Work], float | None]:
    def rate(work: Work) -> float | None:
        rise = _rise(work, read(work.before), read(work.now))
        return None if rise is None else rise * scale

    return rate


def _sum(gpu: Gpu, *names: str) -> int | None:
    counts = [getattr(gpu.load, name, None) for name in names]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


_EXPLANATIONS: tuple[tuple[Callable[[float, float], str], Callable[[Work], float | None], int, float], ...] = (
    (lambda value, usual: f"power {_stepped(value, 25)} W (siblings {_stepped(usual, 25)} W)", _watts, -1, 0.0),
    (
        lambda value, usual: f"software thermal slowdown {_percent(value)} of the time ({_percent(usual)})",
        _time_in("software_thermal"),
        1,
        LEAST_DIFFERENCE,
    ),
    (
        lambda value, usual: f"hardware thermal slowdown {_percent(value)} of the time ({_percent(usual)})",
        _time_in("hardware_thermal"),
        1,
        LEAST_DIFFERENCE,
    ),
    (
        lambda value, usual: f"power brake {_percent(value)} of the time ({_percent(usual)})",
        _time_in("power_brake"),
        1,
        LEAST_DIFFERENCE,
    ),
    (
        lambda value, usual: f"at its power limit {_percent(value)} of the time ({_percent(usual)})",
        _time_in("software_power"),
        1,
        LEAST_DIFFERENCE,
    ),
    (
        lambda value, usual: f"{_stepped(value, 5)} °C from its temperature limit ({_stepped(usual, 5)} °C)",
        lambda work: _mean(_margin(work.before), _margin(work.now)),
        -1,
        5.0,
    ),
    (
        lambda value, usual: f"PCIe replays {_stepped(value, 10)} a minute ({_stepped(usual, 10)})",
        _counter(lambda end: end.pcie_replays, 60),
        1,
        10.0,
    ),
    (
        lambda value, usual: f"corrected DRAM errors {_stepped(value, 100)} an hour ({_stepped(usual, 100)})",
        _counter(lambda end: end.memory_errors.dram_corrected if end.memory_errors is not None else None, 3600),
        1,
        100.0,
    ),
    (
        lambda value, usual: f"NVLink {_stepped(value, 10)} GB/s ({_stepped(usual, 10)} GB/s)",
        _counter(lambda end: _sum(end, "nvlink_sent_kib", "nvlink_received_kib"), 1024e-9),
        -1,
        10.0,
    ),
)

CHECK = Check("gpu-siblings", "0-nvidia-smi", (NVML, GPU_PODS), judge, (SLOWER,), causes=(NOT_COMPARED,))
NOW = replace(CHECK, judge=judge_now)
"""The same check by one measurement, for `check siblings --now`."""
