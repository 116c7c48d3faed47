"""Any order of faults, looks, restarts, resets, reboots and releases: nothing leaves but by its written exit."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_cycle
from gpu_healthcheck.healthcheck.memory.exits import REMAP_XIDS, after_release, begin, expired, gpus_answered, recovered
from gpu_healthcheck.healthcheck.memory.file import MemoryFile
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, ActiveFinding, Memory, Release, gpu_address
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import (
    Finding,
    KernelEvent,
    Nature,
    Now,
    Outcome,
    Severity,
    Threshold,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.node.state import RESULTS, NodeState
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu, RowRemap
from gpu_healthcheck.healthcheck.verdict.acknowledgement import dump_release, parse_release, release_of
from gpu_healthcheck.healthcheck.verdict.record import LONGEST, AgentRecord, dump, load, parse, remembered, render
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import IDENTITY, MACHINE, MONOTONIC, WALL

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/record.schema.json").read_text())
ADDRESSES = ("0000:53:00.0", "0000:64:00.0", "0000:75:00.0")
FAULTS = [Severity.MONITOR, Severity.RESET, Severity.REBOOT, Severity.ISOLATE]


class World(Struct, frozen=True):
    """A memory, the moment, and the next record's number."""

    memory: Memory
    now: Now
    seq: int = 0
    boot: int = 0


Step = Callable[[World], World]


def start() -> World:
    return World(Memory(MACHINE, "boot 0"), Now(WALL, MONOTONIC))


def _event(
    reason: str,
    severity: Severity | None,
    address: str,
    instance: str,
    text: str,
    process: str,
    threshold: Threshold | None = None,
) -> Step:
    def step(world: World) -> World:
        subject = f"gpu/{address}{instance}"
        finding = Finding(reason, severity, subject, text, seq=world.seq, at=world.now.monotonic) if severity else None
        place = "GPC 0, TPC 1" if reason == "Xid13" else ""
        line = KernelEvent(reason, subject, world.seq, world.now.monotonic, finding, process=process, place=place)
        line = replace(line, threshold=threshold)
        outcome = Outcome("xid", "0-nvidia-smi", events=(line,))
        return replace(world, memory=after_kernel_log(world.memory, [outcome], world.now, 2), seq=world.seq + 1)

    return step


def _look(found: frozenset[tuple[str, str]], blind: bool) -> Step:
    def step(world: World) -> World:
        findings = tuple(Finding(reason, Severity.REBOOT, f"gpu/{address}", "x") for reason, address in sorted(found))
        causes = (Unobserved(UnobservedCause.named("DriverNotLoaded"), "x"),) if blind else ()
        outcome = Outcome("gpu-count", "0-nvidia-smi", findings=() if blind else findings, unobserved=causes)
        return replace(
            world,
            memory=after_cycle(
                world.memory, JudgedCycle([outcome]), world.now, MemoryRules(escalate_after=2, cycles_to_confirm=1)
            ),
        )

    return step


def _meet(address: str, serial: str, action: int | None, error: int, remap: RowRemap | None = None) -> Step:
    def step(world: World) -> World:
        gpu = Gpu(0, error, address, f"GPU-{serial}", serial, recovery_action=action, row_remap=remap)
        return replace(world, memory=gpus_answered(world.memory, [gpu], world.now.monotonic, world.now))

    return step


def _reset(address: str) -> Step:
    return lambda world: replace(world, memory=recovered(world.memory, address, world.now.monotonic, world.now))


def _reboot(world: World) -> World:
    now = Now(world.now.wall + timedelta(seconds=90), 5.0)
    memory = begin(world.memory, MACHINE, f"boot {world.boot + 1}", now)
    return World(memory, now, 0, world.boot + 1)


def _restart(world: World) -> World:
    return replace(world, memory=begin(world.memory, MACHINE, world.memory.boot_id, world.now))


def _wait(seconds: float, jump: float) -> Step:
    def step(world: World) -> World:
        wall = world.now.wall + timedelta(seconds=seconds + jump)
        return replace(world, now=Now(wall, world.now.monotonic + seconds))

    return step


def _expire(world: World) -> World:
    return replace(world, memory=expired(world.memory, world.now, 86400))


def _release(world: World) -> World:
    """Release the findings of the present record."""
    memory = replace(world.memory, cursor=world.seq - 1 if world.seq else None)
    record = render(decide(memory, ()), memory, IDENTITY, world.now.wall)
    node = NodeState("n", annotations={RESULTS: dump(record)})
    word = parse_release(dump_release(release_of(node, "ann", "seen to", world.now.wall)))
    return replace(world, memory=after_release(world.memory, word, world.now))


