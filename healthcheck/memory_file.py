"""The memory's file on the node: replaced whole or not at all, written by one agent at a time."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from healthcheck import record as records
from healthcheck.memory import Memory

SCHEMA = 1
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
        """Become the one who writes. False while another agent is. Raises MemoryFileError without a directory."""
        if self._lock is not None:
            return True
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
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
        """What was remembered; None when nothing was. A file that is none is set aside, and MemoryFileError says so."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(_LONGEST + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MemoryFileError(f"{self.path}: {error.strerror}") from error
        try:
            return _parse(raw)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise MemoryFileError(f"{self.path}: {error!r}; {self._set_aside()}") from error

    def _set_aside(self) -> str:
        aside = self.path.with_suffix(".unreadable")
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
                file.write(json.dumps(_content(memory)).encode())
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            _sync_directory(self.directory)
        except OSError as error:
            raise MemoryFileError(f"{self.path}: {error.strerror}") from error


def _content(memory: Memory) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "machine": memory.machine,
        "boot_id": memory.boot_id,
        "cursor": memory.cursor,
        "driver_loaded_at": memory.driver_loaded_at,
        "findings": [records.finding_row(one) | {"boot_id": one.boot_id} for one in memory.standing],
    }


def _parse(raw: bytes) -> Memory:
    if len(raw) > _LONGEST:
        raise ValueError(f"more than {_LONGEST} bytes")
    content = json.loads(raw)
    if content["schema"] != SCHEMA:
        raise ValueError(f"schema {content['schema']!r}; this version reads {SCHEMA}")
    cursor, loaded = content["cursor"], content["driver_loaded_at"]
    return Memory(
        machine=str(content["machine"]),
        boot_id=str(content["boot_id"]),
        cursor=None if cursor is None else int(cursor),
        driver_loaded_at=None if loaded is None else float(loaded),
        standing=tuple(records.standing_in(row, row["boot_id"]) for row in content["findings"]),
    )


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
