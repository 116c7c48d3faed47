"""THE LIST of fuzzed functions. Each target is a function and its strategies; it raises if a property is broken."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import CHECKS, KERNEL_LINES
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.content import SCHEMA
from gpu_healthcheck.healthcheck.memory.content import dump as dump_memory
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, after_cycle
from gpu_healthcheck.healthcheck.memory.exits import begin
from gpu_healthcheck.healthcheck.memory.file import MemoryFile, MemoryFileError
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import Evidence, Nature, Now, Outcome
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, KernelLog, Record, RecordBatch, parse_record
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu
from gpu_healthcheck.healthcheck.verdict.record import LONGEST, dump, render
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.checks.any_facts import any_facts_are_judged, evidence, expectations
from tests.checks.evidence import untimed
from tests.checks.grammar import fault_lines, quoted_lines
from tests.examples import IDENTITY, MACHINE, MONOTONIC, NOW, WALL, fault, kernel_event, later, outcome_with
from tests.fuzz import archives, captures, container_runtime, hardware, texts
from tests.fuzz.damage import byte_damages, damaged, forge, json_values, places
from tests.memory import test_properties as properties
from tests.verdict import test_any_annotation as any_annotation

EVENT_CHECKS = tuple(check for check in CHECKS if check.nature is Nature.EVENT)


@dataclass(frozen=True)
class Target:
    name: str
    holds: Callable[..., None]
    strategies: dict[str, st.SearchStrategy[Any]]


def outcomes_of(records: Sequence[Record]) -> list[Outcome]:
    return untimed(judge(EVENT_CHECKS, Evidence({RING: tuple(records)}), Expectation()))


# Anything at all as one line of the log.


def any_bytes_are_judged(line: bytes) -> None:
    record = parse_record(line)
    events = [event for outcome in outcomes_of([record] if record else []) for event in outcome.events]
    assert len(events) <= 1
    assert all(len(event.detail) <= 200 for event in events)


@st.composite
def raw_records(draw: st.DrawFn) -> bytes:
    """A record as the device writes it; often of the driver, often broken somewhere."""
    text = draw(st.one_of(fault_lines(), quoted_lines(), st.text(max_size=200))).encode("utf-8", "surrogatepass")
    escaped = b"".join(
        bytes([byte]) if 0x20 <= byte < 0x7F and byte != 0x5C else b"\\x%02x" % byte for byte in draw(_broken(text))
    )
    head = b"%d,%d,%d,-" % (draw(st.integers(0, 40)), draw(st.integers(0, 2**64)), draw(st.integers(0, 2**64)))
    return head + draw(st.sampled_from([b"", b",caller=T1", b",c"])) + b";" + escaped


def _broken(text: bytes) -> st.SearchStrategy[bytes]:
    """As it is, or with some bytes replaced, left out or put in."""
    return st.just(text) | st.lists(byte_damages, min_size=1, max_size=4).map(
        lambda all_of_them: damaged(text, all_of_them)
    )


lines = st.binary(max_size=400) | raw_records() | raw_records().flatmap(_broken)


# A whole log: bytes that form no record change nothing.


def a_filtered_log_says_the_same(log: list[bytes], after: int | None, facilities: frozenset[int]) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(line + b"\n" for line in log))
        file.flush()
        whole, filtered = (_read(Path(file.name), facilities, after, begins) for begins in (("",), KERNEL_LINES))
    assert outcomes_of(filtered.records) == outcomes_of(whole.records)
    assert whole.accepted == len(whole.records)
    assert replace(whole, records=()) == replace(filtered, records=())


def _read(path: Path, facilities: frozenset[int], after: int | None, begins: tuple[str, ...]) -> RecordBatch:
    with KernelLog(path, facilities, after, begins) as log:
        return log.read()


# Broken driver lines into the memory: it goes on, and its content is consistent.


def any_lines_are_remembered(log: list[bytes]) -> None:
    records = [record for line in log if (record := parse_record(line))]
    memory = after_kernel_log(Memory(MACHINE, "boot 0"), outcomes_of(records), Now(WALL, MONOTONIC), 2)
    assert len(dump(render(decide(memory, ()), memory, IDENTITY, WALL)).encode()) <= LONGEST


# Any history of faults, looks, resets, reboots and releases: the properties that `make test` holds to a few examples.


def _property(test: Any) -> Callable[..., None]:
    inner: Callable[..., None] = test.hypothesis.inner_test
    return inner


def a_severity_falls_by_a_written_exit_alone(case: tuple[Any, Any], steps: list[properties.Step]) -> None:
    step, may_leave = case
    _property(properties.test_a_severity_falls_by_a_written_exit_alone)(step=step, may_leave=may_leave, steps=steps)


_cases = next(
    mark.args[1]
    for mark in properties.test_a_severity_falls_by_a_written_exit_alone.pytestmark
    if mark.name == "parametrize"
)


# The memory's file: whole, or set aside, whatever is in it.


def a_damaged_file_is_whole_or_set_aside(steps: list[properties.Step], damages: list[tuple[int, int, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = _written(Path(folder), steps)
        raw, whole = file.path.read_bytes(), file.read()
        file.path.write_bytes(damaged(raw, damages))
        assert _read_or_set_aside(file) in (whole, None)


def a_forged_file_is_read_or_set_aside(
    steps: list[properties.Step], place: list[int], instead: Any, is_key: bool
) -> None:
    """With the right digest: only its shape can be wrong. A content that is read is one that all later steps accept."""
    with tempfile.TemporaryDirectory() as folder:
        file = _written(Path(folder), steps)
        content = json.loads(file.path.read_bytes().partition(b"\n")[2])
        forge(content, place, instead, is_key)
        body = json.dumps(content).encode()
        header = {"schema": SCHEMA, "sha256": hashlib.sha256(body).hexdigest()}
        file.path.write_bytes(json.dumps(header).encode() + b"\n" + body + b"\n")
        memory = _read_or_set_aside(file)
        if memory is not None:
            _is_usable(memory)


def _is_usable(memory: Memory) -> None:
    memory = begin(memory, MACHINE, memory.boot_id, NOW)
    gpus = (Gpu(0, address="0000:53:00.0", uuid="GPU-1", serial="1"),)
    memory = after_cycle(memory, JudgedCycle([outcome_with()], gpus), later(10))
    event = fault(seq=1, at=NOW.monotonic)
    memory = after_kernel_log(memory, [outcome_with(events=(kernel_event(event),), check="xid")], later(20))
    render(decide(memory, [outcome_with()]), memory, IDENTITY, WALL)
    dump_memory(memory)


def _written(folder: Path, steps: list[properties.Step]) -> MemoryFile:
    file = MemoryFile(folder)
    file.acquire()
    file.write(properties.lived(steps).memory)
    file.unlock()
    return file


def _read_or_set_aside(file: MemoryFile) -> Memory | None:
    try:
        return file.read()
    except MemoryFileError:
        assert not file.path.exists()
        assert file.path.with_suffix(".unreadable").exists()
        return None


_lived_lines = st.lists(st.tuples(properties.events, properties.waits), max_size=20)

_BROKEN = {
    "forgeries": st.lists(st.tuples(places, json_values, st.booleans()), max_size=3),
    "damages": st.just([]) | st.lists(byte_damages, max_size=3),
}


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


TARGETS = (
    Target("bytes", any_bytes_are_judged, {"line": lines}),
    Target(
        "log",
        a_filtered_log_says_the_same,
        {
            "log": st.lists(lines, max_size=12),
            "after": st.none() | st.integers(0, 2**32),
            "facilities": st.frozensets(st.integers(0, 4), max_size=3),
        },
    ),
    Target("lines", any_lines_are_remembered, {"log": st.lists(lines, max_size=12)}),
    Target(
        "exits",
        a_severity_falls_by_a_written_exit_alone,
        {"case": st.sampled_from(_cases), "steps": properties.histories},
    ),
    Target("leaving", _property(properties.test_everything_that_must_leave_leaves), {"steps": properties.histories}),
    Target(
        "parts",
        _property(properties.test_reading_in_parts_is_reading_at_once),
        {"lines": _lived_lines, "cuts": st.sets(st.integers(0, 20))},
    ),
    Target(
        "release",
        _property(properties.test_a_release_holds_when_the_whole_log_is_read_again),
        {"steps": properties.histories},
    ),
    Target(
        "record",
        _property(properties.test_a_record_always_fits_is_one_and_tells_the_worst),
        {"findings": properties.many, "times": st.integers(1, 40), "acknowledged": st.integers(0, 500)},
    ),
    Target(
        "file",
        a_damaged_file_is_whole_or_set_aside,
        {"steps": properties.histories, "damages": st.lists(byte_damages, max_size=4)},
    ),
    Target(
        "forged-file",
        a_forged_file_is_read_or_set_aside,
        {"steps": properties.histories, "place": places, "instead": json_values, "is_key": st.booleans()},
    ),
    *(
        Target(f"annotations-{name}", _property(holds), {"words": any_annotation.WORDS})
        for name, holds in (
            ("memory", any_annotation.test_memory_round_trip_keeps_its_content),
            ("record", any_annotation.test_record_round_trip_keeps_its_content),
            ("future", any_annotation.test_release_does_not_cover_findings_after_its_observation),
            ("readers", any_annotation.test_no_reader_ends_of_it),
        )
    ),
    Target("checks", any_facts_are_judged, {"seen": evidence(), "expected": expectations}),
    Target("nvml", hardware.an_answer_is_read_or_makes_no_sense, _BROKEN),
    Target("nvml-bytes", hardware.any_bytes_are_an_answer, {"line": st.binary() | json_values.map(_as_bytes)}),
    Target("evidence", hardware.a_file_of_evidence_is_judged_or_refused, _BROKEN),
    Target(
        "services",
        hardware.any_proc_and_log_are_read,
        {
            "comm": hardware.comms,
            "stat": hardware.stats,
            "uptime": hardware.uptimes,
            "kthreadd": st.sampled_from([b"kthreadd\n", b"sh\n"]),
            "log": hardware.logs,
        },
    ),
    Target(
        "efa",
        hardware.any_counters_have_a_rate,
        {"before": hardware.counters, "now": hardware.counters, "seconds": st.floats(0, 1e6)},
    ),
    Target("loader", container_runtime.any_output_is_read, container_runtime.outputs),
    Target("archive", archives.any_archive_is_read_or_refused, archives.archives),
    Target("text", texts.any_text_is_judged_or_refused, texts.texts),
    Target("capture", captures.any_log_is_read, captures.logs),
    Target("unread", captures.no_line_of_the_driver_s_goes_uncounted, captures.one_line),
    Target("speakers", captures.another_program_s_line_is_never_the_kernel_s, captures.speakers),
    Target("profiles", hardware.any_table_is_read_or_refused, {"text": hardware.tables}),
)
