"""A quarantine run that `kill -9` ends at one of its own writes: KILL_AT is `NUMBER before` or `NUMBER after`.

With another word it is only counted: each write is a line `WRITE verb resource` on standard output.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any

from healthcheck.cluster import Cluster
from quarantine import __main__ as program


class Dying(Cluster):
    """Every write comes by here; reads change nothing, and dying between two writes is dying before the next."""

    _numbers = count(1)

    def _request(self, verb: str, path: str, resource: str, *rest: Any, **more: Any) -> Any:
        if verb != "patch":
            return super()._request(verb, path, resource, *rest, **more)
        number = next(self._numbers)
        print("WRITE", verb, resource, flush=True)
        die(f"{number} before")
        answer = super()._request(verb, path, resource, *rest, **more)
        die(f"{number} after")
        return answer


def die(moment: str) -> None:
    if os.environ["KILL_AT"] == moment:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    vars(program)["Cluster"] = Dying
    sys.exit(program.main())
