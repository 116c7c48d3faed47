"""Thresholds of `severity-overrides`: processes with one code on one GPU, counted in kernel time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.policy import OVERRIDDEN, Policy, parse_overrides, parse_thresholds
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.sxid import CHECK as SXID
from gpu_healthcheck.healthcheck.checks.xid import CHECK as XID
from gpu_healthcheck.healthcheck.memory.content import dump, parse
from gpu_healthcheck.healthcheck.memory.exits import after_release, begin, recovered
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, CountedProcess, Memory, ProcessHit, Release
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.memory.rows import finding_row
from gpu_healthcheck.healthcheck.memory.severity_changes import in_force
from gpu_healthcheck.healthcheck.model import Evidence, Nature, Severity, Status
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import BOOT, GPU, MACHINE, MONOTONIC, WALL, later, memory_with, outcome_with

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity
OTHER = "gpu/0000:64:00.0"
Line = tuple[float, str]
"""Seconds after the start, and the text of the record."""


def policy(text: str) -> Policy:
    return Policy(parse_overrides(text), thresholds=parse_thresholds(text))


RULE = policy("xid 43 = RESET after 3 in 10m")


def xid(code: int, process: str = "", gpu: str = GPU, instance: str = "", text: str = "Reset Channel 00000008") -> str:
    pid, _, name = process.partition(" ")
    who = f"pid={pid}, name={name}" if process else "pid='<unknown>', name=<unknown>"
    return f"NVRM: Xid (PCI:{gpu.removeprefix('gpu/')[:-2]}{instance}): {code}, {who}, {text}"


def logged(lines: Iterable[Line], by: Policy = RULE, memory: Memory | None = None, first: int = 0) -> Memory:
    records = tuple(Record(first + number, MONOTONIC + at, 0, text) for number, (at, text) in enumerate(lines))
    outcomes = judge((XID, SXID), Evidence({RING: records}), Expectation(policy=by))
    return after_kernel_log(memory or memory_with(), outcomes, later(records[-1].at - MONOTONIC), 2)


def severities(memory: Memory) -> dict[str, Severity]:
    return {f"{active.finding.reason} {active.finding.subject}": active.finding.severity for active in memory.active}


def processes(*times: float, code: int = 43) -> list[Line]:
    """One line of another process at each time."""
    return [(at, xid(code, f"{number} python")) for number, at in enumerate(times, 100)]


def crash(pid: int | str, *names: str, code: int = 43, begin: float = 0.0) -> list[Line]:
    """One line of each of the process's threads."""
    return [(begin + number, xid(code, f"{pid} {name}")) for number, name in enumerate(names)]


