"""Read the agent's settings in a child process: the reader needs 8 MiB, and changes are rare."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from msgspec import MsgspecError

from agent.process import settings_child
from agent.process.settings import AgentSettings
from agent.process.settings_child import SettingsReading
from healthcheck.host.command import ChildError, Program, how_it_ended, isolated
from healthcheck.host.streams import complain
from healthcheck.model import Shortage
from healthcheck.settings.values import SettingsError, Written
from healthcheck.text.printable import printable

LONGEST_SECONDS = 10.0
"""Deadline of the child. It takes 0.2 s, and almost 1 s on a loaded node."""
_PATIENCE_SECONDS = 1.0
_LONGEST_ANSWER = 8 << 20
"""Limit of the answer: a ConfigMap has at most 1 MiB, and a character takes at most six bytes in JSON."""
_LONGEST_WORDS = 2000


class SettingsReader:
    """Reader of the settings. The first read starts at once, in parallel with the caller."""

    def __init__(self) -> None:
        self._child = Program(dict(os.environ), _PATIENCE_SECONDS, _LONGEST_ANSWER)
        thread = ThreadPoolExecutor(1, "settings")
        self._begun = thread.submit(self._ask)
        thread.shutdown(wait=False)
        self._taken = False

    def own(self) -> AgentSettings:
        """Return the agent's settings. Raises SettingsError, which names each invalid variable."""
        if self._first.own is None:
            raise SettingsError(self._first.bad)
        return self._first.own

    def read(self) -> Written:
        """Return the current ConfigMap and environment. Raises Shortage if they could not be read."""
        reading = self._ask() if self._taken else self._first
        self._taken = True
        if reading.written is None:
            raise Shortage(reading.shortage)
        return reading.written

    def end(self) -> int | None:
        """End the running child, and return its pid if it can't be ended."""
        return self._child.end()

    @cached_property
    def _first(self) -> SettingsReading:
        try:
            return self._begun.result()
        except Shortage as error:
            # On a node without free processes, the agent reads the settings itself and needs more memory.
            complain("agent", f"the agent's own process reads the settings: {error}")
            return settings_child.read()

    def _ask(self) -> SettingsReading:
        """Read in a child. Raises Shortage without an answer: the settings may be valid, but could not be read."""
        try:
            ended = self._child.run(isolated("agent.process.settings_child"), LONGEST_SECONDS)
        except ChildError as error:
            raise Shortage(f"the child that reads the settings: {error}") from error
        message = ended.err.decode("utf-8", "replace").strip()
        if ended.code:
            last = printable(message.rpartition("\n")[2], _LONGEST_WORDS)
            raise Shortage(f"the child that reads the settings {how_it_ended(ended.code)}: {last}")
        if message:
            complain("agent", message[:_LONGEST_WORDS])
        try:
            return settings_child.decoded(ended.out)
        except MsgspecError as error:
            raise Shortage(f"the child that reads the settings returned an invalid answer: {error}") from error
