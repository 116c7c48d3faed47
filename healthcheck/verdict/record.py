"""The record: what the agent knows of its node, as the JSON object of the `results` annotation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import healthcheck
from healthcheck.memory.findings import Acknowledgement, Memory, Standing
from healthcheck.memory.rows import FindingRow, ReleaseRow, finding_row, short_release_row
from healthcheck.model import Nature, Severity, Status
from healthcheck.text import strict_json
from healthcheck.text.json_rows import as_json, row_in, whole
from healthcheck.text.moments import EARLIEST, moment, moment_or_none, timestamp
from healthcheck.verdict.verdict import Verdict

SCHEMA = 1
LONGEST = 16 * 1024
"""A record is never longer."""
_FOR_THE_TAINT = 32
"""Kept free for what the plan says of the taint afterwards."""
DEEP_KINDS = ("sweep-result", "quarantine-result")
"""The annotations of deep runs, without their prefix: those of level 2 first."""
LEVEL_4 = "4-dcgm-diag-l4"
_SHORT_DETAIL = 40
_SHARE_OF_THE_BLIND = 4
"""Of the room in a record: a quarter is left to what could not be seen, when there is too much of it."""
_VOLATILE = ("timestamp", "cursor")


class RecordError(ValueError):
    """An annotation that is no record. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose record it is: the Node, its UID, the machine under it and the type that the checks expected."""

    hostname: str
    instance_type: str = ""
    node_uid: str = ""


def render(verdict: Verdict, memory: Memory, identity: Identity, at: datetime, taint: str = "") -> dict[str, Any]:
    """The record as plain JSON types, at most LONGEST bytes long: what is cut is counted."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "timestamp": timestamp(at),
        "hostname": identity.hostname,
        "instance_type": identity.instance_type,
        "status": verdict.status.value,
        "severity": verdict.severity.name,
        "checks": [
            {"check": row.check, "status": row.status.value, "severity": row.severity.name} for row in verdict.groups
        ],
        "findings": [_row_of(standing, memory.boot_id) for standing in verdict.standing],
        "unobserved": [
            {"check": row.check, "cause": row.cause.cause.name, "detail": row.cause.detail[:300]}
            for row in verdict.unobserved
        ],
        "agent_version": healthcheck.__version__,
        "node_uid": identity.node_uid,
        "machine": memory.machine,
        "boot_id": memory.boot_id,
        "cursor": memory.cursor,
    }
    if memory.released:
        record["released"] = as_json(short_release_row(memory.released))
    if memory.acknowledged:
        record["acknowledged"] = _groups(memory.acknowledged)
    if memory.taken:
        record["taken"] = dict(memory.taken)
    if taint:
        record["taint"] = taint
    return within_limit(record)


