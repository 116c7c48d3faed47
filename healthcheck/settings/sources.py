"""The only module that uses pydantic: it reads settings from ConfigMap files and the environment.

pydantic uses 8 MiB, so an agent runs it in a child process (docs/decisions/notes.md).
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import NODEFAULT, Struct
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as SourceError

from healthcheck.host.opening import is_absent, is_folder, refuse_shortage
from healthcheck.model import ProbeError, Severity, Shortage
from healthcheck.settings.declared import Setting, settings_of
from healthcheck.settings.files import not_allowed, seen_in
from healthcheck.settings.values import (
    ENVIRONMENT,
    NO_KEY,
    OVERRIDES,
    BadValue,
    NodeSettings,
    Seen,
    SettingsError,
    Written,
)

T = TypeVar("T", bound=Struct)

_LONGEST_ERROR = 80
_SETTLED_NS = 100_000_000
"""Age from which another write changes a file's time: file times advance in steps of up to 10 ms."""


def read_variables(declared: type[T]) -> T:
    """Return a program's environment variables. Raises SettingsError, which names all invalid ones."""
    try:
        return _values(declared, _model(declared)())
    except ValidationError as error:
        raise SettingsError(tuple(_bad_values(error, declared))) from error


def read_files(directory: Path | None) -> Written:
    """Read the ConfigMap's files, then the environment, then the defaults.

    Raises Shortage if files can't be checked. An invalid value must not leave a node unmonitored, and must not discard
    valid values of other keys.
    """
    seen = _settled(seen_in(directory))
    try:
        folder = directory if directory is not None and is_folder(directory) else None
    except Shortage:
        raise
    except ProbeError as error:
        return Written(bad=(_not_readable(str(error).removeprefix(f"{directory}: "), directory),))
    bad = tuple(_unreadable(folder))
    for _ in ("with the values as written", "with defaults for invalid values"):
        known = settings_of(NodeSettings)
        defaults = {value.key: known[value.key].default for value in bad if value.key in known}
        try:
            read = _model(NodeSettings)(_secrets_dir=folder, **defaults)
        except ValidationError as error:
            found = _bad_values(error, NodeSettings)
            bad = (*bad, *(not_allowed(value.key, value.value, value.allowed, directory) for value in found))
        except SourceError as error:  # a file was replaced while it was read
            if isinstance(error.__cause__, OSError):
                refuse_shortage(error.__cause__)
            return Written(bad=(*bad, _not_readable(str(error), directory)))
        else:
            return Written(_values(NodeSettings, read), bad, seen)
    return Written(bad=bad)


def _not_readable(why: str, directory: Path | None) -> BadValue:
    return BadValue(NO_KEY, "", why, str(directory), passing=True)


def _settled(seen: Seen) -> Seen | None:
    """Return the folder's state; None if a file was written just now.

    Another write in the same moment could not be distinguished.
    """
    now = time.time_ns()
    written = (int(times[-1]) for _, *times in seen if len(times) > 1)
    return None if any(abs(now - at) < _SETTLED_NS for at in written) else seen


class _Sources(BaseSettings):
    model_config = SettingsConfigDict(extra="ignore", case_sensitive=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in order.

        The ConfigMap's files outrank the environment, because the last edit must apply.
        """
        del dotenv_settings
        if isinstance(file_secret_settings, SecretsSettingsSource) and isinstance(init_settings, InitSettingsSource):
            messages = frozenset(init_settings.init_kwargs)
            file_secret_settings = _ConfigMap(settings_cls, file_secret_settings.secrets_dir, messages)
        return (init_settings, file_secret_settings, env_settings)


class _ConfigMap(SecretsSettingsSource):
    """Source of the mounted files, except for the keys in `messages`.

    A value of several lines keeps its leading empty lines.
    """

    def __init__(self, settings_cls: type[BaseSettings], directory: Any, messages: frozenset[str]) -> None:
        super().__init__(settings_cls, directory)
        self._problems = messages

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        if field.alias in self._problems:
            return None, str(field.alias), False
        value, key, is_complex = super().get_field_value(field, field_name)
        if field.alias == OVERRIDES and isinstance(value, str) and isinstance(self.secrets_dir, Path):
            value = (self.secrets_dir / OVERRIDES).read_text(encoding="utf-8")
        return value, key, is_complex


@cache
def _model(declared: type[Struct]) -> type[Any]:
    fields: Mapping[str, Any] = {
        setting.name: (_type(setting), _field(setting)) for setting in settings_of(declared).values()
    }
    return create_model(declared.__name__, __base__=_Sources, **fields)


def _type(setting: Setting) -> Any:
    if setting.kind is Severity:
        return Annotated[Severity, BeforeValidator(partial(_severity, setting.mildest))]
    return Annotated[Path, AfterValidator(_folder)] if setting.kind is Path else setting.kind


def _field(setting: Setting) -> Any:
    limits = setting.limits
    return Field(
        ... if setting.default is NODEFAULT else setting.default,
        alias=setting.key,
        ge=limits.ge,
        le=limits.le,
        pattern=limits.pattern,
        min_length=limits.min_length,
        max_length=limits.max_length,
    )


def _severity(mildest: Severity, value: Any) -> Severity:
    found = Severity.__members__.get(value.strip()) if isinstance(value, str) else value
    if not isinstance(found, Severity) or found < mildest:
        raise ValueError
    return found


def _folder(value: Path) -> Path:
    if not value.is_absolute():
        raise ValueError
    return value


def _values(declared: type[T], read: Any) -> T:
    return declared(**{setting.name: getattr(read, setting.name) for setting in settings_of(declared).values()})


def _unreadable(directory: Path | None) -> Iterator[BadValue]:
    """Yield the files that are not text, as a ConfigMap's `binaryData` can create them, or can't be read."""
    for key in settings_of(NodeSettings):
        path = directory / key if directory else None
        try:
            if path is None or not stat.S_ISREG(path.stat().st_mode):
                continue
            path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            passing = isinstance(error, OSError)
            if isinstance(error, OSError):
                if is_absent(error):
                    continue
                refuse_shortage(error)
            yield BadValue(key, str(error)[:_LONGEST_ERROR], "readable UTF-8 text", str(path), passing)


def _bad_values(error: ValidationError, declared: type[Struct]) -> Iterator[BadValue]:
    for entry in error.errors(include_url=False):
        key = str(entry["loc"][0]) if entry["loc"] else "?"
        setting = settings_of(declared).get(key)
        allowed = setting.allowed if setting else ""
        value = None if entry["type"] == "missing" else str(entry["input"])
        yield BadValue(key, value, allowed or str(entry["msg"]), ENVIRONMENT)
