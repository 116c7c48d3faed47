"""Records on a Node: the JSON of four annotations, which only this module reads and writes.

`results` is the agent's record; `sweep-result`, `quarantine-result` and `reset-result` are records of runs. Any client
may have written them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, partial
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck import healthcheck
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, ActiveFinding, Memory
from gpu_healthcheck.healthcheck.memory.rows import FindingRow, ReleaseRow, finding_row, short_release_row
from gpu_healthcheck.healthcheck.model import Nature, Severity, Status
from gpu_healthcheck.healthcheck.node.state import QUARANTINE_RESULT, RESET_RESULT, SWEEP_RESULT, NodeState
from gpu_healthcheck.healthcheck.text import strict_json
from gpu_healthcheck.healthcheck.text.boundary import (
    NULL,
    JsonObject,
    as_json,
    attempt,
    listed,
    message,
    only,
    read_row,
    table,
)
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, held, moment_or_none, timestamp
from gpu_healthcheck.healthcheck.verdict.inventory import Inventory
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict
from gpu_healthcheck.healthcheck.verdict.work import WorkRow, read_work

SCHEMA = 1
LONGEST = 16 * 1024
"""Longest record, in bytes."""
MOST_KEPT = 4
DEEP = {SWEEP_RESULT: "sweep-result", QUARANTINE_RESULT: "quarantine-result", RESET_RESULT: "reset-result"}
"""Annotations of runs, level 2 first, with their names in a record."""
LEVEL_4 = "4-dcgm-diag-l4"
_SHORT_DETAIL, _LONGEST_DETAIL, _LONGEST_SUBJECT, _MOST_PASSED = 40, 300, 253, 4096
_SHARE_OF_UNOBSERVED = 4
"""Divisor of a record's length: when cut, the causes of checks that could not run keep up to a quarter."""


class RecordError(ValueError):
    """Error for an annotation that is not a record. The message contains the reason."""


class CheckRow(JsonObject, frozen=True):
    """One group of checks, or one test."""

    check: str | None = None
    status: str | None = None
    severity: str | None = None
    seen: str | None = None


class CauseRow(JsonObject, frozen=True):
    """A check that could not run, and the cause."""

    check: str | None = None
    cause: str | None = None
    detail: str | None = None


class AcknowledgedRow(JsonObject, frozen=True):
    """Findings that people released, as `REASON SUBJECT`, with the same boot and log position."""

    boot_id: str | None = None
    cursor: Annotated[int | None, NULL] = None
    last_seen: datetime | None = None
    findings: tuple[str, ...] | None = None


class CutRow(JsonObject, frozen=True):
    """Numbers of entries that were left out."""

    details: int | None = None
    findings: int | None = None
    unobserved: int | None = None


class VerdictRow(JsonObject, frozen=True):
    """Summary of the verdict of a deep diagnostic."""

    timestamp: Annotated[str | None, message] = None
    status: str | None = None
    by: str | None = None
    machine: str | None = None


class HistoryRow(JsonObject, frozen=True):
    """An earlier quarantine run that found a fault. `findings` as `REASON SUBJECT`."""

    at: str | None = None
    recommendation: str | None = None
    findings: tuple[str, ...] | None = None
    gpus: Mapping[str, str] | None = None
    """Serial, else UUID, of each finding's GPU; the key is the entry in `findings`."""
    returned: bool | None = None
    """Whether the node accepted work again after the run."""


class ResetStepRow(JsonObject, frozen=True):
    """A step of a reset that has ended."""

    step: str | None = None
    at: datetime | None = None
    detail: str | None = None


class ResetGpuRow(JsonObject, frozen=True):
    """A GPU of a reset."""

    address: str | None = None
    uuid: str | None = None
    index: str | None = None
    persistence: bool | None = None
    """Whether the reset has switched its persistence mode off, and must switch it on again."""


def _stated(value: object) -> str:
    return str(value)[:_SHORT_DETAIL]


def _causes(value: object) -> tuple[CauseRow, ...]:
    """Return one cause for each entry. A malformed entry counts too: it shows that not everything was checked."""
    return tuple(attempt(partial(read_row, CauseRow), entry) or CauseRow() for entry in listed(value))


def _taken(value: object) -> dict[str, str]:
    return {kind: at for kind, at in table(value).items() if kind in DEEP.values() and isinstance(at, str)}


