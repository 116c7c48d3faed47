"""The records on a Node: the JSON of three annotations, which is read and written here and nowhere else.

`results` is the agent's, `sweep-result` and `quarantine-result` are of deep runs; anybody may have written there.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

import healthcheck
from healthcheck.memory.findings import Acknowledgement, Memory, Standing
from healthcheck.memory.rows import FindingRow, ReleaseRow, finding_row, short_release_row
from healthcheck.model import Nature, Severity, Status
from healthcheck.node.state import QUARANTINE_RESULT, SWEEP_RESULT, NodeState
from healthcheck.text import strict_json
from healthcheck.text.json_rows import (
    NULL,
    Row,
    as_json,
    names,
    only_rows,
    row,
    row_in,
    rows,
    text,
    whole,
    word,
    words,
    yes,
)
from healthcheck.text.moments import EARLIEST, held, moment_or_none, timestamp
from healthcheck.verdict.inventory import Inventory
from healthcheck.verdict.verdict import Verdict

SCHEMA = 1
LONGEST = 16 * 1024
"""A record is never longer."""
MOST_KEPT = 4
_FOR_THE_TAINT = 1536
"""Kept free for the plan's `taint` and `kept`."""
DEEP = {SWEEP_RESULT: "sweep-result", QUARANTINE_RESULT: "quarantine-result"}
"""The annotations of deep runs, those of level 2 first, and their names in a record."""
LEVEL_4 = "4-dcgm-diag-l4"
_SHORT_DETAIL, _LONGEST_DETAIL, _LONGEST_SUBJECT, _MOST_PASSED = 40, 300, 253, 4096
_SHARE_OF_THE_BLIND = 4
"""Of the room in a record: a quarter is left to what could not be seen, when there is too much of it."""


class RecordError(ValueError):
    """An annotation that is no record. The message says what is wrong with it."""


class CheckRow(Row, frozen=True):
    """One group of checks, or one test."""

    check: Annotated[str | None, word] = None
    status: Annotated[str | None, word] = None
    severity: Annotated[str | None, word] = None
    seen: Annotated[str | None, word] = None


class CauseRow(Row, frozen=True):
    """What could not be seen, and why."""

    check: Annotated[str | None, word] = None
    cause: Annotated[str | None, word] = None
    detail: Annotated[str | None, word] = None


class AcknowledgedRow(Row, frozen=True):
    """Findings that people released, as `REASON SUBJECT`, where they share boot and place."""

    boot_id: Annotated[str | None, word] = None
    cursor: Annotated[int | None, whole, NULL] = None
    last_seen: Annotated[datetime | None, moment_or_none] = None
    findings: Annotated[tuple[str, ...] | None, words] = None


class CutRow(Row, frozen=True):
    """How much had to be left out."""

    details: Annotated[int | None, whole] = None
    findings: Annotated[int | None, whole] = None
    unobserved: Annotated[int | None, whole] = None


class VerdictRow(Row, frozen=True):
    """What a deep run said of its node, in few words."""

    timestamp: Annotated[str | None, text] = None
    status: Annotated[str | None, word] = None
    by: Annotated[str | None, word] = None
    machine: Annotated[str | None, word] = None


class HistoryRow(Row, frozen=True):
    """An earlier quarantine run that found a fault. `findings` as `REASON SUBJECT`."""

    at: Annotated[str | None, word] = None
    recommendation: Annotated[str | None, word] = None
    findings: Annotated[tuple[str, ...] | None, words] = None
    gpus: Annotated[Mapping[str, str] | None, names] = None
    """By finding, as above: the serial, else the UUID of its GPU."""
    returned: Annotated[bool | None, yes] = None
    """The node went back to work after it."""


def _stated(value: object) -> str:
    return str(value)[:_SHORT_DETAIL]


def _causes(value: object) -> tuple[CauseRow, ...] | None:
    """One for whatever stands there: it was not all seen."""
    if not isinstance(value, list):
        return None
    return tuple(row_in(CauseRow, one) if isinstance(one, dict) else CauseRow() for one in value)


