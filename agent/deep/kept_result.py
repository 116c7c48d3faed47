"""Result of the agent's own deep diagnostic, kept on the disk until the Node has it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import structlog
from msgspec import Struct

from healthcheck.host import node_file
from healthcheck.host.node_file import NotAFile
from healthcheck.verdict import record as records
from healthcheck.verdict.record import RunRecord

log = structlog.get_logger()

_NAME = "sweep-result.json"
_LONGEST = 4 * records.LONGEST


class KeptResult(Struct, frozen=True):
    """Store of the result. `folder` None: no disk, as in a dry run."""

    folder: Path | None

    @property
    def is_there(self) -> bool:
        return self._path is not None and self._path.exists() and not self._path.is_dir()

    def keep(self, record: RunRecord) -> None:
        if self._path is None:
            return
        try:
            node_file.replace_whole(self._path, records.dump(record).encode())
        except OSError as error:
            log.warning("deep test: the result can't be stored on the disk", error=error.strerror)

    def read(self) -> RunRecord | None:
        """Return the record; None if it is missing or unreadable. A permanently unreadable record is dropped."""
        if self._path is None or not self.is_there:
            return None
        try:
            return records.parse(RunRecord, node_file.read_start(self._path, _LONGEST).decode())
        except NotAFile as error:
            log.warning("deep test: a stored result is not a regular file", error=error.strerror)
            self.drop()
        except OSError as error:
            log.warning("deep test: a stored result can't be read now", error=error.strerror)
        except ValueError as error:
            log.warning("deep test: a stored result can't be read", error=str(error))
            self.drop()
        return None

    def drop(self) -> None:
        if self._path is not None:
            with suppress(IsADirectoryError):
                self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path | None:
        return self.folder / _NAME if self.folder is not None else None
