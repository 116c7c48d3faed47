"""File in the state directory: the last failure that ended the agent, and its number in a row."""

from __future__ import annotations

import json
import traceback
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from healthcheck.host import node_file
from healthcheck.text.printable import printable

_LONGEST = 4096


class LastFailure(Struct, frozen=True):
    """`words` names the failure and its source line, to compare it with the next one."""

    words: str = ""
    times: int = 0


def read_failure(directory: Path) -> LastFailure:
    """Return the last failure; an empty one if the file can't be read."""
    try:
        content = json.loads(node_file.read_start(_file(directory), _LONGEST))
        return LastFailure(printable(str(content["words"])), int(content["times"]))
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return LastFailure()


def note_failure(directory: Path, thread: str, error: BaseException | None) -> None:
    """Count the failure. A failing disk must not hide the failure itself."""
    last = traceback.extract_tb(error.__traceback__, limit=-1) if error is not None else []
    where = "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in last)
    words = f"thread {thread}: {type(error).__name__}{where}"
    before = read_failure(directory)
    times = before.times + 1 if before.words == words else 1
    content = json.dumps({"words": words, "times": times}).encode()
    with suppress(OSError):
        # No sync to the disk: the next process on this machine reads it from the page cache.
        node_file.replace_whole(_file(directory), content, on_disk=False)


def forget_failure(directory: Path) -> None:
    """Delete the file. A failing disk keeps it, and does not end the cycle."""
    with suppress(OSError):
        _file(directory).unlink()


def _file(directory: Path) -> Path:
    return directory / "failure.json"