WORKERS = ("worker-1", "worker-2", "worker-3")
CHOSEN = (
    "x, pid=1",
    "901 y",
    "', pid=902",
    "a\nb, pid=903",
    "\xe9\u200b\udcff",
    "NVRM: Xid (PCI",
    "",
    "<unknown>",
    "z, Ch 0000",
)
SXID_LINE = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Non-fatal, Link 30 LTSSM Fault Up"
STORM = [(number / 100, xid(43, "7 python")) for number in range(11_760)]


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        ("xid 43 = RESET after 3 in 10m", processes(0, 1), {f"Xid43 {GPU}": PASS}),
        ("xid 43 = RESET after 3 in 10m", processes(0, 1, 2), {f"Xid43 {GPU}": RESET}),
        ("xid 43 = RESET after 3 in 10m", processes(0, 300, 600), {f"Xid43 {GPU}": RESET}),
        ("xid 43 = RESET after 3 in 10m", processes(0, 300, 601), {f"Xid43 {GPU}": PASS}),
        ("xid 43 = RESET after 3 in 10m", processes(0, 601, 602, 1200), {f"Xid43 {GPU}": RESET}),
        ("xid 43 = RESET after 3 in 10m", STORM, {f"Xid43 {GPU}": PASS}),
        (
            "xid 43 = RESET after 3 in 10m",
            [(0, xid(43, "1 a")), (1, xid(43, "1 a", OTHER)), (2, xid(43, "2 a")), (3, xid(43, "3 a", OTHER))],
            {f"Xid43 {GPU}": PASS, f"Xid43 {OTHER}": PASS},
        ),
        # Each thread has a name of its own: only the pid tells processes apart.
        ("xid 43 = RESET after 2 in 10m", [(0, xid(43, "1 a")), (1, xid(43, "1 b"))], {f"Xid43 {GPU}": PASS}),
        ("xid 43 = RESET after 2 in 10m", [(0, xid(43, "1 a")), (1, xid(43, "2 a"))], {f"Xid43 {GPU}": RESET}),
        ("xid 43 = RESET after 3 in 10m", crash(900, *WORKERS), {f"Xid43 {GPU}": PASS}),
        ("xid 43 = RESET after 3 in 10m", crash(900, *CHOSEN), {f"Xid43 {GPU}": PASS}),
        ("xid 43 = RESET after 3 in 10m", crash("'<unknown>'", *CHOSEN), {f"Xid43 {GPU}": PASS}),
        ("xid 31 = RESET after 3 in 10m", crash(900, *WORKERS, code=31), {f"Xid31 {GPU}": MONITOR}),
        (
            "xid 43 = RESET after 3 in 10m",
            [*crash(900, *WORKERS), *crash(901, *WORKERS, begin=60)],
            {f"Xid43 {GPU}": PASS},
        ),
        (
            "xid 43 = RESET after 3 in 24h",
            [*crash(900, *WORKERS), *crash(901, *WORKERS, begin=36_000), *crash(902, *WORKERS, begin=80_000)],
            {f"Xid43 {GPU}": RESET},
        ),
        ("xid 43 = PASS", processes(0, 1, 2), {f"Xid43 {GPU}": PASS}),
        ("xid 31 = RESET after 3 in 10m", processes(0, 1, code=31), {f"Xid31 {GPU}": MONITOR}),
        (
            "xid 31 = RESET after 3 in 10m",
            processes(0, 1, 2, code=31),
            {f"Xid31 {GPU}": RESET, f"Xid31Repeated {GPU}": MONITOR},
        ),
        (
            "xid 31 = PASS\nxid 31 = RESET after 3 in 10m",
            processes(0, 1, code=31),
            {f"Xid31 {GPU}": PASS},
        ),
        (
            "xid 31 = PASS\nxid 31 = ISOLATE after 3 in 10m",
            processes(0, 1, 2, code=31),
            {f"Xid31 {GPU}": ISOLATE, f"Xid31Repeated {GPU}": MONITOR},
        ),
        ("xid 62 = MONITOR after 2 in 10m", processes(0, 1, 2, code=62), {f"Xid62 {GPU}": RESET}),
        ("xid 62 = PASS\nxid 62 = MONITOR after 2 in 10m", processes(0, 1, code=62), {f"Xid62 {GPU}": MONITOR}),
        # An instance of a GPU is what a process of MIG has of it.
        (
            "xid 43 = RESET after 2 in 10m",
            [(0, xid(43, "1 a", instance=" GPU-I:03")), (1, xid(43, "2 a", instance=" GPU-I:05"))],
            {f"Xid43 {GPU}/gi3": PASS, f"Xid43 {GPU}/gi5": PASS},
        ),
        # Lines without a process: one, until the log pauses for a minute.
        ("xid 43 = RESET after 2 in 10m", [(at, xid(43)) for at in range(0, 1000, 50)], {f"Xid43 {GPU}": PASS}),
        ("xid 43 = RESET after 2 in 10m", [(0, xid(43)), (61, xid(43))], {f"Xid43 {GPU}": RESET}),
        ("xid 43 = RESET after 2 in 10m", [(0, xid(43)), (1, xid(43, "1 a"))], {f"Xid43 {GPU}": PASS}),
        ("xid 43 = RESET after 2 in 10m", [(0, xid(43, "1 a")), (1, xid(43))], {f"Xid43 {GPU}": PASS}),
        (
            "xid 43 = RESET after 3 in 10m",
            [(0, xid(43, "1 a")), (1, xid(43)), (2, xid(43, "2 a")), (3, xid(43)), (4, xid(43, "1 a"))],
            {f"Xid43 {GPU}": PASS},
        ),
        (
            "sxid 20034 = REBOOT after 2 in 1h",
            [(0, SXID_LINE), (9, SXID_LINE)],
            {"SXid20034 nvswitch/0000:05:00.0": MONITOR},
        ),
        (
            "sxid 20034 = REBOOT after 2 in 1h",
            [(0, SXID_LINE), (90, SXID_LINE)],
            {"SXid20034 nvswitch/0000:05:00.0": REBOOT},
        ),
    ],
)
def test_processes_are_counted_not_lines(text: str, lines: list[Line], expected: dict[str, Severity]) -> None:
    whole = logged(lines, policy(text))
    parts, number = memory_with(), 0
    for number, line in enumerate(lines[:200]):
        parts = parse(dump(logged([line], policy(text), parts, number)))

    assert severities(whole) == expected
    assert number == 199 or severities(parts) == expected
    assert severities(in_force(whole, policy(text))) == expected
    assert severities(in_force(parse(dump(whole)), policy(text))) == expected


