"""Check: no GPU is slower than the other GPUs that the same pod holds.

Two reads of the driver at least four minutes apart are a window. It is judged if the samples of the driver at both ends
show that the GPUs were busy, and if the kubelet names the same pod for them at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from healthcheck.checks import siblings
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.per_gpu import answering, found, same
from healthcheck.checks.siblings import LEAST_SIBLINGS, OUTLIERS, WINDOWS, Deviation, Figures
from healthcheck.model import (
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
    counted,
)
from healthcheck.model.node_facts import DeepDiagnostic
from healthcheck.probes.gpu_pods import GPU_PODS, GpuPods, is_busy, is_due
from healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu, Gpus, Samples, Snapshot

LONGEST_WINDOW_SECONDS = 1800.0
_LEAST_FAILURES = 6
"""Failed questions to the kubelet, without an answer in the last hour, from which the check can't judge."""
_NANOSECONDS = 1e9

SLOWER = Reason(
    "GpuSlowerThanSiblings",
    Severity.MONITOR,
    "A GPU is slower than the other GPUs of its pod, without an error. A job that uses them together waits for it.",
    "Quarantine the node: its tests measure each GPU. Check cooling, power supply and the GPU's power limit.",
    threshold=(
        f"more than {siblings.MOST_DEVIATIONS:g} standard deviations and {100 * siblings.LEAST_DIFFERENCE:g} % from "
        f"the median, in {OUTLIERS} of {WINDOWS} windows between check cycles, among {LEAST_SIBLINGS} or more busy "
        "GPUs of one pod"
    ),
    source="robust outliers as in Guard (arXiv 2605.17879) and Megatron-LM's straggler detection (PR 4662)",
)


class Window(Struct, frozen=True):
    """Two reads of the driver, with the pod of each GPU that was busy in both."""

    before: Snapshot
    now: Snapshot
    pods: Mapping[str, str]


class _Judged(Struct, frozen=True):
    """One GPU in one window with its siblings; `slower` is `()` if it was not slower."""

    window: Window
    siblings: tuple[Gpu, ...]
    slower: tuple[Deviation, ...]


