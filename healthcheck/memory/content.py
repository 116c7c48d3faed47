"""File format of the memory: one JSON object after a line with its digest. Pure functions, no I/O."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, convert, field, to_builtins

from gpu_healthcheck.healthcheck.memory.findings import FirstObservation, Key, Memory, ProcessHit, distinct
from gpu_healthcheck.healthcheck.memory.rows import (
    AcknowledgementRow,
    FindingRow,
    ReleaseRow,
    Seconds,
    acknowledgement_row,
    release_row,
    whole_row,
)
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware, GpuPosition, RdmaPort
from gpu_healthcheck.healthcheck.text import strict_json
from gpu_healthcheck.healthcheck.text.boundary import as_json, position, read_row
from gpu_healthcheck.healthcheck.text.moments import exact, moment

SCHEMA = 2
LONGEST = 4 << 20
"""Longest memory file, in bytes."""
_Row = dict[str, Any]


class _Head(Struct, frozen=True):
    """First line of the file."""

    schema: int
    sha256: str


class _First(Struct, frozen=True, omit_defaults=True):
    """Hardware that the machine had earlier. Fields with a default are written since 0.4.0."""

    efa: int | None
    places: Mapping[str, tuple[int, str]]
    gpus: int | None = None
    rdma: Mapping[str, tuple[Any, ...]] | None = None
    """Name, kind and rate of each port, then its outages."""
    rdma_released: Mapping[str, str] = field(default_factory=dict)


class _Content(Struct, frozen=True, omit_defaults=True):
    """Fields of the memory file. Earlier versions wrote no fields with a default."""

    machine: str
    boot_id: str
    cursor: int | None
    driver_loaded_at: Seconds | None
    findings: tuple[_Row, ...]
    released: _Row | None
    acknowledged: tuple[_Row, ...]
    gpus: Mapping[str, Mapping[str, str]]
    recovery: Mapping[str, int]
    last_xid: Mapping[str, Seconds]
    hits: tuple[tuple[str, str, str, str, Seconds, str], ...]
    """Reason, address, process, place, and both times of each hit."""
    ended: tuple[tuple[str, ...], ...]
    """Reason, address and times."""
    instance_type: str = ""
    taken: Mapping[str, str] = field(default_factory=dict)
    sights: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sight_places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    gpus_boot_id: str = ""
    first: _First = field(default_factory=lambda: _First(None, {}))


def dump(memory: Memory) -> bytes:
    """Return the bytes of the memory file.

    They begin with a digest, so that a partial write is never read as a complete file.
    """
    content = json.dumps(to_builtins(_content(memory))).encode()
    return json.dumps({"schema": SCHEMA, "sha256": _digest(content)}).encode() + b"\n" + content + b"\n"


def parse(raw: bytes) -> Memory:
    """Parse a memory file. Raises ValueError or TypeError if it is not complete."""
    first, _, rest = raw.partition(b"\n")
    head = convert(strict_json.loads(first, LONGEST), _Head)
    if head.schema != SCHEMA:
        raise ValueError(f"schema {head.schema!r}; this version reads {SCHEMA}")
    body = rest.removesuffix(b"\n")
    if head.sha256 != _digest(body):
        raise ValueError("its digest is not that of its content")
    return _memory(convert(strict_json.loads(body, LONGEST), _Content))


def _content(memory: Memory) -> _Content:
    return _Content(
        machine=memory.machine,
        boot_id=memory.boot_id,
        cursor=memory.cursor,
        driver_loaded_at=memory.driver_loaded_at,
        instance_type=memory.instance_type,
        taken=memory.adopted_records,
        findings=tuple(as_json(whole_row(finding), exact) for finding in memory.active),
        released=as_json(release_row(memory.released), exact) if memory.released else None,
        acknowledged=tuple(as_json(acknowledgement_row(event), exact) for event in memory.acknowledged),
        sights={
            kind: (observation.name, exact(observation.at)) for kind, observation in memory.first_observations.items()
        },
        sight_places={
            kind: (observation.boot_id, observation.cursor)
            for kind, observation in memory.first_observations.items()
            if observation.boot_id
        },
        gpus=memory.gpus,
        gpus_boot_id=memory.gpus_boot_id,
        recovery=memory.recovery,
        last_xid=memory.last_xid,
        hits=tuple(
            (*key, hit.process, hit.place, hit.at, exact(hit.seen)) for key, hits in memory.hits.items() for hit in hits
        ),
        ended=tuple((*key, *map(exact, times)) for key, times in memory.ended.items()),
        first=_first_row(memory.first),
    )


def _memory(content: _Content) -> Memory:
    hits: dict[Key, tuple[ProcessHit, ...]] = {}
    for reason, address, process, place, at, seen in content.hits:
        hits[reason, address] = (*hits.get((reason, address), ()), ProcessHit(process, place, at, moment(seen)))
    return Memory(
        machine=content.machine,
        boot_id=content.boot_id,
        cursor=None if content.cursor is None else position(content.cursor),
        driver_loaded_at=content.driver_loaded_at,
        active=tuple(read_row(FindingRow, row).active_finding() for row in content.findings),
        released=read_row(ReleaseRow, content.released).release() if content.released is not None else None,
        acknowledged=tuple(read_row(AcknowledgementRow, row).acknowledgement() for row in content.acknowledged),
        gpus=content.gpus,
        gpus_boot_id=content.gpus_boot_id,
        recovery=content.recovery,
        last_xid=content.last_xid,
        hits={key: distinct(entries) for key, entries in hits.items()},
        ended={(reason, address): tuple(map(moment, times)) for reason, address, *times in content.ended},
        first=_first(content.first, content.gpus),
        instance_type=content.instance_type,
        adopted_records=content.taken,
        first_observations={kind: _observation(content, kind) for kind in content.sights},
    )


def _observation(content: _Content, kind: str) -> FirstObservation:
    """Return an observation. 0.3.0 wrote none, and later versions also its position in the kernel log."""
    name, at = content.sights[kind]
    return FirstObservation(name, moment(at), *content.sight_places.get(kind, ("", -1)))


def _first_row(hardware: EarlierHardware) -> _First:
    positions = {address: (position.numa_node, position.switch) for address, position in hardware.places.items()}
    if hardware.rdma is None:
        return _First(hardware.efa, positions, hardware.gpus)
    return _First(
        hardware.efa,
        positions,
        hardware.gpus,
        {address: (port.name, port.kind, port.rate, *port.outages) for address, port in hardware.rdma.items()},
        {address: port.released for address, port in hardware.rdma.items() if port.released},
    )


def _first(row: _First, gpus: Mapping[str, Mapping[str, str]]) -> EarlierHardware:
    positions = {address: GpuPosition(*position) for address, position in row.places.items()}
    if row.gpus is not None:
        return EarlierHardware(row.efa, positions, row.gpus, _rdma_ports(row))
    # 0.3.0 stored no count: count each observed GPU once, even if it answered at several addresses.
    identities = {_identity(gpus.get(address, {})) or address for address in positions}
    return EarlierHardware(row.efa, positions, len(identities) or None)


def _rdma_ports(row: _First) -> dict[str, RdmaPort] | None:
    if row.rdma is None:
        return None
    ports = {}
    for address, (name, kind, rate, *outages) in row.rdma.items():
        port = RdmaPort(name, kind, rate, tuple(outages), released=row.rdma_released.get(address, ""))
        ports[address] = convert(to_builtins(port), RdmaPort)
    return ports


def _identity(about: Mapping[str, str]) -> str:
    return about.get("uuid") or about.get("serial") or ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