def test_a_cleanup_of_another_xid_counts_nothing() -> None:
    lines = [(0.0, xid(62)), *processes(1, 2, 3, code=45)]

    assert severities(logged(lines, policy("xid 45 = ISOLATE after 2 in 10m"))) == {f"Xid62 {GPU}": RESET}


def test_below_the_threshold_an_ignored_code_is_no_finding() -> None:
    verdict = decide(logged(processes(0, 1)), [outcome_with()])

    assert (verdict.status, verdict.active) == (Status.PASS, ())


def test_at_the_threshold_it_is_an_event_with_its_rule_until_the_gpu_is_reset() -> None:
    memory = logged(processes(0, 1, 2))
    (active,) = memory.active

    assert (active.nature, active.finding.rule) == (Nature.EVENT, f"{OVERRIDDEN}: after 3 in 600s")
    assert (active.finding.catalogued, active.finding.catalogued_rule) == (PASS, "xid.csv:43")
    assert "reset of the GPU" in (finding_row(active).exit or "")
    assert finding_row(active).processes is None
    assert recovered(memory, GPU.removeprefix("gpu/"), MONOTONIC + 5, later(5)).active == ()


@pytest.mark.parametrize(
    ("changed", "severity"),
    [
        ("", PASS),
        ("xid 43 = MONITOR", MONITOR),
        ("xid 43 = REBOOT after 3 in 10m", REBOOT),
        ("xid 43 = RESET after 2 in 10m", RESET),
        ("xid 43 = RESET after 3 in 1h", RESET),
        ("xid 43 = RESET after 4 in 10m", PASS),
        ("xid 43 = RESET after 3 in 9m", PASS),
    ],
)
def test_a_changed_threshold_reaches_the_finding_in_both_directions(changed: str, severity: Severity) -> None:
    before = logged(processes(0, 1, 600))
    after = in_force(parse(dump(before)), policy(changed))

    assert severities(after) == {f"Xid43 {GPU}": severity}
    assert severities(in_force(parse(dump(after)), RULE)) == {f"Xid43 {GPU}": RESET}


def test_a_new_threshold_counts_the_processes_of_an_active_finding() -> None:
    memory = logged(processes(0, 1, code=31), Policy())

    assert severities(in_force(memory, policy("xid 31 = RESET after 3 in 10m"))) == {f"Xid31 {GPU}": MONITOR}
    assert severities(in_force(memory, policy("xid 31 = RESET after 2 in 10m"))) == {f"Xid31 {GPU}": RESET}


