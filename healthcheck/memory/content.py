"""File format of the memory: one JSON object after a line with its digest. Pure functions, no I/O."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from healthcheck.memory.findings import FirstObservation, Key, Memory, ProcessHit, distinct
from healthcheck.memory.rows import (
    AcknowledgementRow,
    FindingRow,
    ReleaseRow,
    acknowledgement_row,
    release_row,
    whole_row,
)
from healthcheck.model.node_facts import EarlierHardware, GpuPosition, RdmaPort
from healthcheck.text import strict_json
from healthcheck.text.json_rows import (
    NULL,
    JsonObject,
    as_json,
    names,
    only_rows,
    row,
    row_in,
    seconds,
    text,
    whole,
    word,
)
from healthcheck.text.moments import exact, moment

SCHEMA = 2
LONGEST = 4 << 20
"""Longest memory file, in bytes."""


def _table(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _lists(value: object) -> tuple[Any, ...] | None:
    return tuple(value) if isinstance(value, list) and all(isinstance(entry, list) for entry in value) else None


class _FirstRow(JsonObject, frozen=True):
    efa: Annotated[int | None, whole, NULL] = None
    gpus: Annotated[int | None, whole, NULL] = None
    """Written since 0.4.0."""
    places: Annotated[Mapping[str, tuple[int, str]] | None, _table] = None
    rdma: Annotated[Mapping[str, tuple[Any, ...]] | None, _table, NULL] = None
    """Written since 0.4.0: name, kind and rate of each port, then its outages."""
    rdma_released: Annotated[Mapping[str, str] | None, names] = None


class _Content(JsonObject, frozen=True):
    """Fields of the memory file.

    Files of earlier versions of this program can lack `instance_type` and all fields after it.
    """

    machine: Annotated[str | None, word] = None
    boot_id: Annotated[str | None, word] = None
    cursor: Annotated[int | None, whole, NULL] = None
    driver_loaded_at: Annotated[float | None, seconds, NULL] = None
    instance_type: Annotated[str | None, word] = None
    taken: Annotated[Mapping[str, str] | None, names] = None
    findings: Annotated[tuple[FindingRow, ...] | None, only_rows(FindingRow)] = None
    released: Annotated[ReleaseRow | None, row(ReleaseRow), NULL] = None
    acknowledged: Annotated[tuple[AcknowledgementRow, ...] | None, only_rows(AcknowledgementRow)] = None
    sights: Annotated[Mapping[str, tuple[str, datetime]] | None, _table] = None
    sight_places: Annotated[Mapping[str, tuple[str, int]] | None, _table] = None
    gpus: Annotated[Mapping[str, Mapping[str, str]] | None, _table] = None
    gpus_boot_id: Annotated[str | None, word] = None
    recovery: Annotated[Mapping[str, int] | None, _table] = None
    last_xid: Annotated[Mapping[str, float] | None, _table] = None
    hits: Annotated[tuple[Any, ...] | None, _lists] = None
    ended: Annotated[tuple[Any, ...] | None, _lists] = None
    first: Annotated[_FirstRow | None, row(_FirstRow)] = None


class _Head(JsonObject, frozen=True):
    """First line of the file."""

    schema: Annotated[int | None, whole] = None
    sha256: Annotated[str | None, text] = None


def dump(memory: Memory) -> bytes:
    """Return the bytes of the memory file.

    They begin with a digest, so that a partial write is never read as a complete file.
    """
    content = json.dumps(as_json(_content(memory), exact)).encode()
    return json.dumps(as_json(_Head(SCHEMA, _digest(content)))).encode() + b"\n" + content + b"\n"


def parse(raw: bytes) -> Memory:
    """Parse a memory file. Raises one of many errors if it is not complete."""
    first, _, rest = raw.partition(b"\n")
    head = row_in(_Head, strict_json.loads(first, LONGEST))
    if head.schema != SCHEMA:
        raise ValueError(f"schema {head.schema!r}; this version reads {SCHEMA}")
    body = rest.removesuffix(b"\n")
    if head.sha256 != _digest(body):
        raise ValueError("its digest is not that of its content")
    return _memory(row_in(_Content, strict_json.loads(body, LONGEST)))


def _content(memory: Memory) -> _Content:
    places = {address: (position.numa_node, position.switch) for address, position in memory.first.places.items()}
    return _Content(
        machine=memory.machine,
        boot_id=memory.boot_id,
        cursor=memory.cursor,
        driver_loaded_at=memory.driver_loaded_at,
        instance_type=memory.instance_type,
        taken=memory.adopted_records,
        findings=tuple(map(whole_row, memory.active)),
        released=release_row(memory.released) if memory.released else None,
        acknowledged=tuple(map(acknowledgement_row, memory.acknowledged)),
        sights={kind: (observation.name, observation.at) for kind, observation in memory.first_observations.items()},
        sight_places={
            kind: (observation.boot_id, observation.cursor)
            for kind, observation in memory.first_observations.items()
            if observation.boot_id
        },
        gpus=memory.gpus,
        gpus_boot_id=memory.gpus_boot_id or None,
        recovery=memory.recovery,
        last_xid=memory.last_xid,
        hits=tuple((*at, hit.process, hit.place, hit.at, hit.seen) for at, hits in memory.hits.items() for hit in hits),
        ended=tuple((*at, *ends) for at, ends in memory.ended.items()),
        first=_FirstRow(efa=memory.first.efa, gpus=memory.first.gpus, places=places, **_rdma_rows(memory)),
    )


def _memory(content: _Content) -> Memory:
    content.must_have(
        *("machine", "boot_id", "findings", "acknowledged", "gpus", "recovery", "last_xid", "hits", "ended")
    )
    hits: dict[Key, tuple[ProcessHit, ...]] = {}
    for reason, address, process, place, at, seen in content.hits or ():
        key = (str(reason), str(address))
        hits[key] = (*hits.get(key, ()), ProcessHit(str(process), str(place), _seconds(at), moment(seen)))
    return Memory(
        machine=content.machine or "",
        boot_id=content.boot_id or "",
        cursor=content.cursor,
        driver_loaded_at=content.driver_loaded_at,
        active=tuple(row.active_finding() for row in content.findings or ()),
        released=content.released.release() if content.released else None,
        acknowledged=tuple(row.acknowledgement() for row in content.acknowledged or ()),
        gpus={address: names(about) or {} for address, about in (content.gpus or {}).items()},
        gpus_boot_id=content.gpus_boot_id or "",
        recovery={address: int(action) for address, action in (content.recovery or {}).items()},
        last_xid={address: _seconds(at) for address, at in (content.last_xid or {}).items()},
        hits={key: distinct(entries) for key, entries in hits.items()},
        ended={(str(entry[0]), str(entry[1])): tuple(moment(at) for at in entry[2:]) for entry in content.ended or ()},
        first=_first(content.first, content.gpus or {}) if content.first else EarlierHardware(),
        instance_type=content.instance_type or "",
        adopted_records=content.taken or {},
        first_observations=_first_observations(content),
    )


def _first_observations(content: _Content) -> dict[str, FirstObservation]:
    """Return the recorded observations.

    Earlier versions of this program wrote them without their positions in the kernel log.
    """
    places = content.sight_places or {}
    observations = {}
    for kind, (name, at) in (content.sights or {}).items():
        boot_id, cursor = places.get(kind, ("", -1))
        observations[kind] = FirstObservation(str(name), moment(at), str(boot_id), int(cursor))
    return observations


def _first(row: _FirstRow, gpus: Mapping[str, Mapping[str, str]]) -> EarlierHardware:
    row.must_have("places")
    places = {address: GpuPosition(int(numa), str(switch)) for address, (numa, switch) in (row.places or {}).items()}
    if row.gpus is not None:
        return EarlierHardware(row.efa, places, row.gpus, _rdma_ports(row))
    # 0.3.0 stored no count: count each observed GPU once, even if it answered at several addresses.
    identities = {_identity(gpus.get(address, {})) or address for address in places}
    return EarlierHardware(row.efa, places, len(identities) or None)


def _rdma_rows(memory: Memory) -> dict[str, Any]:
    if memory.first.rdma is None:
        return {"rdma": None}
    ports = memory.first.rdma.items()
    released = {address: port.released for address, port in ports if port.released}
    rows = {address: (port.name, port.kind, port.rate, *port.outages) for address, port in ports}
    return {"rdma": rows, "rdma_released": released or None}


def _rdma_ports(row: _FirstRow) -> dict[str, RdmaPort] | None:
    if row.rdma is None:
        return None
    ports, released = {}, row.rdma_released or {}
    for address, (name, kind, rate, *outages) in row.rdma.items():
        times = tuple(map(_seconds, outages))
        ports[address] = RdmaPort(str(name), str(kind), _seconds(rate), times, released=released.get(address, ""))
    return ports


def _identity(about: Mapping[str, str]) -> str:
    return about.get("uuid") or about.get("serial") or ""


def _seconds(value: object) -> float:
    number = seconds(value)
    if number is None:
        raise ValueError("it must be a number of seconds")
    return number


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