def _passed(value: object) -> dict[str, tuple[str, ...]]:
    pairs = ((reason, entry) for reason, some in table(value).items() if isinstance(some, list) for entry in some)
    subjects: dict[str, tuple[str, ...]] = {}
    for reason, subject in islice(pairs, _MOST_PASSED):
        if isinstance(subject, str):
            subjects[reason] = (*subjects.get(reason, ()), subject[:_LONGEST_SUBJECT])
    return subjects


class AgentRecord(JsonObject, frozen=True):
    """The agent's record: its view of the node."""

    schema: int | None = None
    timestamp: Annotated[str | None, message] = None
    hostname: str | None = None
    instance_type: str | None = None
    status: str | None = None
    severity: Annotated[str | None, _stated] = None
    checks: tuple[CheckRow, ...] | None = None
    findings: tuple[FindingRow, ...] | None = None
    unobserved: Annotated[tuple[CauseRow, ...] | None, _causes] = None
    agent_version: str | None = None
    node_uid: str | None = None
    machine: str | None = None
    boot_id: str | None = None
    cursor: Annotated[int | None, NULL] = None
    released: ReleaseRow | None = None
    acknowledged: Annotated[tuple[AcknowledgedRow, ...] | None, only(AcknowledgedRow)] = None
    taken: Annotated[Mapping[str, str] | None, _taken] = None
    """Timestamp of the last deep record whose findings this record has adopted, by the name of its annotation."""
    inventory: Inventory | None = None
    """GPUs and container runtime as observed in the last check cycle."""
    work: Annotated[Mapping[str, WorkRow] | None, read_work] = None
    """GPUs that wait or idle, by UUID."""
    cut: CutRow | None = None
    taint: str | None = None
    kept: tuple[FindingRow, ...] | None = None
    """Ended findings for which the taint stays, because their check could not run, or could not observe their GPU."""


class StandingRecord(JsonObject, frozen=True):
    """Part of the agent's record with the active findings.

    Parsing the rest of 50,000 records would take seconds.
    """

    findings: tuple[FindingRow, ...] | None = None
    unobserved: Annotated[tuple[CauseRow, ...] | None, _causes] = None
    released: ReleaseRow | None = None
    taint: str | None = None


class RunRecord(JsonObject, frozen=True):
    """Result of one run: a level 2, a quarantine or a reset.

    `timestamp` identifies the run among its kind.
    """

    schema: int | None = None
    timestamp: Annotated[str | None, message] = None
    started: datetime | None = None
    node: str | None = None
    suite: str | None = None
    by: str | None = None
    holder: str | None = None
    status: str | None = None
    severity: Annotated[str | None, _stated] = None
    recommendation: str | None = None
    reasons: tuple[str, ...] | None = None
    checks: tuple[CheckRow, ...] | None = None
    findings: tuple[FindingRow, ...] | None = None
    unobserved: Annotated[tuple[CauseRow, ...] | None, _causes] = None
    passed: Annotated[Mapping[str, tuple[str, ...]] | None, _passed] = None
    machine: str | None = None
    boot_id: str | None = None
    history: tuple[HistoryRow, ...] | None = None
    before: VerdictRow | None = None
    """Last verdict before this run; only in the record of a run without a verdict."""
    running: str | None = None
    bug_report: str | None = None
    scope: str | None = None
    """GPUs that a reset must reset together (`deep.reset_plan`)."""
    gpus: tuple[ResetGpuRow, ...] | None = None
    pods: tuple[str, ...] | None = None
    """Pods that hold GPUs of a reset, as `namespace/name`: the command evicts them."""
    steps: tuple[ResetStepRow, ...] | None = None
    reset_at: float | None = None
    """Time of a successful reset, in seconds of the boot's monotonic clock."""
    cut: CutRow | None = None


Record = AgentRecord | RunRecord
R = TypeVar("R", AgentRecord, StandingRecord, RunRecord)


class RecordText(Struct, frozen=True):
    """The agent's record and its text, which is encoded once."""

    record: AgentRecord
    text: str


class Identity(Struct, frozen=True):
    """Parts of a record beside the verdict: Node, UID, expected instance type, last inventory, work of the GPUs."""

    hostname: str
    instance_type: str = ""
    node_uid: str = ""
    inventory: Inventory | None = None
    work: Mapping[str, WorkRow] = MappingProxyType({})


def render(verdict: Verdict, memory: Memory, identity: Identity, at: datetime, taint: str = "") -> AgentRecord:
    """Return the agent's record, at most LONGEST bytes long. Parts that were cut are counted."""
    return render_text(verdict, memory, identity, at, taint).record