def judge(seen: Evidence, expected: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(seen)
    whole = [gpu for gpu in gpus if not (gpu.mig_mode is not None and gpu.mig_mode.current) and not gpu.instances]
    if not gpus:
        return
    if len(whole) < LEAST_SIBLINGS:
        yield NotConfigured(f"fewer than {LEAST_SIBLINGS} GPUs without MIG")
        return
    run, reading, pods = expected.deep_run, seen[NVML], seen[GPU_PODS]
    if run is not None and run.until is None:
        yield TooEarly("a deep diagnostic uses the GPUs")
        return
    if len(pods) >= _LEAST_FAILURES and all(entry.error for entry in pods):
        yield Unobserved(PROBE_FAILED, f"the kubelet does not name the pods of the GPUs: {pods[-1].error}")
        return
    windows = list(_windows(reading, pods, run))
    judged = _judged(windows, whole)
    for gpu in whole:
        yield from _judge_gpu(gpu, judged[gpu.subject], reading)
    compared = sum(bool(entries) for entries in judged.values())
    expectation = f"none more than {100 * siblings.LEAST_DIFFERENCE:g} % slower in {OUTLIERS} of {WINDOWS} windows"
    yield Observation(f"{compared} of {counted(len(gpus), 'GPU')} compared with those of its pod", expectation)


def _judge_gpu(gpu: Gpu, judged: list[_Judged], reading: DriverReading) -> Iterator[Judgement]:
    """Judge a GPU by its last windows, the newest first.

    Only a window that has just ended shows a slow GPU, so that a release or a quarantine of an idle node holds.
    """
    is_slow = siblings.is_slow([bool(entry.slower) for entry in judged])
    newest = reading.read_at if is_due(reading) else reading.history[-1].at
    if is_slow and judged[0].window.now.at == newest:
        yield found(SLOWER, gpu, _detail(gpu, [entry for entry in judged if entry.slower], len(judged)))
    elif is_slow is not False:
        yield TooEarly(f"{len(judged)} of {WINDOWS} windows of work in one pod in the last hour", gpu.subject)


def _windows(reading: DriverReading, pods: Sequence[GpuPods], run: DeepDiagnostic | None) -> Iterator[Window]:
    """Yield the windows since the last deep diagnostic, the newest first."""
    if not isinstance(reading.answer, Gpus):
        return
    by_time = {entry.at: entry.pods for entry in pods}
    current = (Snapshot(reading.read_at, reading.answer.gpus),) if is_due(reading) else ()
    snapshots = [*reading.history, *current]
    for before, now in reversed(list(pairwise(snapshots))):
        if run is not None and (before.at < run.since or run.covers(before.at)):
            return
        first, last = by_time.get(before.at, {}), by_time.get(now.at, {})
        held = {subject: pod for subject, pod in last.items() if first.get(subject) == pod}
        if len(held) >= LEAST_SIBLINGS and now.at - before.at <= LONGEST_WINDOW_SECONDS:
            yield Window(before, now, held)


def _judged(windows: list[Window], gpus: list[Gpu]) -> dict[str, list[_Judged]]:
    """Return the last windows in which each GPU was compared, the newest first."""
    judged: dict[str, list[_Judged]] = {gpu.subject: [] for gpu in gpus}
    for window in windows:
        if all(len(entries) == WINDOWS for entries in judged.values()):
            break
        for group in _groups(window, gpus):
            deviations = siblings.slower([figures_of(gpu, window) for gpu in group])
            for gpu, slower in zip(group, deviations, strict=True):
                if slower is not None and len(judged[gpu.subject]) < WINDOWS:
                    others = tuple(other for other in group if other is not gpu)
                    judged[gpu.subject].append(_Judged(window, others, slower))
    return judged


def _groups(window: Window, gpus: list[Gpu]) -> Iterator[list[Gpu]]:
    """Yield the busy GPUs of each pod and product that are enough for a comparison."""
    groups: dict[tuple[str, str], list[Gpu]] = {}
    for gpu in gpus:
        ends = _ends(gpu, window)
        if gpu.subject in window.pods and ends is not None and all(is_busy(end) for end in ends):
            groups.setdefault((window.pods[gpu.subject], gpu.name), []).append(gpu)
    for group in groups.values():
        if len(group) >= LEAST_SIBLINGS:
            yield group


def _ends(gpu: Gpu, window: Window) -> tuple[Gpu, Gpu] | None:
    before, now = same(gpu, window.before.gpus), same(gpu, window.now.gpus)
    return None if before is None or now is None else (before, now)


def figures_of(gpu: Gpu, window: Window) -> Figures:
    return Figures(
        _between(gpu, window, lambda end: _clock(end, "sm_clock", "sm_mhz")),
        _between(gpu, window, lambda end: _clock(end, "memory_clock", "memory_mhz")),
        _watts(gpu, window),
        _share(gpu, window, "software_power"),
        _hardware_slowdown(gpu, window),
    )


def _clock(gpu: Gpu, buffer: str, current: str) -> float | None:
    """Return the mean of the driver's samples; without samples, the clock at the read."""
    samples: Samples | None = getattr(gpu.load, buffer, None)
    if samples is not None:
        return samples.mean
    mhz: int | None = getattr(gpu.load, current, None)
    return mhz


def _watts(gpu: Gpu, window: Window) -> float | None:
    """Return the mean power of the window from the energy counter; without it, the power at both ends."""
    millijoules = _rise(gpu, window, lambda end: end.load.energy_millijoules if end.load else None)
    if millijoules:
        return millijoules / 1000
    milliwatts = _between(gpu, window, lambda end: end.load.power_milliwatts if end.load else None)
    return None if milliwatts is None else milliwatts / 1000


def _hardware_slowdown(gpu: Gpu, window: Window) -> float | None:
    shares = [_share(gpu, window, name) for name in ("hardware_thermal", "power_brake")]
    return max((share for share in shares if share is not None), default=None)


def _share(gpu: Gpu, window: Window, reason: str) -> float | None:
    rise = _rise(gpu, window, lambda end: getattr(end.throttled, reason, None))
    return None if rise is None else min(rise / _NANOSECONDS, 1.0)


def _between(gpu: Gpu, window: Window, read: Callable[[Gpu], float | None]) -> float | None:
    """Return the mean of a value at both ends of the window; None if it is unknown at one."""
    ends = _ends(gpu, window)
    values = [read(end) for end in ends or ()]
    known = [value for value in values if value is not None]
    return sum(known) / 2 if len(known) == 2 else None


def _rise(gpu: Gpu, window: Window, read: Callable[[Gpu], float | None]) -> float | None:
    """Return the rise of a counter in a second; None if it is unknown, or counts anew."""
    ends = _ends(gpu, window)
    values = [read(end) for end in ends or ()]
    if len(values) != 2 or values[0] is None or values[1] is None or values[1] < values[0]:
        return None
    return (values[1] - values[0]) / (window.now.at - window.before.at)


def _detail(gpu: Gpu, slow: list[_Judged], windows: int) -> str:
    """Return the figures of the slow windows, in steps that rarely change, so that the record is rarely written."""
    name = slow[0].slower[0].name
    worst = [deviation for entry in slow for deviation in entry.slower if deviation.name == name]
    value, usual = (siblings.median([getattr(deviation, key) for deviation in worst]) for key in ("value", "median"))
    number = len(slow[0].siblings)
    if name == "hardware_slowdown":
        first = (
            f"in hardware thermal slowdown or power brake {_percent(value)} of the time, the median of its {number} "
            f"siblings {_percent(usual)}"
        )
    else:
        clock = "memory clock" if name == "memory_mhz" else "SM clock"
        below = 5 * round(20 * (1 - value / usual))
        first = (
            f"{clock} {_stepped(value, 15)} MHz, {below} % below the median of its {number} siblings "
            f"({_stepped(usual, 15)} MHz)"
        )
    explanations = list(_explain(gpu, slow[0]))
    return f"{first}, in {len(slow)} of {windows} windows{'; ' if explanations else ''}{', '.join(explanations)}"


def _explain(gpu: Gpu, judged: _Judged) -> Iterator[str]:
    """Yield figures that may explain the difference, with the siblings' median; each only if it is worse."""
    for text, read, sign, least in _EXPLANATIONS:
        value = read(gpu, judged.window)
        others = [other for sibling in judged.siblings if (other := read(sibling, judged.window)) is not None]
        if value is None or len(others) < LEAST_SIBLINGS - 1:
            continue
        usual = siblings.median(others)
        if sign * (value - usual) > max(least, siblings.LEAST_DIFFERENCE * abs(usual)):
            yield text(value, usual)


def _stepped(value: float, step: int) -> int:
    return step * round(value / step)


def _percent(share: float) -> str:
    return f"{5 * round(20 * share)} %"


def _time_in(reason: str) -> Callable[[Gpu, Window], float | None]:
    return lambda gpu, window: _share(gpu, window, reason)


def _counter(read: Callable[[Gpu], int | None], scale: float) -> Callable[[Gpu, Window], float | None]:
    def rate(gpu: Gpu, window: Window) -> float | None:
        rise = _rise(gpu, window, read)
        return None if rise is None else rise * scale

    return rate


def _sum(gpu: Gpu, *names: str) -> int | None:
    counts = [getattr(gpu.load, name, None) for name in names]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


_EXPLANATIONS: tuple[tuple[Callable[[float, float], str], Callable[[Gpu, Window], float | None], int, float], ...] = (
    (lambda value, usual: f"power {_stepped(value, 25)} W (siblings {_stepped(usual, 25)} W)", _watts, -1, 0.0),
    (
        lambda value, usual: f"software thermal slowdown {_percent(value)} of the time ({_percent(usual)})",
        _time_in("software_thermal"),
        1,
        siblings.LEAST_DIFFERENCE,
    ),
    (
        lambda value, usual: f"hardware thermal slowdown {_percent(value)} of the time ({_percent(usual)})",
        _time_in("hardware_thermal"),
        1,
        siblings.LEAST_DIFFERENCE,
    ),
    (
        lambda value, usual: f"power brake {_percent(value)} of the time ({_percent(usual)})",
        _time_in("power_brake"),
        1,
        siblings.LEAST_DIFFERENCE,
    ),
    (
        lambda value, usual: f"at its power limit {_percent(value)} of the time ({_percent(usual)})",
        _time_in("software_power"),
        1,
        siblings.LEAST_DIFFERENCE,
    ),
    (
        lambda value, usual: f"{_stepped(value, 5)} °C from its temperature limit ({_stepped(usual, 5)} °C)",
        lambda gpu, window: _between(
            gpu, window, lambda end: end.temperature.margin_celsius if end.temperature is not None else None
        ),
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

CHECK = Check("gpu-siblings", "0-nvidia-smi", (NVML, GPU_PODS), judge, (SLOWER,))
