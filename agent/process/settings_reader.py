"""Read the agent's settings in a child process: the libraries for it need 8 MiB, and changes are rare.

The child prints one JSON document and exits.
"""

from __future__ import annotations

import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from agent.process.last_settings import load
from agent.process.settings import AgentSettings
from healthcheck.host.command import ChildError, Program, how_it_ended, isolated
from healthcheck.host.streams import complain
from healthcheck.model import Shortage
from healthcheck.settings.reading import BadValue, Settings, SettingsError, read_settings, read_variables
from healthcheck.text.printable import printable

LONGEST_SECONDS = 10.0
"""Deadline of the child. It takes 0.2 s, and almost 1 s on a loaded node."""
_PATIENCE_SECONDS = 1.0
_LONGEST_ANSWER = 16 << 20
"""Limit of the answer: values and texts of at most 1 MiB each, and a character takes at most six bytes in JSON."""
_LONGEST_WORDS = 2000


class SettingsReading(Struct, frozen=True):
    """Result of one read of the settings."""

    own: AgentSettings | None = None
    bad: tuple[BadValue, ...] = ()
    """Reason why the agent's own settings are invalid."""
    settings: Settings | None = None
    shortage: str = ""
    """Reason why the ConfigMap could not be read."""


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

    def read(self) -> Settings:
        """Return the current settings of the cluster. Raises Shortage if they could not be read."""
        reading = self._ask() if self._taken else self._first
        self._taken = True
        if reading.settings is None:
            raise Shortage(reading.shortage)
        return reading.settings

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
            return read()

    def _ask(self) -> SettingsReading:
        """Read in a child. Raises Shortage without an answer: the settings may be valid, but could not be read."""
        try:
            ended = self._child.run(isolated(__name__), LONGEST_SECONDS)
        except ChildError as error:
            raise Shortage(f"the child that reads the settings: {error}") from error
        message = ended.err.decode("utf-8", "replace").strip()
        if ended.code:
            last = printable(message.rpartition("\n")[2], _LONGEST_WORDS)
            raise Shortage(f"the child that reads the settings {how_it_ended(ended.code)}: {last}")
        if message:
            complain("agent", message[:_LONGEST_WORDS])
        try:
            return msgspec.json.decode(ended.out, type=SettingsReading, dec_hook=_from_text)
        except msgspec.MsgspecError as error:
            raise Shortage(f"the child that reads the settings returned an invalid answer: {error}") from error


def read() -> SettingsReading:
    """Read the settings in this process."""
    try:
        own = read_variables(AgentSettings)
    except SettingsError as error:
        return SettingsReading(bad=error.bad)
    try:
        return SettingsReading(own, settings=read_settings(own.config_dir, load(own.state_dir)))
    except Shortage as error:
        return SettingsReading(own, shortage=str(error))


def main() -> None:
    """Print the settings, in the child."""
    gc.disable()  # the process ends before garbage collection would find much
    sys.stdout.buffer.write(msgspec.json.encode(read(), enc_hook=str))


def _from_text(kind: type[Any], text: Any) -> Any:
    if kind is not Path:
        raise NotImplementedError(kind)
    return Path(text)