def dump(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair, as a foreign annotation may hold


def load(text: str) -> dict[str, Any]:
    """An annotation as a record. Raises RecordError when it is none."""
    if len(text) > 4 * LONGEST:
        raise RecordError(f"{len(text)} characters; a record has at most {LONGEST}")
    try:
        record = strict_json.loads(text, 4 * LONGEST)
    except ValueError as error:
        raise RecordError(f"no JSON: {error}") from None
    if not isinstance(record, dict):
        raise RecordError(f"a JSON {type(record).__name__}; a record is an object")
    return record


def has_schema(record: Mapping[str, Any]) -> bool:
    """Whether a program of ours wrote it: the records of the bash suite have none."""
    return whole(record.get("schema")) is not None


def severity_in(record: Mapping[str, Any]) -> Severity:
    """The severity that another program's record states. Raises RecordError for a word that is none."""
    word = record.get("severity", "PASS")
    if not isinstance(word, str) or word not in Severity.__members__:
        raise RecordError(f"severity {str(word)[:40]!r}; allowed are {', '.join(Severity.__members__)}")
    return Severity[word]


def signature(record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record is news when it differs: all but the times, and but what an event that comes again changes."""
    kept = {key: value for key, value in record.items() if key not in _VOLATILE}
    kept["findings"] = [
        {key: value for key, value in finding.items() if key not in _passing(finding)}
        for finding in findings_in(record)
    ]
    return kept


def recurrence(record: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """How often each finding came, and its last line: news too, but not worth a write for each record of a flood."""
    return [(finding.get("count"), finding.get("detail")) for finding in findings_in(record)]


def _passing(finding: Mapping[str, Any]) -> tuple[str, ...]:
    times = ("last_seen", "at", "seq", "count")
    return (*times, "detail") if finding.get("nature") == Nature.EVENT else times


def findings_in(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The findings of a record that may come from anybody: what is no finding is left out."""
    findings = record.get("findings")
    return [one for one in findings if isinstance(one, dict)] if isinstance(findings, list) else []


def remembered(record: Mapping[str, Any]) -> Memory:
    """The memory that a record still holds: what a lost file is rebuilt from. Raises RecordError."""
    try:
        standing = tuple(row_in(FindingRow, one).standing(str(record["boot_id"])) for one in findings_in(record))
        cursor = record.get("cursor")
        acknowledged = tuple(one for group in record.get("acknowledged") or () for one in _acknowledged_in(group))
        return Memory(
            machine=str(record["machine"]),
            boot_id=str(record["boot_id"]),
            cursor=whole(cursor),
            standing=standing,
            released=row_in(ReleaseRow, record["released"]).release() if record.get("released") else None,
            acknowledged=acknowledged,
            taken=taken_in(record),
        )
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise RecordError(f"not a record of schema {SCHEMA}: {error!r}") from None


def taken_in(record: Mapping[str, Any]) -> dict[str, str]:
    """By the name of its annotation: the timestamp of the deep record whose findings stand in this one, or did."""
    taken = record.get("taken")
    rows = taken.items() if isinstance(taken, dict) else ()
    return {kind: at for kind, at in rows if kind in DEEP_KINDS and isinstance(at, str)}


def level_4_status(record: Mapping[str, Any]) -> str:
    """What a quarantine run's record says of level 4; '' where it says nothing, or two things."""
    checks = record.get("checks")
    rows = [row for row in checks if isinstance(row, dict)] if isinstance(checks, list) else []
    said = {str(row.get("status")) for row in rows if row.get("check") == LEVEL_4}
    return said.pop() if len(said) == 1 else ""


def passed_since(record: Mapping[str, Any]) -> datetime | None:
    """When the run began whose record says that level 4 passed in it; None for every other record."""
    is_passed = record.get("status") == Status.PASS.value and level_4_status(record) == Status.PASS.value
    if not (is_passed and has_schema(record)):
        return None
    # A fault that came while it ran may not have been there yet where it had looked.
    return moment_or_none(record.get("started", record.get("timestamp")))


def _row_of(standing: Standing, boot_id: str) -> dict[str, Any]:
    row = as_json(finding_row(standing))
    return row if standing.boot_id == boot_id else row | {"boot_id": standing.boot_id}


def _groups(acknowledged: Iterable[Acknowledgement]) -> list[dict[str, Any]]:
    """In few words, so that a node that was released stays a small record: what shares boot and place stands together.

    What stood in the log is told apart by its place there, and needs no time.
    """
    groups: dict[tuple[str, int | None, str], list[str]] = {}
    for one in sorted(acknowledged, key=lambda one: one.cursor is None):
        seen = timestamp(one.last_seen) if one.cursor is None else ""
        groups.setdefault((one.boot_id, one.cursor, seen), []).append(f"{one.reason} {one.subject}")
    return [
        {"boot_id": boot_id, "cursor": cursor, **({"last_seen": seen} if seen else {}), "findings": sorted(set(names))}
        for (boot_id, cursor, seen), names in groups.items()
    ]


def _acknowledged_in(group: Mapping[str, Any]) -> Iterator[Acknowledgement]:
    # What has its place in the log needs no time.
    seen = moment(group["last_seen"]).replace(microsecond=999_999) if "last_seen" in group else EARLIEST
    for name in group["findings"]:
        reason, _, subject = str(name).partition(" ")
        cursor = group["cursor"]
        yield Acknowledgement(reason, subject, str(group["boot_id"]), whole(cursor), seen)


def within_limit(record: dict[str, Any]) -> dict[str, Any]:
    """The record, cut to LONGEST bytes in place; `cut` counts what was lost."""
    longest = LONGEST - _FOR_THE_TAINT
    if _size(record) <= longest:
        return record
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
    return record


def _size(record: Mapping[str, Any]) -> int:
    return len(dump(record).encode())