def test_a_reached_threshold_stays_reached_without_the_processes_that_reached_it() -> None:
    memory = logged(processes(0, 1, 2, *range(3600, 3600 * 20, 3600)))
    on_the_node = replace(memory, active=tuple(finding_row(one).active_finding(BOOT) for one in memory.active))

    assert [len(active.processes) for active in memory.active] == [16]
    for known in (memory, on_the_node):
        assert severities(in_force(known, RULE)) == {f"Xid43 {GPU}": RESET}
        assert severities(in_force(known, policy("xid 43 = REBOOT after 2 in 10m"))) == {f"Xid43 {GPU}": REBOOT}
        assert severities(in_force(known, policy("xid 43 = REBOOT after 4 in 10m"))) == {f"Xid43 {GPU}": PASS}


@pytest.mark.parametrize(("code", "own"), [(43, PASS), (31, MONITOR)])
def test_a_reset_of_the_gpu_begins_the_count_anew(code: int, own: Severity) -> None:
    rule = policy(f"xid {code} = RESET after 3 in 10m")
    memory = recovered(logged(processes(0, 1, code=code), rule), GPU.removeprefix("gpu/"), MONOTONIC + 5, later(5))

    after = logged([(6, xid(code, "1 a")), (7, xid(code, "2 a"))], rule, memory, 10)

    assert severities(after)[f"Xid{code} {GPU}"] is own
    assert severities(logged([(8, xid(code, "3 a"))], rule, after, 20))[f"Xid{code} {GPU}"] is RESET


def test_a_release_begins_the_count_anew_and_read_again_its_lines_count_nothing() -> None:
    lines = processes(0, 1, 2)
    row = Acknowledgement("Xid43", GPU, BOOT, 2, later(2).wall)
    memory = after_release(logged(lines), Release("ann", "seen to", later(3).wall, (row,)), later(3))

    again = logged(lines, RULE, memory)
    after = logged([(4, xid(43, "8 a")), (5, xid(43, "9 a"))], RULE, again, 3)

    assert (memory.active, again.active) == ((), ())
    assert severities(after) == {f"Xid43 {GPU}": PASS}


def test_a_reboot_ends_the_count_and_an_isolated_gpu_counts_anew() -> None:
    isolates = policy("xid 43 = ISOLATE after 3 in 10m")
    assert begin(logged(processes(0, 1)), MACHINE, "boot-2", later(90)).active == ()

    memory = begin(logged(processes(0, 1, 2), isolates), MACHINE, "boot-2", later(90))
    memory = logged([(-40_000, xid(43, "1 a"))], isolates, memory)

    assert severities(memory) == {f"Xid43 {GPU}": ISOLATE}
    assert [len(active.processes) for active in memory.active] == [1]
    assert severities(in_force(memory, isolates)) == {f"Xid43 {GPU}": ISOLATE}