addresses = st.sampled_from(ADDRESSES)
reasons = st.sampled_from(["Xid13", "Xid31", "Xid45", "Xid64", "Xid79", "Xid95", "Xid154", "Xid54"])
texts = st.text(max_size=300)
events = st.builds(
    _event,
    reasons,
    st.sampled_from([*FAULTS, None]),
    addresses,
    st.sampled_from(["", "", "/gi5"]),
    texts,
    st.sampled_from(["", "1 a", "2 b", "3 c"]),
    st.sampled_from([None, None, Threshold(Severity.RESET, 2, 600), Threshold(Severity.ISOLATE, 3, 86400)]),
)
levels = st.sampled_from(["GpuLost", "RowRemapPending"])
looks = st.builds(_look, st.frozensets(st.tuples(levels, addresses), max_size=3), st.booleans())
remaps = st.none() | st.builds(RowRemap, st.just(0), st.integers(0, 1), pending=st.booleans(), failed=st.booleans())
meetings = st.builds(
    _meet, addresses, st.sampled_from(["1", "2"]), st.sampled_from([None, 0, 1, 2]), st.just(0), remaps
)
waits = st.builds(_wait, st.floats(0, 2e5), st.sampled_from([0.0, 0.0, 3600.0, -3600.0]))
EVERY = st.one_of(
    events, events, looks, meetings, waits, st.builds(_reset, addresses), *map(st.just, (_reboot, _restart, _expire))
)
histories = st.lists(EVERY, max_size=25)


def lived(steps: list[Step]) -> World:
    world = start()
    for step in steps:
        world = step(world)
    return world


def severities(memory: Memory) -> dict[tuple[str, str], Severity]:
    return {finding.key: finding.finding.severity for finding in memory.active}


def gone(before: Memory, after: Memory) -> list[ActiveFinding]:
    left = severities(after)
    return [finding for finding in before.active if left.get(finding.key, Severity.PASS) < finding.finding.severity]


@pytest.mark.parametrize(
    ("step", "may_leave"),
    [
        (_restart, lambda _: False),
        (_expire, lambda entry: entry.finding.severity is Severity.MONITOR and entry.nature is Nature.EVENT),
        (_reboot, lambda entry: entry.finding.severity < Severity.ISOLATE and entry.nature is Nature.EVENT),
        (_look(frozenset(), blind=False), lambda entry: entry.nature is Nature.LEVEL),
        (_look(frozenset(), blind=True), lambda _: False),
        (_release, lambda entry: entry.nature is Nature.EVENT),
        (
            _reset(ADDRESSES[0]),
            lambda entry: (
                gpu_address(entry.finding.subject) == ADDRESSES[0]
                and entry.nature is Nature.EVENT
                and (entry.finding.severity is Severity.RESET or entry.finding.reason == "Xid154")
            ),
        ),
        (
            _event("Xid79", Severity.REBOOT, ADDRESSES[0], "", "x", ""),
            lambda entry: entry.finding.reason == "Xid45" and entry.finding.severity is Severity.MONITOR,
        ),
        (_wait(1e9, -3600.0), lambda _: False),
    ],
    ids=["restart", "expire", "reboot", "look", "blind look", "release", "reset", "event", "wait"],
)
@given(steps=histories)
def test_a_severity_falls_by_a_written_exit_alone(
    step: Step, may_leave: Callable[[ActiveFinding], bool], steps: list[Step]
) -> None:
    before = lived(steps)

    after = step(before)

    assert [finding.key for finding in gone(before.memory, after.memory) if not may_leave(finding)] == []


@given(steps=histories)
def test_cleared_row_wait_ends_only_the_logs_findings_about_it(steps: list[Step]) -> None:
    world = lived(steps)
    rows = {finding.key: finding for finding in world.memory.active if finding.finding.reason in REMAP_XIDS}
    waited = any(finding.key == ("RowRemapPending", f"gpu/{ADDRESSES[0]}") for finding in world.memory.active)

    memory, whole = (
        _meet(ADDRESSES[0], "1", None, 0, remap)(world).memory
        for remap in (None, RowRemap(0, 1, pending=False, failed=False))
    )

    left = {finding.key for finding in gone(memory, whole)}
    assert left <= {
        key
        for key, finding in rows.items()
        if waited and finding.finding.severity is Severity.RESET and gpu_address(key[1]) == ADDRESSES[0]
    }
    assert whole.gpus == memory.gpus