def render_text(
    verdict: Verdict,
    memory: Memory,
    identity: Identity,
    at: datetime,
    taint: str = "",
    kept: tuple[FindingRow, ...] = (),
) -> RecordText:
    """Return the record as `render` does, and its text. `kept`: ended findings for which the taint stays."""
    return RecordText(
        *_limited(
            AgentRecord(
                schema=SCHEMA,
                timestamp=timestamp(at),
                hostname=identity.hostname,
                instance_type=identity.instance_type,
                status=verdict.status.value,
                severity=verdict.severity.name,
                checks=tuple(
                    CheckRow(group.check, group.status.value, group.severity.name) for group in verdict.groups
                ),
                findings=tuple(_row_of(active, memory.boot_id) for active in verdict.active),
                unobserved=tuple(
                    CauseRow(cause.check, cause.cause.cause.name, cause.cause.detail[:_LONGEST_DETAIL])
                    for cause in verdict.unobserved
                ),
                agent_version=healthcheck.__version__,
                node_uid=identity.node_uid,
                machine=memory.machine,
                boot_id=memory.boot_id,
                cursor=memory.cursor,
                released=short_release_row(memory.released) if memory.released else None,
                acknowledged=tuple(_groups(memory.acknowledged)) or None,
                taken=dict(memory.adopted_records) or None,
                inventory=identity.inventory,
                work=identity.work or None,
                taint=taint or None,
                kept=kept or None,
            )
        )
    )


def dump(record: Record) -> str:
    """Return the annotation's text."""
    return _text(as_json(record))


def load(text: str) -> dict[str, Any]:
    """Parse an annotation as a JSON object. Raises RecordError if it is not one."""
    if len(text) > 4 * LONGEST:
        raise RecordError(f"{len(text)} characters; a record has at most {LONGEST}")
    try:
        record = strict_json.loads(text, 4 * LONGEST)
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise RecordError(f"a JSON {type(record).__name__}; a record is an object")
    return record


def parse(kind: type[R], text: str) -> R:
    """Parse an annotation as a record. Raises RecordError if it is not one."""
    hashable: Any = kind
    record: R = _read(hashable, text)
    return record


@lru_cache(maxsize=1)
def is_whole(text: str) -> bool:
    """Whether the agent's record contains everything in this annotation.

    Raises RecordError if it is not a record.
    """
    return load(text) == as_json(parse(AgentRecord, text))


@lru_cache(maxsize=4)  # each step of a plan reads the same annotations
def _read(kind: Any, text: str) -> Any:
    return read_row(kind, load(text))


def on_node(kind: type[R], node: NodeState, key: str) -> R:
    """Return the record under this annotation; an empty one if it is missing or unreadable."""
    text = node.annotations.get(key)
    try:
        return kind() if text is None else parse(kind, text)
    except RecordError:
        return kind()


def time_of(record: Record) -> datetime | None:
    return moment_or_none(record.timestamp)


def is_ours(record: Record) -> bool:
    """Whether a program of this project wrote the record, not the bash suite (the scripts that it replaces)."""
    return record.schema is not None


def severity_of(record: Record) -> Severity:
    """Return the severity that a record states. Raises RecordError for an unknown severity."""
    stated = Severity.PASS.name if record.severity is None else record.severity
    if stated not in Severity.__members__:
        raise RecordError(f"severity {stated!r}; allowed are {', '.join(Severity.__members__)}")
    return Severity[stated]


def signature(record: AgentRecord) -> AgentRecord:
    """Return the part of a record whose change is worth a write: all except timestamps and repeat counts."""
    findings = tuple(_lasting(finding) for finding in record.findings or ())
    return replace(record, timestamp=None, cursor=None, findings=findings, invalid=frozenset())


def recurrence(record: AgentRecord) -> list[tuple[int | None, str | None]]:
    """Return each finding's count and last log line.

    Changes of these are written, but less often than a flood of log records changes them.
    """
    return [(finding.count, finding.detail) for finding in record.findings or ()]


def _lasting(row: FindingRow) -> FindingRow:
    detail = None if row.nature is Nature.EVENT else row.detail
    return replace(row, last_seen=None, at=None, seq=None, count=None, detail=detail, invalid=frozenset())


def remembered(record: AgentRecord) -> Memory:
    """Return the memory in a record, from which a lost file is rebuilt. Raises RecordError."""
    try:
        replace(record, invalid=record.invalid & {"released", "acknowledged"}).must_have("machine", "boot_id")
        boot_id = record.boot_id or ""
        return Memory(
            machine=record.machine or "",
            boot_id=boot_id,
            cursor=record.cursor,
            active=tuple(row.active_finding(boot_id) for row in record.findings or ()),
            released=record.released.release() if record.released else None,
            acknowledged=tuple(
                acknowledgement for group in record.acknowledged or () for acknowledgement in _acknowledged_in(group)
            ),
            adopted_records=record.taken or {},
        )
    except ValueError as error:
        raise RecordError(f"not a record of schema {SCHEMA}: {error}") from None


