"""Child process that reads the agent's settings and exits with one JSON document as the answer."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from agent.process.settings import AgentSettings
from agent.process.unused_modules import UNUSED_BY_THE_READER, without_unused_parts
from healthcheck.model import Shortage
from healthcheck.settings.values import BadValue, SettingsError, Written


class SettingsReading(Struct, frozen=True):
    """Result of one read of the settings."""

    own: AgentSettings | None = None
    bad: tuple[BadValue, ...] = ()
    """Reason why the agent's own settings are invalid."""
    written: Written | None = None
    shortage: str = ""
    """Reason why the ConfigMap could not be read."""


def read() -> SettingsReading:
    from healthcheck.settings.sources import read_files, read_variables  # noqa: PLC0415 - the purpose of this child

    try:
        own = read_variables(AgentSettings)
    except SettingsError as error:
        return SettingsReading(bad=error.bad)
    try:
        return SettingsReading(own, written=read_files(own.config_dir))
    except Shortage as error:
        return SettingsReading(own, shortage=str(error))


def decoded(answer: bytes) -> SettingsReading:
    """Parse the answer of the child. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(answer, type=SettingsReading, dec_hook=_from_text)


def main() -> None:
    gc.disable()  # the process ends before garbage collection would find much
    with without_unused_parts(UNUSED_BY_THE_READER):
        reading = read()
    sys.stdout.buffer.write(msgspec.json.encode(reading, enc_hook=str))


def _from_text(kind: type[Any], text: Any) -> Any:
    if kind is not Path:
        raise NotImplementedError(kind)
    return Path(text)
