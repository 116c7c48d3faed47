"""The memory's file on the node: replaced whole or not at all, written by one agent at a time."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path

from healthcheck.host.opening import refuse_shortage
from healthcheck.memory import content
from healthcheck.memory.findings import Memory


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
                raw = file.read(content.LONGEST + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            refuse_shortage(error)
            raise MemoryFileError(f"{self.path}: {error.strerror}") from error
        try:
            return content.parse(raw)
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
                file.write(content.dump(memory))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            _sync_directory(self.directory)
        except OSError as error:
            raise MemoryFileError(f"{self.path}: {error.strerror}") from error


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
