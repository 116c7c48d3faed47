"""Any content of a Node's annotations: it is accepted or rejected, and the remembered part is read back.

No content covers later findings, and no reader ends because of it.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.cli.fleet import row_of_node
from gpu_healthcheck.healthcheck.cluster.leases import Heartbeat
from gpu_healthcheck.healthcheck.deep.claim import claim_on, why_unread
from gpu_healthcheck.healthcheck.deep.deep_record import after_deep_record, passed_run, records_to_adopt
from gpu_healthcheck.healthcheck.memory import exits
from gpu_healthcheck.healthcheck.memory.file import MemoryFile
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.node.state import (
    QUARANTINE_RESULT,
    RELEASE,
    RESULTS,
    RUN,
    STATUS,
    SWEEP_RESULT,
    TAINT,
    NodeState,
)
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import (
    dump_release,
    faults_on,
    other_severities,
    read_release,
    release_of,
)
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from gpu_healthcheck.quarantine.quarantine_record import carried_by, history_of
from gpu_healthcheck.sweeper.select import candidate
from tests.examples import (
    BOOT,
    GPU,
    IDENTITY,
    NODE,
    NOW,
    WALL,
    active_finding,
    fault,
    kernel_event,
    later,
    memory_with,
    node,
    outcome_with,
)
from tests.fuzz.damage import forge, json_values, places

CURSOR = 1200
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        "9999-12-31T23:59:59Z",
        "9998-12-31T23:59:59.999999Z",
        "0001-01-01T00:00:00+23:59",
        "0001-01-01T00:00:00Z",
        "0999-05-05T05:05:05Z",
        "1970-01-01T00:00:00Z",
        "2026-11-21T01:02:03",
        timestamp(later(60).wall),
        10**15,
        10**18,
        10**30,
        -(10**30),
        2**63,
        1e300,
        float("nan"),
        float("inf"),
        "nan",
        "1e999",
        True,
        "\ud800",
        "ISOLATE",
        "event",
        "level",
        BOOT,
        "Xid79 gpu/0000:53:00.0",
        {},
        [],
        None,
    ]
)
VALUES = ODD | json_values


def own(memory: Memory) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(
        records.dump(records.render(decide(memory, [outcome_with()]), memory, IDENTITY, WALL, "set"))
    )
    return record


DEEP_FAULT = active_finding(fault("DcgmDiagMemory", Severity.ISOLATE), check="dcgm-diag-l4")
KNOWN = memory_with(replace(active_finding(fault()), seq=900), DEEP_FAULT, cursor=CURSOR)
WORD = release_of(node(annotations={RESULTS: json.dumps(own(KNOWN))}), "mia", "swapped", WALL)
RELEASED = exits.after_release(KNOWN, WORD, NOW)
DEEP_ROW = {
    "reason": "DcgmDiagPcie",
    "subject": GPU,
    "severity": "RESET",
    "detail": "x",
    "about": {"index": "3"},
    "first_seen": timestamp(WALL),
    "last_seen": timestamp(WALL),
    "nature": "event",
}
LEVEL_4 = {"check": "4-dcgm-diag-l4", "status": "pass", "severity": "PASS"}
DEEP = {
    "schema": 1,
    "timestamp": timestamp(WALL),
    "started": timestamp(WALL),
    "status": "pass",
    "severity": "RESET",
    "checks": [LEVEL_4],
    "findings": [DEEP_ROW],
    "passed": {"DcgmDiagMemory": [""]},
    "before": {"timestamp": timestamp(WALL), "status": "pass", "by": "agent"},
    "history": [{"at": timestamp(WALL), "recommendation": "reset", "findings": ["X node"], "returned": False}],
    "boot_id": BOOT,
}
PASSED = DEEP | {"severity": "PASS", "findings": []}
HELD = {"kind": "l2", "holder": "agent", "until": timestamp(later(60).wall)}
STANDING = {"gpus": {"0000:53:00.0": {"index": "3"}}}


@st.composite
def documents(draw: st.DrawFn, *documents: dict[str, Any]) -> str:
    """One of these with some values replaced or left out, at times with a key twice; or any text."""
    document = json.loads(json.dumps(draw(st.sampled_from(documents))))
    for place, instead, is_key in draw(st.lists(st.tuples(places, VALUES, st.booleans()), max_size=4)):
        forge(document, place, instead, is_key)
    text = json.dumps(document)
    kind = draw(st.sampled_from(["", "", "", "twice", "cut", "text"]))
    if kind == "twice":
        return text.replace("{", '{"timestamp":"9998-01-01T00:00:00Z","schema":1,', 1)
    if kind == "cut":
        return text[: draw(st.integers(0, len(text)))]
    return draw(st.text(max_size=40)) if kind == "text" else text


@dataclass(frozen=True)
class Words:
    results: str
    sweep: str
    quarantine: str
    release: str
    run: str
    tainted: bool
    passes: bool

    @property
    def node(self) -> NodeState:
        texts = (self.results, self.sweep, self.quarantine, self.release, self.run)
        keys = (RESULTS, SWEEP_RESULT, QUARANTINE_RESULT, RELEASE, RUN)
        fields = dict(zip(keys, texts, strict=True))
        return node(
            annotations={key: text for key, text in fields.items() if text},
            labels={STATUS: "pass" if self.passes else "fail"},
            taints=(TAINT,) if self.tainted else (),
            gpus={"nvidia.com/gpu": 8},
        )


WORDS = st.builds(
    Words,
    documents(own(KNOWN), own(RELEASED)),
    documents(DEEP, PASSED) | st.just(""),
    documents(DEEP, PASSED) | st.just(""),
    documents(json.loads(dump_release(WORD))) | st.just(""),
    documents(HELD) | st.just(""),
    st.booleans(),
    st.booleans(),
)
AHEAD = "9998-01-01T00:00:00Z"
HOSTILE = Words(
    json.dumps(own(RELEASED) | {"acknowledged": [{"boot_id": BOOT, "cursor": 10**15, "findings": [f"Xid79 {GPU}"]}]}),
    "",
    json.dumps(PASSED | {"timestamp": AHEAD, "started": AHEAD}),
    json.dumps(
        {
            "by": "x",
            "reason": "x",
            "at": AHEAD,
            "findings": [
                {"reason": "Xid79", "subject": GPU, "boot_id": BOOT, "cursor": cursor, "last_seen": AHEAD}
                for cursor in (None, 10**15)
            ],
        }
    ),
    "",
    False,
    False,
)


def heeded(words: Words) -> Memory:
    """As the agent takes it all in, after its file was lost."""
    state, memory = words.node, memory_with(replace(active_finding(fault()), seq=900), cursor=CURSOR, **STANDING)
    try:
        other = records.remembered(records.parse(AgentRecord, words.results))
        memory = exits.adopted(memory, exits.begin(other, memory.machine, BOOT, NOW), NOW)
    except records.RecordError:
        pass
    word, _ = read_release(state, by_label=True)
    if word is not None:
        memory = exits.after_release(memory, word, NOW)
    for record in records_to_adopt(state, memory.adopted_records):
        memory = after_deep_record(memory, record, NOW, 2)
    if (passed := passed_run(state)) is not None:
        memory = exits.quarantined(memory, passed.name, passed.began, NOW)
    return exits.within_log(memory)


@given(words=WORDS)
@example(words=HOSTILE)
def test_memory_round_trip_keeps_its_content(words: Words) -> None:
    memory = heeded(words)
    with tempfile.TemporaryDirectory() as folder:
        file = MemoryFile(Path(folder))
        assert file.acquire()
        file.write(memory)
        read = file.read()
        file.unlock()

    assert read == memory


@given(words=WORDS)
@example(words=HOSTILE)
def test_record_round_trip_keeps_its_content(words: Words) -> None:
    memory = heeded(words)
    record = records.render(decide(memory, [outcome_with()]), memory, IDENTITY, WALL)
    message = records.dump(record)
    read = records.parse(AgentRecord, message)
    again = records.remembered(read)

    # Else it would be news to its own writer at every look.
    assert (records.is_whole(message), records.signature(read)) == (True, records.signature(record))
    assert len(message.encode()) <= records.LONGEST
    if "cut" not in json.loads(message):
        assert [kept(finding) for finding in again.active] == [
            kept(finding) for finding in decide(memory, [outcome_with()]).active
        ]
        assert len(again.acknowledged) == len({(a.key, a.boot_id, a.cursor) for a in memory.acknowledged})


def kept(entry: Any) -> tuple[Any, ...]:
    first, last = (at.replace(microsecond=0) for at in (entry.first_seen, entry.last_seen))
    return (entry.finding.severity, entry.nature, first, last, entry.count, entry.seq, round(entry.last_at, 3))


@given(words=WORDS)
@example(words=HOSTILE)
def test_release_does_not_cover_findings_after_its_observation(words: Words) -> None:
    memory = heeded(words)
    assert all(finding.last_seen <= NOW.wall for finding in memory.active)
    assert all(acknowledgement.last_seen <= NOW.wall for acknowledgement in memory.acknowledged)
    event = fault(seq=CURSOR + 1, at=NOW.monotonic + 5)

    after = after_kernel_log(memory, [outcome_with(events=(kernel_event(event),), check="xid")], later(10))
    if (passed := passed_run(words.node)) is not None:
        after = exits.quarantined(after, passed.name, passed.began, later(20))
    word, _ = read_release(words.node, by_label=True)
    if word is not None:
        after = exits.within_log(exits.after_release(replace(after, cursor=CURSOR + 1), word, later(30)))

    assert ("Xid79", GPU) in {finding.key for finding in after.active}


@given(words=WORDS)
@example(words=HOSTILE)
def test_no_reader_ends_of_it(words: Words) -> None:
    state = words.node
    assert candidate(state, WALL, (), (later(3600).wall - WALL), WALL) is not None
    row = row_of_node(state, Heartbeat(WALL, 60), later(3600).wall - WALL, later(60).wall)
    assert row.node == NODE
    claim_on(state, WALL)
    list(why_unread(state))
    other_severities(state, ())
    faults_on(state)
    history_of(state, WALL)
    carried_by(state, "", BOOT)
