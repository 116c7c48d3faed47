"""The ConfigMap as the agents read it: its valid values, and the keys without effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from cli import index

if TYPE_CHECKING:
    from healthcheck.settings.reading import Settings

_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}", re.ASCII)
"""Keys of a ConfigMap."""


class JudgedConfig(Struct, frozen=True):
    """Settings of a ConfigMap, without those of this machine's environment; and its keys without effect."""

    settings: Settings
    unknown: tuple[str, ...]
    reasons: tuple[str, ...]
    """A text for each invalid value, and one for all unknown keys."""

    @property
    def unused(self) -> tuple[str, ...]:
        return (*(value.key for value in self.settings.bad), *self.unknown)


def judged(written: Mapping[str, str]) -> JudgedConfig:
    from healthcheck.settings.reading import read_settings, unknown_keys  # noqa: PLC0415 - loads pydantic

    with TemporaryDirectory() as folder:
        for key, value in written.items():
            if _KEY.fullmatch(key):
                (Path(folder) / key).write_text(value, encoding="utf-8")
        settings, unknown = read_settings(Path(folder)), unknown_keys(Path(folder))
    bad = tuple(value for value in settings.bad if value.where.startswith(folder))
    reasons = [*(value.words for value in bad), *([str(unknown)] if unknown else ())]
    texts = tuple(text.replace(f"{folder}/", "").removeprefix(f"{folder}: ") for text in reasons)
    return JudgedConfig(replace(settings, bad=bad), tuple(key for key, _ in unknown.keys) if unknown else (), texts)


def unused_keys(written: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys without effect. The reader of the settings is loaded only if a value is not the default."""
    defaults = index.defaults()
    edited = {key: value for key, value in written.items() if defaults.get(key) != value}
    return judged(edited).unused if edited else ()