def test_an_announced_action_is_never_made_milder() -> None:
    reboots = (3.0, xid(154, text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"))
    memory = logged([*processes(0, 1, 2, code=31), reboots], policy("xid 31 = RESET after 3 in 10m"))

    assert severities(memory)[f"Xid31 {GPU}"] is REBOOT
    assert severities(in_force(memory, policy("xid 31 = RESET after 3 in 10m")))[f"Xid31 {GPU}"] is REBOOT


def test_tenant_with_many_processes_uses_no_memory() -> None:
    lines = [(number / 10, xid(43, f"{number} {'x' * 15}")) for number in range(5000)]

    memory = logged(lines)

    assert [len(active.processes) for active in memory.active] == [16]
    assert len(dump(memory)) < 2000
    assert memory.active[0].first_seen == WALL


def test_a_pid_that_is_used_again_is_another_process_if_its_start_is_known() -> None:
    def judged(lines: Iterable[tuple[float, float | None]], rule: str, code: int = 43) -> Memory:
        memory = memory_with()
        for number, (at, age) in enumerate(lines):
            seen = Expectation(policy=policy(rule), ages={} if age is None else {"900": age})
            record = Record(number, MONOTONIC + at, 0, xid(code, f"900 {number}"))
            memory = after_kernel_log(memory, judge((XID,), Evidence({RING: (record,)}), seen), later(at))
            memory = parse(dump(memory))
        return memory

    def counts(*lines: tuple[float, float | None]) -> bool:
        reached = f"Xid31Repeated {GPU}" in severities(judged(lines, "", 31))
        assert severities(judged(lines, "xid 43 = RESET after 3 in 24h")) == {
            f"Xid43 {GPU}": RESET if reached else PASS
        }
        return reached

    assert counts((0, 50), (4000, 60), (8000, 70))
    assert not counts((0, 50), (4000, 4050), (8000, 8050))
    assert not counts((0, 50), (4000, 60), (8000, 4060))
    # The process has ended before its line was judged: in doubt, the same pid is one process.
    assert not counts((0, None), (4000, None), (8000, None))
    assert not counts((0, None), (4000, 60), (8000, None))
    assert counts((0, None), (4000, 60), (4000.1, None), (8000, 70), (8000.1, None))
    # A process can't be younger than its last line by more than the clocks differ.
    assert not counts((0, 50), (5, 1), (10, 2))


def test_a_memory_of_an_earlier_version_has_each_process_once() -> None:
    def earlier(*names: str) -> Memory:
        memory = logged(crash(900, "worker-1"))
        counted = tuple(CountedProcess(name, MONOTONIC + at) for at, name in enumerate(names))
        standing = tuple(replace(active, processes=counted) for active in memory.active)
        hits = {
            ("Xid31", GPU.removeprefix("gpu/")): tuple(ProcessHit(one.process, "", one.at, WALL) for one in counted)
        }
        return parse(dump(replace(memory, active=standing, hits=hits)))

    threads = earlier("900 worker-1", "900 worker-2")
    others = earlier("900 worker-1", "901 worker-1")

    for line, counts in ((crash(900, "c"), False), (crash(901, "c"), False), (crash(902, "c"), True)):
        assert severities(logged(line, RULE, threads, 9)) == {f"Xid43 {GPU}": PASS}
        assert severities(logged(line, RULE, others, 9)) == {f"Xid43 {GPU}": RESET if counts else PASS}
    for line, counts in ((crash(900, "c", code=31), False), (crash(902, "c", code=31), True)):
        assert f"Xid31Repeated {GPU}" not in severities(logged(line, RULE, threads, 9))
        assert (f"Xid31Repeated {GPU}" in severities(logged(line, RULE, others, 9))) is counts


def test_an_earlier_version_counts_a_process_of_this_one_once() -> None:
    """It compares pid and name, so both are stored."""
    memory = logged([*crash(900, "python"), *crash(900, "python", code=31)])

    assert [one.process for active in memory.active for one in active.processes] == ["900 python"] * 2
    assert [hit.process for hits in memory.hits.values() for hit in hits] == ["900 python"]


THREADS = st.text(st.characters(exclude_categories=["Cs"]), max_size=15)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([13, 31, 43, 45, 62]), st.sampled_from([None, 900, 901, 902]), st.integers(0, 90), THREADS
    ),
    max_size=12,
)


@given(EVENTS, st.lists(THREADS, min_size=12, max_size=12))
def test_renamed_threads_change_no_verdict(events: list[tuple[int, int | None, int, str]], names: list[str]) -> None:
    def verdict(threads: Iterable[str]) -> dict[str, tuple[Severity, int, str]]:
        at, lines = 0, []
        for (code, pid, pause, _), name in zip(events, threads, strict=False):
            at += pause
            text = "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): x" if code == 13 else "channel 0x0000000a"
            lines.append((float(at), xid(code, "" if pid is None else f"{pid} {name}", text=text)))
        rules = policy("xid 43 = RESET after 3 in 10m\nxid 31 = RESET after 2 in 10m\nxid 45 = REBOOT after 3 in 10m")
        return {
            f"{active.finding.reason} {active.finding.subject}": (
                active.finding.severity,
                active.count,
                active.finding.rule,
            )
            for active in (logged(lines, rules).active if lines else ())
        }

    assert verdict(names) == verdict(name for *_, name in events) == verdict(["python"] * len(events))
