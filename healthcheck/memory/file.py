"""Memory file on the node: replaced atomically, written by one agent at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gpu_healthcheck.healthcheck.host import node_file
from gpu_healthcheck.healthcheck.host.opening import refuse_shortage
from gpu_healthcheck.healthcheck.memory import content
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Memory


class MemoryFileError(Exception):
    """Error for a memory file that can't be read or written. The message contains the reason."""


class _MalformedError(MemoryFileError):
    """Error for a file that is not a memory file."""


@dataclass
class MemoryFile:
    """File `memory.json` in a directory of the node. Only the owner of the directory's lock writes it."""

    directory: Path
    _lock: int | None = field(default=None, init=False)
    unlocked: str = field(default="", init=False)
    """Reason why the lock cannot be acquired, so that nothing is written; '' without one."""

    @property
    def path(self) -> Path:
        return self.directory / "memory.json"

    def acquire(self) -> bool:
        """Acquire the lock for writing. Return False if another agent has it.

        Raises MemoryFileError if there is no directory, and Shortage if the lock's state can't be determined.
        """
        if self._lock is not None:
            return True
        try:
            self._lock = node_file.lock(self.directory / "lock")
        except OSError as error:
            refuse_shortage(error)
            self.unlocked = f"{self.directory}: the lock: {error.strerror}; the memory is not saved to disk"
            raise MemoryFileError(self.unlocked) from error
        self.unlocked = ""
        return self._lock is not None

    def unlock(self) -> None:
        if self._lock is not None:
            node_file.unlock(self._lock)
            self._lock = None

    def read(self) -> Memory | None:
        """Return the stored memory; None if there is none.

        A malformed file is set aside, and MemoryFileError reports it. Raises Shortage if the file may be intact: no
        other file may replace it then.
        """
        try:
            return self._read()
        except _MalformedError as error:
            raise MemoryFileError(f"{error}; {self.set_aside()}") from error

    def acknowledged(self, machine: str) -> tuple[Acknowledgement, ...]:
        """Return the events that people released on this machine, without a lock. Raises MemoryFileError."""
        memory = self._read()
        if memory is None or (memory.machine and machine and memory.machine != machine):
            return ()
        return memory.acknowledged

    def _read(self) -> Memory | None:
        try:
            raw = node_file.read_start(self.path, content.LONGEST + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            refuse_shortage(error)
            raise MemoryFileError(f"{self.path}: {error.strerror}") from error
        try:
            return content.parse(raw)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise _MalformedError(f"{self.path}: {error!r}") from error

    def set_aside(self, why: str = "unreadable") -> str:
        """Keep the file under another name, for a person to examine, and return a text with that name."""
        aside = self.path.with_suffix(f".{why}")
        try:
            self.path.replace(aside)
        except OSError as error:
            return f"it can't be renamed: {error.strerror}"
        return f"renamed to {aside.name}"

    def write(self, memory: Memory) -> None:
        """Replace the file and sync it to disk. Raises MemoryFileError; the old file then remains."""
        if self._lock is None:
            raise MemoryFileError(f"{self.path}: only the owner of the lock may write")
        try:
            node_file.replace_whole(self.path, content.dump(memory))
        except OSError as error:
            raise MemoryFileError(f"{self.path}: {error.strerror}") from error