def level_4_status(record: RunRecord) -> str:
    """Return the status of level 4 in a quarantine run's record; '' if there is none or a contradiction."""
    messages = {str(check.status) for check in record.checks or () if check.check == LEVEL_4}
    return messages.pop() if len(messages) == 1 else ""


def began(record: RunRecord) -> datetime | None:
    """Return the start of the run, else its end; None if it is unreadable."""
    return None if "started" in record.invalid else record.started or time_of(record)


def passed_since(record: RunRecord) -> datetime | None:
    """Return the start of a run in which level 4 passed, from its record; None for every other record."""
    is_passed = record.status == Status.PASS.value and level_4_status(record) == Status.PASS.value
    # A fault during the run may have occurred after its location was tested.
    return began(record) if is_passed and is_ours(record) else None


def _row_of(active: ActiveFinding, boot_id: str) -> FindingRow:
    row = finding_row(active)
    return row if active.boot_id == boot_id else replace(row, boot_id=active.boot_id)


def _groups(acknowledged: Iterable[Acknowledgement]) -> Iterator[AcknowledgedRow]:
    """Yield the acknowledgements grouped by boot and log position, to keep a released node's record small.

    Events in the log are identified by their position there and need no time.
    """
    groups: dict[tuple[str, int | None, datetime | None], list[str]] = {}
    for acknowledgement in sorted(acknowledged, key=lambda acknowledgement: acknowledgement.cursor is None):
        seen = held(acknowledgement.last_seen).replace(microsecond=0) if acknowledgement.cursor is None else None
        groups.setdefault((acknowledgement.boot_id, acknowledgement.cursor, seen), []).append(
            f"{acknowledgement.reason} {acknowledgement.subject}"
        )
    for (boot_id, cursor, seen), findings in groups.items():
        yield AcknowledgedRow(boot_id, cursor, seen, tuple(sorted(set(findings))))


def _acknowledged_in(group: AcknowledgedRow) -> Iterator[Acknowledgement]:
    group.must_have("boot_id", "findings")
    # Events that have a position in the kernel log need no timestamp.
    seen = group.last_seen.replace(microsecond=999_999) if group.last_seen else EARLIEST
    for name in group.findings or ():
        reason, _, subject = name.partition(" ")
        yield Acknowledgement(reason, subject, group.boot_id or "", group.cursor, seen)


def within_limit(record: R) -> R:
    """Return the record, cut to LONGEST bytes. `cut` counts the lost entries."""
    return _limited(record)[0]


def _limited(record: R) -> tuple[R, str]:
    plain = as_json(record)
    text = _text(plain)
    if len(text.encode()) <= LONGEST:
        return record, text
    _shorten(plain, LONGEST)
    return read_row(type(record), plain), _text(plain)


def _shorten(record: dict[str, Any], longest: int) -> None:
    """Shorten the given record."""
    for key in ("inventory", "work"):
        record.pop(key, None)
        if _size(record) <= longest:
            return
    findings, gone = record["findings"], 0
    long = [finding for finding in findings if len(finding["detail"]) > _SHORT_DETAIL]
    for finding in long:
        finding["detail"] = finding["detail"][:_SHORT_DETAIL]
    record["cut"] = {"details": len(long), "findings": 0}
    unobserved, most = record["unobserved"], longest // _SHARE_OF_UNOBSERVED
    while unobserved and _size(record) > longest and _size({"unobserved": unobserved}) > most:
        # Faults are kept in preference to the reasons for missing checks.
        unobserved.pop()
        record["cut"]["unobserved"] = record["cut"].get("unobserved", 0) + 1
    while _size(record) > longest and record.get("acknowledged"):
        # These are needed only if the memory file on the node is lost: the file has all of them.
        del record["acknowledged"][: max(len(record["acknowledged"]) // 4, 1)]
    while _size(record) > longest and findings:
        # The order is worst first, so the mildest are dropped, and counted.
        drop = max(len(findings) // 10, 1)
        del findings[-drop:]
        gone += drop
        record["cut"]["findings"] = gone


def _size(record: Mapping[str, Any]) -> int:
    return len(_text(record).encode())


def _text(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()  # a foreign annotation may contain half a surrogate pair