@given(steps=histories)
def test_everything_that_must_leave_leaves(steps: list[Step]) -> None:
    world = lived(steps)

    assert all(finding.nature is Nature.LEVEL for finding in _release(world).memory.active)
    rebooted = _reboot(world).memory.active
    assert all(finding.nature is Nature.LEVEL or finding.finding.severity is Severity.ISOLATE for finding in rebooted)


@given(lines=st.lists(st.tuples(events, waits), max_size=20), cuts=st.sets(st.integers(0, 20)))
def test_reading_in_parts_is_reading_at_once(lines: list[tuple[Step, Step]], cuts: set[int]) -> None:
    """A restart between any two records, with the memory kept, changes nothing."""
    whole, parts = start(), start()
    for number, (event, wait) in enumerate(lines):
        whole, parts = wait(event(whole)), wait(event(parts))
        if number in cuts:
            parts = _restart(parts)

    assert parts.memory == whole.memory


@given(steps=histories)
def test_a_release_holds_when_the_whole_log_is_read_again(steps: list[Step]) -> None:
    world = lived([*steps, _reboot])
    lines = [_event("Xid79", Severity.REBOOT, ADDRESSES[0], "", "x", ""), _event("Xid95", Severity.RESET, *("x",) * 4)]
    for line in lines:
        world = line(world)
    released = _release(world)

    again = replace(released, seq=0)
    for line in lines:
        again = line(again)

    assert severities(again.memory) == severities(released.memory)


@settings(max_examples=60)
@given(steps=histories)
def test_file_returns_what_was_written(tmp_path_factory: pytest.TempPathFactory, steps: list[Step]) -> None:
    memory = lived(steps).memory
    file = MemoryFile(tmp_path_factory.mktemp("state"))
    file.acquire()
    file.write(memory)

    read = file.read()
    file.unlock()

    assert read
    assert [(finding.key, finding.finding, finding.count, finding.boot_id) for finding in read.active] == [
        (finding.key, _as_recorded(finding.finding), finding.count, finding.boot_id) for finding in memory.active
    ]
    assert {key: len(ends) for key, ends in read.ended.items()} == {key: len(e) for key, e in memory.ended.items()}
    assert (read.gpus, read.recovery, read.last_xid) == (memory.gpus, memory.recovery, memory.last_xid)
    assert (read.boot_id, read.cursor, len(read.acknowledged)) == (memory.boot_id, memory.cursor, 0)


def _as_recorded(finding: Finding) -> Finding:
    """Where a finding was read and whether it flickers is of no use to the next process."""
    return replace(finding, seq=-1, at=None, flickers=False, about=dict(finding.about))


many = st.lists(
    st.builds(
        Finding,
        st.from_regex(r"\A[A-Z][A-Za-z0-9]{1,60}\Z"),
        st.sampled_from(FAULTS),
        st.from_regex(r"\Agpu/[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0\Z"),
        st.text(max_size=400),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(findings=many, times=st.integers(1, 40), acknowledged=st.integers(0, 500))
def test_a_record_always_fits_is_one_and_tells_the_worst(
    findings: list[Finding], times: int, acknowledged: int
) -> None:
    standing = tuple(
        ActiveFinding(
            replace(finding, subject=f"{finding.subject}/gi{number}"), "xid", Nature.EVENT, WALL, WALL, 1, "b", 1.0, 5
        )
        for number in range(times)
        for finding in findings
    )
    row = Acknowledgement("Xid79", "gpu/0000:53:00.0", "b", 1, WALL)
    memory = Memory(MACHINE, "b", 7, active=tuple(sorted(standing, key=lambda finding: -finding.finding.severity)))
    memory = replace(memory, acknowledged=(row,) * acknowledged, released=Release("a" * 999, "b" * 999, WALL, ()))

    record = render(decide(memory, ()), memory, IDENTITY, WALL)

    text = dump(record)
    assert len(text.encode()) <= LONGEST
    jsonschema.validate(load(text), SCHEMA)
    severities = [finding.severity for finding in record.findings or ()]
    assert severities[:1] == [finding.finding.severity for finding in memory.active[:1]]
    assert len(severities) + ((record.cut.findings or 0) if record.cut else 0) == len(memory.active)
    assert len(remembered(parse(AgentRecord, text)).active) == len(severities)
