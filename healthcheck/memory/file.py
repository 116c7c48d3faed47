"""The memory's file on the node: replaced whole or not at all, written by one agent at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from healthcheck.checks.expectation import FirstSeen, Place
from healthcheck.host.opening import refuse_shortage
from healthcheck.memory.findings import Hit, Key, Memory, Release, Sight, Standing
from healthcheck.memory.rows import (
    acknowledgement_in,
    acknowledgement_row,
    finding_row,
    release_in,
    seconds,
    standing_in,
    whole,
)
from healthcheck.text import strict_json
from healthcheck.text.moments import exact, moment

SCHEMA = 2
_LONGEST = 4 << 20


class MemoryFileError(Exception):
    """The file can't be read or written. The message says why."""


@dataclass
class MemoryFile:
    """`memory.json` in a directory of the node. Nobody writes it but the holder of the lock beside it."""

    directory: Path
    _lock: int | None = field(default=None, init=False)

    @property
    def path(self) -> Path:
        return self.directory / "memory.json"

    def acquire(self) -> bool:
        """Become the one who writes. False while another agent is.

        Raises MemoryFileError without a directory, and Shortage where nobody can tell whether another agent is.
        """
        if self._lock is not None:
            return True
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            refuse_shortage(error)
            raise MemoryFileError(f"{self.directory}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except OSError as error:
            os.close(lock)
            raise MemoryFileError(f"{self.directory}: no lock: {error.strerror}") from error
        self._lock = lock
        return True

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> Memory | None:
        """What was remembered; None when nothing was. A file that is none is set aside, and MemoryFileError says so.

        Raises Shortage where it may be as it was: nobody may write another one in its place.
        """
        try:
            with self.path.open("rb") as file:
                raw = file.read(_LONGEST + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            refuse_shortage(error)
            raise MemoryFileError(f"{self.path}: {error.strerror}") from error
        try:
            return _parse(raw)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise MemoryFileError(f"{self.path}: {error!r}; {self.set_aside()}") from error

    def set_aside(self, why: str = "unreadable") -> str:
        """Keep the file under another name, for a person to look at; says where."""
        aside = self.path.with_suffix(f".{why}")
        try:
            self.path.replace(aside)
        except OSError as error:
            return f"it can't be set aside: {error.strerror}"
        return f"set aside as {aside.name}"

    def write(self, memory: Memory) -> None:
        """Replace the file, on the disk before this returns. Raises MemoryFileError; the old file then stays."""
        if self._lock is None:
            raise MemoryFileError(f"{self.path}: only the holder of the lock writes")
        new = self.path.with_suffix(".new")
        try:
            with new.open("wb") as file:
                file.write(_content(memory))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            _sync_directory(self.directory)
        except OSError as error:
            raise MemoryFileError(f"{self.path}: {error.strerror}") from error


def _content(memory: Memory) -> bytes:
    """The memory as one JSON object, with a digest of it in front: half a write is never taken for a whole one."""
    content = json.dumps(
        {
            "machine": memory.machine,
            "boot_id": memory.boot_id,
            "cursor": memory.cursor,
            "driver_loaded_at": memory.driver_loaded_at,
            "instance_type": memory.instance_type,
            "taken": dict(memory.taken),
            "findings": [finding_row(one) | _own(one) for one in memory.standing],
            "released": _release_row(memory.released) if memory.released else None,
            "acknowledged": [
                acknowledgement_row(one) | {"last_seen": exact(one.last_seen)} for one in memory.acknowledged
            ],
            "sights": {kind: [one.name, exact(one.at)] for kind, one in memory.sights.items()},
            "gpus": {address: dict(about) for address, about in memory.gpus.items()},
            "recovery": dict(memory.recovery),
            "last_xid": dict(memory.last_xid),
            "hits": [[*key, *_hit_row(hit)] for key, hits in memory.hits.items() for hit in hits],
            "ended": [[*key, *(exact(at) for at in ends)] for key, ends in memory.ended.items()],
            "first": {
                "efa": memory.first.efa,
                "places": {address: [one.numa_node, one.switch] for address, one in memory.first.places.items()},
            },
        }
    ).encode()
    return json.dumps({"schema": SCHEMA, "sha256": _digest(content)}).encode() + b"\n" + content + b"\n"


def _own(one: Standing) -> dict[str, Any]:
    """What a record on the Node has no use for: what is read back is what was written, to the last digit."""
    return {
        "boot_id": one.boot_id,
        "escalates": one.finding.escalates,
        "first_seen": exact(one.first_seen),
        "last_seen": exact(one.last_seen),
        "at": one.last_at,
    }


def _release_row(release: Release) -> dict[str, str]:
    return {"by": release.by, "reason": release.reason, "at": exact(release.at)}


def _hit_row(hit: Hit) -> tuple[Any, ...]:
    return (hit.process, hit.place, hit.at, exact(hit.seen))


def _parse(raw: bytes) -> Memory:
    head, _, rest = raw.partition(b"\n")
    header = strict_json.loads(head, _LONGEST)
    if header["schema"] != SCHEMA:
        raise ValueError(f"schema {header['schema']!r}; this version reads {SCHEMA}")
    body = rest.removesuffix(b"\n")
    if header["sha256"] != _digest(body):
        raise ValueError("its digest is not that of its content")
    return _memory(strict_json.loads(body, _LONGEST))


def _memory(content: Mapping[str, Any]) -> Memory:
    cursor, loaded, released = content["cursor"], content["driver_loaded_at"], content["released"]
    hits: dict[Key, tuple[Hit, ...]] = {}
    for reason, address, process, place, at, seen in content["hits"]:
        hit = Hit(str(process), str(place), seconds(at), moment(seen))
        hits[reason, address] = (*hits.get((reason, address), ()), hit)
    return Memory(
        machine=str(content["machine"]),
        boot_id=str(content["boot_id"]),
        cursor=None if cursor is None else whole(cursor),
        driver_loaded_at=None if loaded is None else seconds(loaded),
        standing=tuple(_standing(row) for row in content["findings"]),
        released=None if released is None else release_in(released),
        acknowledged=tuple(acknowledgement_in(row) for row in content["acknowledged"]),
        gpus={str(address): dict(about) for address, about in content["gpus"].items()},
        recovery={str(address): int(action) for address, action in content["recovery"].items()},
        last_xid={str(address): seconds(at) for address, at in content["last_xid"].items()},
        hits=hits,
        ended={(row[0], row[1]): tuple(moment(at) for at in row[2:]) for row in content["ended"]},
        # An earlier version of this program did not write these.
        first=_first(content["first"]) if "first" in content else FirstSeen(),
        instance_type=str(content.get("instance_type", "")),
        taken={str(kind): str(at) for kind, at in content.get("taken", {}).items()},
        sights={str(kind): Sight(str(name), moment(at)) for kind, (name, at) in content.get("sights", {}).items()},
    )


def _first(content: Mapping[str, Any]) -> FirstSeen:
    efa = content["efa"]
    places = {str(address): Place(int(numa), str(switch)) for address, (numa, switch) in content["places"].items()}
    return FirstSeen(None if efa is None else int(efa), places)


def _standing(row: Mapping[str, Any]) -> Standing:
    one = standing_in(row, row["boot_id"])
    return replace(one, finding=replace(one.finding, escalates=bool(row["escalates"])))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
