"""A sweeper that `kill -9` ends at one of its own writes: KILL_AT is `NUMBER before` or `NUMBER after`.

With another value it only counts: each write is a line `WRITE verb resource` on standard output. With a file WAIT_AT it
does not die: it creates the file, and waits until it is deleted.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from gpu_healthcheck.healthcheck.cluster import client
from gpu_healthcheck.healthcheck.cluster.connection import Connection
from gpu_healthcheck.sweeper import __main__ as program

_WRITES = ("create", "patch", "delete")


class Dying(Connection):
    """Every write comes by here; reads change nothing, and dying between two of them is dying before the next write."""

    _numbers = count(1)

    def request(self, verb: str, path: str, resource: str, *rest: Any, **more: Any) -> Any:
        if verb not in _WRITES:
            return super().request(verb, path, resource, *rest, **more)
        number = next(self._numbers)
        print("WRITE", verb, resource, flush=True)
        die(f"{number} before")
        answer = super().request(verb, path, resource, *rest, **more)
        die(f"{number} after")
        return answer


def die_at_writes(kind: type[Connection] = Dying) -> None:
    """Let every cluster that this process connects to from now on use such a connection."""
    vars(client)["Connection"] = kind


def die(moment: str) -> None:
    if os.environ["KILL_AT"] != moment:
        return
    if "WAIT_AT" not in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    reached = Path(os.environ["WAIT_AT"])
    reached.touch()
    while reached.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    die_at_writes()
    sys.exit(program.main())