def _taken(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    return {kind: at for kind, at in value.items() if kind in DEEP.values() and isinstance(at, str)}


def _passed(value: object) -> dict[str, tuple[str, ...]] | None:
    if not isinstance(value, dict):
        return None
    pairs = ((reason, one) for reason, some in value.items() if isinstance(some, list) for one in some)
    told: dict[str, tuple[str, ...]] = {}
    for reason, subject in islice(pairs, _MOST_PASSED):
        if isinstance(subject, str):
            told[reason] = (*told.get(reason, ()), subject[:_LONGEST_SUBJECT])
    return told


class AgentRecord(Row, frozen=True):
    """What the agent knows of its node."""

    schema: Annotated[int | None, whole] = None
    timestamp: Annotated[str | None, text] = None
    hostname: Annotated[str | None, word] = None
    instance_type: Annotated[str | None, word] = None
    status: Annotated[str | None, word] = None
    severity: Annotated[str | None, _stated] = None
    checks: Annotated[tuple[CheckRow, ...] | None, rows(CheckRow)] = None
    findings: Annotated[tuple[FindingRow, ...] | None, rows(FindingRow)] = None
    unobserved: Annotated[tuple[CauseRow, ...] | None, _causes] = None
    agent_version: Annotated[str | None, word] = None
    node_uid: Annotated[str | None, word] = None
    machine: Annotated[str | None, word] = None
    boot_id: Annotated[str | None, word] = None
    cursor: Annotated[int | None, whole, NULL] = None
    released: Annotated[ReleaseRow | None, row(ReleaseRow)] = None
    acknowledged: Annotated[tuple[AcknowledgedRow, ...] | None, only_rows(AcknowledgedRow)] = None
    taken: Annotated[Mapping[str, str] | None, _taken] = None
    """By the name of its annotation: the timestamp of the deep record whose findings stand in this one, or did."""
    inventory: Annotated[Inventory | None, row(Inventory)] = None
    """What the last look saw of GPUs and container runtime."""
    cut: Annotated[CutRow | None, row(CutRow)] = None
    taint: Annotated[str | None, word] = None
    kept: Annotated[tuple[FindingRow, ...] | None, rows(FindingRow)] = None
    """Ended findings for which the taint stays: their own check, or their GPU, could not be observed since."""


class StandingRecord(Row, frozen=True):
    """Of the agent's record what stands: to read the rest of 50,000 takes seconds."""

    findings: Annotated[tuple[FindingRow, ...] | None, rows(FindingRow)] = None
    unobserved: Annotated[tuple[CauseRow, ...] | None, _causes] = None
    released: Annotated[ReleaseRow | None, row(ReleaseRow)] = None
    taint: Annotated[str | None, word] = None


class RunRecord(Row, frozen=True):
    """What one deep run says: a level 2, or a quarantine run. `timestamp` tells it from others of its kind."""

    schema: Annotated[int | None, whole] = None
    timestamp: Annotated[str | None, text] = None
    started: Annotated[datetime | None, moment_or_none] = None
    node: Annotated[str | None, word] = None
    suite: Annotated[str | None, word] = None
    by: Annotated[str | None, word] = None
    holder: Annotated[str | None, word] = None
    status: Annotated[str | None, word] = None
    severity: Annotated[str | None, _stated] = None
    recommendation: Annotated[str | None, word] = None
    reasons: Annotated[tuple[str, ...] | None, words] = None
    checks: Annotated[tuple[CheckRow, ...] | None, rows(CheckRow)] = None
    findings: Annotated[tuple[FindingRow, ...] | None, rows(FindingRow)] = None
    unobserved: Annotated[tuple[CauseRow, ...] | None, _causes] = None
    passed: Annotated[Mapping[str, tuple[str, ...]] | None, _passed] = None
    machine: Annotated[str | None, word] = None
    boot_id: Annotated[str | None, word] = None
    history: Annotated[tuple[HistoryRow, ...] | None, rows(HistoryRow)] = None
    before: Annotated[VerdictRow | None, row(VerdictRow)] = None
    """Of a run that came to no verdict: the last one that did."""
    running: Annotated[str | None, word] = None
    bug_report: Annotated[str | None, word] = None
    cut: Annotated[CutRow | None, row(CutRow)] = None


Record = AgentRecord | RunRecord
R = TypeVar("R", AgentRecord, StandingRecord, RunRecord)


class Identity(Struct, frozen=True):
    """Whose record it is: the Node, its UID, the type that the checks expected, and what the last look saw of it."""

    hostname: str
    instance_type: str = ""
    node_uid: str = ""
    inventory: Inventory | None = None


def render(verdict: Verdict, memory: Memory, identity: Identity, at: datetime, taint: str = "") -> AgentRecord:
    """The agent's record, at most LONGEST bytes long: what is cut is counted."""
    return within_limit(
        AgentRecord(
            schema=SCHEMA,
            timestamp=timestamp(at),
            hostname=identity.hostname,
            instance_type=identity.instance_type,
            status=verdict.status.value,
            severity=verdict.severity.name,
            checks=tuple(CheckRow(one.check, one.status.value, one.severity.name) for one in verdict.groups),
            findings=tuple(_row_of(standing, memory.boot_id) for standing in verdict.standing),
            unobserved=tuple(
                CauseRow(one.check, one.cause.cause.name, one.cause.detail[:_LONGEST_DETAIL])
                for one in verdict.unobserved
            ),
            agent_version=healthcheck.__version__,
            node_uid=identity.node_uid,
            machine=memory.machine,
            boot_id=memory.boot_id,
            cursor=memory.cursor,
            released=short_release_row(memory.released) if memory.released else None,
            acknowledged=tuple(_groups(memory.acknowledged)) or None,
            taken=dict(memory.taken) or None,
            inventory=identity.inventory,
            taint=taint or None,
        )
    )


def dump(record: Record) -> str:
    """The annotation's text."""
    return _text(as_json(record))


def load(text: str) -> dict[str, Any]:
    """An annotation as a JSON object. Raises RecordError when it is none."""
    if len(text) > 4 * LONGEST:
        raise RecordError(f"{len(text)} characters; a record has at most {LONGEST}")
    try:
        record = strict_json.loads(text, 4 * LONGEST)
    except ValueError as error:
        raise RecordError(f"no JSON: {error}") from None
    if not isinstance(record, dict):
        raise RecordError(f"a JSON {type(record).__name__}; a record is an object")
    return record


def parse(kind: type[R], text: str) -> R:
    """An annotation as a record. Raises RecordError when it is none."""
    hashable: Any = kind
    record: R = _read(hashable, text)
    return record


@lru_cache(maxsize=1)
def is_whole(text: str) -> bool:
    """Whether the agent's record says all that stands in this annotation. Raises RecordError when it is none."""
    return load(text) == as_json(parse(AgentRecord, text))


@lru_cache(maxsize=4)  # each step of a plan reads the same annotations
def _read(kind: Any, text: str) -> Any:
    return row_in(kind, load(text))


def on_node(kind: type[R], node: NodeState, key: str) -> R:
    """The record under this annotation; one that says nothing where there is none, or nobody can read it."""
    text = node.annotations.get(key)
    try:
        return kind() if text is None else parse(kind, text)
    except RecordError:
        return kind()


def time_of(record: Record) -> datetime | None:
    return moment_or_none(record.timestamp)


def is_ours(record: Record) -> bool:
    """Whether a program of ours wrote it, and not the bash suite.

    The deep runs of 0.1.0 gave their records no schema. They say when they began and by whom, as the suite's never do.
    """
    return record.schema is not None or (isinstance(record, RunRecord) and None not in (record.started, record.by))


def severity_of(record: Record) -> Severity:
    """The severity that a record states. Raises RecordError for a word that is none."""
    stated = Severity.PASS.name if record.severity is None else record.severity
    if stated not in Severity.__members__:
        raise RecordError(f"severity {stated!r}; allowed are {', '.join(Severity.__members__)}")
    return Severity[stated]


def signature(record: AgentRecord) -> AgentRecord:
    """What of a record is news when it differs: all but the times, and but what an event that comes again changes."""
    findings = tuple(_lasting(one) for one in record.findings or ())
    return replace(record, timestamp=None, cursor=None, findings=findings, odd=frozenset())


def recurrence(record: AgentRecord) -> list[tuple[int | None, str | None]]:
    """How often each finding came, and its last line: news too, but not worth a write for each record of a flood."""
    return [(one.count, one.detail) for one in record.findings or ()]


def _lasting(one: FindingRow) -> FindingRow:
    detail = None if one.nature is Nature.EVENT else one.detail
    return replace(one, last_seen=None, at=None, seq=None, count=None, detail=detail, odd=frozenset())


def remembered(record: AgentRecord) -> Memory:
    """The memory that a record still holds: what a lost file is rebuilt from. Raises RecordError."""
    try:
        replace(record, odd=record.odd & {"released", "acknowledged"}).must_have("machine", "boot_id")
        boot_id = record.boot_id or ""
        return Memory(
            machine=record.machine or "",
            boot_id=boot_id,
            cursor=record.cursor,
            standing=tuple(one.standing(boot_id) for one in record.findings or ()),
            released=record.released.release() if record.released else None,
            acknowledged=tuple(one for group in record.acknowledged or () for one in _acknowledged_in(group)),
            taken=record.taken or {},
        )
    except ValueError as error:
        raise RecordError(f"not a record of schema {SCHEMA}: {error}") from None


def level_4_status(record: RunRecord) -> str:
    """What a quarantine run's record says of level 4; '' where it says nothing, or two things."""
    said = {str(one.status) for one in record.checks or () if one.check == LEVEL_4}
    return said.pop() if len(said) == 1 else ""


def began(record: RunRecord) -> datetime | None:
    """When the run began: where it does not say, when it ended; None: nobody can read it."""
    return None if "started" in record.odd else record.started or time_of(record)


def passed_since(record: RunRecord) -> datetime | None:
    """When the run began whose record says that level 4 passed in it; None for every other record."""
    is_passed = record.status == Status.PASS.value and level_4_status(record) == Status.PASS.value
    # A fault that came while it ran may not have been there yet where it had looked.
    return began(record) if is_passed and is_ours(record) else None


def _row_of(standing: Standing, boot_id: str) -> FindingRow:
    told = finding_row(standing)
    return told if standing.boot_id == boot_id else replace(told, boot_id=standing.boot_id)


def _groups(acknowledged: Iterable[Acknowledgement]) -> Iterator[AcknowledgedRow]:
    """In few words, so that a node that was released stays a small record: what shares boot and place stands together.

    What stood in the log is told apart by its place there, and needs no time.
    """
    groups: dict[tuple[str, int | None, datetime | None], list[str]] = {}
    for one in sorted(acknowledged, key=lambda one: one.cursor is None):
        seen = held(one.last_seen).replace(microsecond=0) if one.cursor is None else None
        groups.setdefault((one.boot_id, one.cursor, seen), []).append(f"{one.reason} {one.subject}")
    for (boot_id, cursor, seen), findings in groups.items():
        yield AcknowledgedRow(boot_id, cursor, seen, tuple(sorted(set(findings))))


def _acknowledged_in(group: AcknowledgedRow) -> Iterator[Acknowledgement]:
    group.must_have("boot_id", "findings")
    # What has its place in the log needs no time.
    seen = group.last_seen.replace(microsecond=999_999) if group.last_seen else EARLIEST
    for name in group.findings or ():
        reason, _, subject = name.partition(" ")
        yield Acknowledgement(reason, subject, group.boot_id or "", group.cursor, seen)


def within_limit(record: R) -> R:
    """The record, cut to LONGEST bytes; `cut` counts what was lost."""
    plain = as_json(record)
    if _size(plain) <= LONGEST - _FOR_THE_TAINT:
        return record
    _shorten(plain, LONGEST - _FOR_THE_TAINT)
    return row_in(type(record), plain)


def _shorten(record: dict[str, Any], longest: int) -> None:
    """In place."""
    record.pop("inventory", None)
    if _size(record) <= longest:
        return
    findings, gone = record["findings"], 0
    long = [finding for finding in findings if len(finding["detail"]) > _SHORT_DETAIL]
    for finding in long:
        finding["detail"] = finding["detail"][:_SHORT_DETAIL]
    record["cut"] = {"details": len(long), "findings": 0}
    blind, most = record["unobserved"], longest // _SHARE_OF_THE_BLIND
    while blind and _size(record) > longest and _size({"unobserved": blind}) > most:
        # What is at fault comes before why more could not be seen.
        blind.pop()
        record["cut"]["unobserved"] = record["cut"].get("unobserved", 0) + 1
    while _size(record) > longest and record.get("acknowledged"):
        # Only for the day when the node's own file is lost: the file has them all.
        del record["acknowledged"][: max(len(record["acknowledged"]) // 4, 1)]
    while _size(record) > longest and findings:
        # Worst first: what goes is the mildest, and it is counted.
        drop = max(len(findings) // 10, 1)
        del findings[-drop:]
        gone += drop
        record["cut"]["findings"] = gone


def _size(record: Mapping[str, Any]) -> int:
    return len(_text(record).encode())


def _text(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair, as a foreign annotation may hold
