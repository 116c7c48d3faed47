"""Kill a process at one of its calls on the files of a directory, to get the state that `kill -9` leaves.

Run the program once with `environment(directory, log=…)`; `calls_in(log)` then lists its calls. Run it again for each
of their numbers, before and after the call, and check the content of the directory.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_healthcheck.sim import c_library

SOURCE = Path(__file__).parent / "kill_at.c"

When = Literal["before", "after"]


@dataclass(frozen=True)
class FileCall:
    """Call on a file of the directory. `number` counts from 1 in the order of the calls' starts."""

    number: int
    name: str
    path: Path


def environment(directory: Path, *, call: int = 0, when: When = "before", log: Path | None = None) -> dict[str, str]:
    """Return additions to a program's environment. `call` 0 kills nothing; `log` is outside the directory."""
    preloaded = [str(c_library.build(SOURCE, "kill-at")), os.environ.get("LD_PRELOAD", "")]
    variables = {
        "LD_PRELOAD": " ".join(filter(None, preloaded)),
        "KILL_AT_DIR": str(directory.resolve()),
        "KILL_AT_CALL": str(call),
        "KILL_AT_WHEN": when,
    }
    return variables | ({"KILL_AT_LOG": str(log)} if log else {})


def calls_in(log: Path) -> list[FileCall]:
    """Return the started calls, including the one at which the process was killed."""
    rows = (line.split(" ", 2) for line in log.read_text().splitlines())
    return [FileCall(int(number), name, Path(path)) for number, name, path in rows]
