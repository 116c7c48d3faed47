"""Signs of life of the command of a reset."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from healthcheck.cluster.errors import ClusterError
from healthcheck.deep import reset_command
from healthcheck.deep.reset_command import Silence
from healthcheck.node.state import NodeState

_LOOK_SECONDS = 2.0


class CommandWatch(threading.Thread):
    """Thread that reads the Node during all steps, and until the end of the process."""

    def __init__(self, read: Callable[[], NodeState]) -> None:
        super().__init__(name="command-watch", daemon=True)
        self._read = read
        self._silence = Silence()

    def run(self) -> None:
        while True:
            with suppress(ClusterError):  # an outage is no silence
                self._silence.observe(self._read().annotations, time.monotonic())
            time.sleep(_LOOK_SECONDS)

    @property
    def is_dead(self) -> bool:
        return self._silence.seconds >= reset_command.SILENT_SECONDS
