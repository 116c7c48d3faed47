"""Read the settings from the mounted ConfigMap and the environment, by pydantic-settings.

An invalid value is reported with its file, its key, the value and the allowed values. No value is guessed, and an
invalid one neither leaves a node unmonitored nor discards valid values of other keys: no rule compares two keys.
Instead of it, the last valid text of its key counts, if the caller has one, or else the default.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import NODEFAULT, Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import (
    PROFILES_FILE,
    InstanceProfile,
    ProfileError,
    Profiles,
    parse_profiles,
    read_packaged,
)
from gpu_healthcheck.healthcheck.host.opening import entries_of, is_absent, is_folder, refuse_shortage
from gpu_healthcheck.healthcheck.host.program import USAGE
from gpu_healthcheck.healthcheck.host.streams import complain
from gpu_healthcheck.healthcheck.model import ProbeError, Severity, Shortage
from gpu_healthcheck.healthcheck.settings.declaration import (
    NODE_OVERRIDES,
    OVERRIDES,
    NodeSettings,
    Setting,
    settings_of,
)
from gpu_healthcheck.healthcheck.text.printable import printable

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T", bound=Struct)
Seen = tuple[tuple[str | int, ...], ...]
"""State of the ConfigMap's folder, for comparison with another state."""

_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}", re.ASCII)
"""Keys of a ConfigMap."""
_ENVIRONMENT = "environment"
_NO_KEY = "?"
"""Key of an error that concerns all settings."""
_MOST_NAMED, _LONGEST_KEY, _LONGEST_VALUE, _LONGEST_ERROR, _LONGEST_FILE = 8, 64, 80, 80, 1 << 20
_LIMITS = ("ge", "le", "pattern", "min_length", "max_length")
_SETTLED_NS = 100_000_000
"""Age from which another write changes a file's time: file times advance in steps of up to 10 ms."""


class BadValue(Struct, frozen=True):
    """One invalid value. `where` is a file or an environment variable; `value` is None if it is not set."""

    key: str
    value: str | None
    allowed: str
    where: str
    passing: bool = False
    """Whether the error may be temporary, so that the same files can be valid at the next read."""

    def __str__(self) -> str:
        return f"{self.where}: {self.words}"

    @property
    def is_of_environment(self) -> bool:
        return self.where == _ENVIRONMENT

    @property
    def words(self) -> str:
        if self.key == _NO_KEY:
            return self.allowed
        return f"{self.key} is not set" if self.value is None else f"{self.key} = {self.value!r}: {self.allowed}"


class SettingsError(Exception):
    """Error for invalid environment variables of a program. `bad` names each variable."""

    def __init__(self, bad: tuple[BadValue, ...]) -> None:
        super().__init__("; ".join(str(value) for value in bad))
        self.bad = bad


class Settings(Struct, frozen=True):
    """Result of one read of all settings: the values and the table of profiles."""

    values: NodeSettings = NodeSettings()
    profiles: Profiles = {}
    bad: tuple[BadValue, ...] = ()
    """Invalid values, replaced by the last valid ones or the defaults."""
    texts: Mapping[str, str] = {}
    """Valid texts by key, also those that replace invalid ones: the last valid texts of a later read."""
    seen: Seen | None = None
    """State of the folder before it was read; None if another read may give another result in the same state."""

    def keeping(self, in_force: Settings) -> Settings:
        """Return these settings with the values in force instead of the invalid ones."""
        keys = {bad_value.key for bad_value in self.bad}
        if _NO_KEY in keys:
            return replace(in_force, bad=self.bad, seen=self.seen)
        names = [setting.name for key, setting in settings_of(NodeSettings).items() if key in keys]
        values = replace(self.values, **{name: getattr(in_force.values, name) for name in names})
        return replace(self, values=values, profiles=in_force.profiles if PROFILES_FILE in keys else self.profiles)


class UnknownKeys(Struct, frozen=True):
    """Keys of the configuration that are not settings, each with the setting it may be meant for, or ''."""

    keys: tuple[tuple[str, str], ...]
    where: str

    def __str__(self) -> str:
        named = [f"{key} (did you mean {near}?)" if near else key for key, near in self.keys[:_MOST_NAMED]]
        more = f" and {len(self.keys) - _MOST_NAMED} more" if len(self.keys) > _MOST_NAMED else ""
        return f"{self.where}: unknown settings, which have no effect: {', '.join(named)}{more}"


def read_settings(directory: Path | None, last: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """Read the ConfigMap's files, then the environment, then the defaults. `last` has the last valid texts by key.

    Raises Shortage if a file could not be checked. `bad` names every invalid value; the last valid ones, or the
    defaults, are used.
    """
    seen = seen_in(directory)
    settled = _settled(seen)
    values, bad, texts = NodeSettings(), Settings().bad, dict[str, str]()
    if seen or not os.environ.keys().isdisjoint(settings_of(NodeSettings)):
        values, bad, texts = _read_values(directory, last)
    try:
        text = _profiles_text(directory)
        rows = parse_profiles(text, str(directory and directory / PROFILES_FILE))
    except (ProfileError, OSError) as error:
        bad = (*bad, BadValue(PROFILES_FILE, "...", str(error), str(directory), _is_passing(error)))
        text, rows = _last_profiles(last.get(PROFILES_FILE, ""))
    profiles = {**packaged_profiles(), **rows}
    texts |= {PROFILES_FILE: text} if text else {}
    return Settings(values, profiles, bad, texts, None if any(value.passing for value in bad) else settled)


@contextmanager
def as_folder(written: Mapping[str, str]) -> Iterator[Path]:
    """Yield a folder with the keys of a ConfigMap as files, as a kubelet mounts it."""
    with TemporaryDirectory() as folder:
        for key, value in written.items():
            if _KEY.fullmatch(key):
                (Path(folder) / key).write_text(value, encoding="utf-8")
        yield Path(folder)


def read_variables(declared: type[T]) -> T:
    """Return a program's environment variables. Raises SettingsError, which names all invalid ones."""
    from pydantic import ValidationError  # noqa: PLC0415 - slower than a whole check cycle

    try:
        return declared(**dict(_model(declared)()))
    except ValidationError as error:
        raise SettingsError(tuple(_bad_values(error, declared, None))) from error


@lru_cache(maxsize=256)
def parse_value(key: str, text: str) -> Any:
    """Return the value of one setting of NodeSettings. Raises ValueError, which names the allowed values."""
    from pydantic import ValidationError  # noqa: PLC0415 - slower than a whole check cycle

    settings = settings_of(NodeSettings)
    try:
        return getattr(_model(NodeSettings, frozenset(settings.keys() - {key}))(**{key: text}), settings[key].name)
    except ValidationError as error:
        raise ValueError("; ".join(value.words for value in _bad_values(error, NodeSettings, None))) from error


def complain_of_environment(program: str, error: SettingsError) -> int:
    """Report each invalid variable with its value. Return the exit code of the program."""
    for bad_value in error.bad:
        complain(program, bad_value.words)
    return USAGE


def seen_in(directory: Path | None) -> Seen:
    """Return the state of the folder, for comparison with a later state.

    It changes if the kubelet swaps the `..data` link, and if a file is written, created or removed. Raises Shortage.
    """
    try:
        return tuple(sorted(_entries(directory))) if directory else ()
    except FileNotFoundError:
        return ()
    except OSError as error:
        return ((str(directory), error.errno or 0),)


def unknown_keys(directory: Path | None) -> UnknownKeys | None:
    """Return the files that no setting is read from, such as a misspelled key; None if there are none."""
    known = {name.lower(): name for name in (*settings_of(NodeSettings), PROFILES_FILE)}
    try:
        files = {entry.name for entry in entries_of(directory) if not entry.is_dir()} if directory else set()
    except OSError:
        return None
    # Names that begin with two dots belong to the kubelet. Keys of a ConfigMap never begin with two dots.
    keys = [name for name in sorted(files - set(known.values())) if not name.startswith("..")]
    entries = tuple((printable(key, _LONGEST_KEY), _nearest(key, known)) for key in keys)
    return UnknownKeys(entries, str(directory)) if entries else None


@cache
def packaged_profiles() -> Profiles:
    return read_packaged()


def _profiles_text(directory: Path | None) -> str:
    """Return the ConfigMap's profiles; '' without any. A row replaces the packaged row of its type."""
    path = directory / PROFILES_FILE if directory else None
    try:
        if path is None or not stat.S_ISREG(path.stat().st_mode):
            return ""
        with path.open("rb") as file:
            return file.read(_LONGEST_FILE + 1).decode("utf-8", "backslashreplace")
    except OSError as error:
        if is_absent(error):
            return ""
        raise


def _last_profiles(text: str) -> tuple[str, dict[str, InstanceProfile]]:
    """Return the last valid profiles; none if another version accepted them."""
    try:
        return text, parse_profiles(text, PROFILES_FILE)
    except ProfileError:
        return "", {}


def _read_values(
    directory: Path | None, last: Mapping[str, str]
) -> tuple[NodeSettings, tuple[BadValue, ...], dict[str, str]]:
    """Return the values, the invalid ones, and the valid texts. Raises Shortage."""
    from pydantic import ValidationError  # noqa: PLC0415 - slower than a whole check cycle
    from pydantic_settings import SecretsSettingsSource  # noqa: PLC0415
    from pydantic_settings import SettingsError as SourceError  # noqa: PLC0415

    try:
        folder = directory if directory is not None and is_folder(directory) else None
        bad = tuple(_unreadable(folder))
    except Shortage:
        raise
    except ProbeError as error:
        folder, bad = None, (_not_readable(str(error).removeprefix(f"{directory}: "), directory),)
    # Last valid texts, later without those that this version rejects.
    kept = {key: text for key, text in last.items() if key in settings_of(NodeSettings)}
    for _ in ("all", "the readable", "instead of invalid", "accepted by this version", "the defaults"):
        keys = {value.key for value in bad}
        instead = {key: text for key, text in kept.items() if key in keys or _NO_KEY in keys}
        model = _model(NodeSettings, frozenset(keys - instead.keys()))
        try:
            files = SecretsSettingsSource(_model(NodeSettings, frozenset(keys)), folder)() if folder else {}
            for key in (OVERRIDES, NODE_OVERRIDES):
                if folder and key in files:  # with its leading empty lines: an error names the line
                    files[key] = (folder / key).read_text(encoding="utf-8")
            texts = {**files, **instead}
            # They outrank the environment: the last edit must apply.
            return NodeSettings(**dict(model(**texts))), bad, texts
        except ValidationError as error:
            found = tuple(_bad_values(error, NodeSettings, directory))
            bad = (*bad, *(value for value in found if value.key not in instead))
            rejected = {value.key for value in found} & instead.keys()
            kept = {key: text for key, text in kept.items() if key not in rejected}
        except (SourceError, OSError, UnicodeDecodeError) as error:  # a file was replaced while it was read
            _is_passing(error.__cause__ if isinstance(error.__cause__, OSError) else error)
            folder, bad = None, (*bad, _not_readable(str(error), directory))
    return NodeSettings(), bad, {}


@cache
def _model(declared: type[Struct], left_out: frozenset[str] = frozenset()) -> type[Any]:
    """Return pydantic's form of the declaration. pydantic is loaded here: commands that read no settings start faster.

    Settings that are left out have their defaults.
    """
    from pydantic import Field, create_model  # noqa: PLC0415
    from pydantic_settings import BaseSettings, SettingsConfigDict  # noqa: PLC0415

    class Variables(BaseSettings):
        """Environment variables by their exact names."""

        model_config = SettingsConfigDict(extra="ignore", case_sensitive=True)

    field_definitions: dict[str, Any] = {}
    for setting in settings_of(declared).values():
        if setting.key not in left_out:
            limits: dict[str, Any] = {name: getattr(setting.limits, name) for name in _LIMITS}
            default = ... if setting.default is NODEFAULT else setting.default
            field_definitions[setting.name] = _type(setting), Field(default, alias=setting.key, **limits)
    return create_model(declared.__name__, __base__=Variables, **field_definitions)


def _type(setting: Setting) -> Any:
    from pydantic import AfterValidator, BeforeValidator  # noqa: PLC0415

    rule = setting.rule
    if rule.mildest is not None:
        return Annotated[setting.kind, BeforeValidator(partial(_severity, rule.mildest, rule.may_be_empty))]
    return Annotated[setting.kind, AfterValidator(rule.accept)] if rule.accept else setting.kind


def _severity(mildest: Severity, may_be_empty: bool, value: Any) -> Severity | None:
    if may_be_empty and (value is None or not str(value).strip()):
        return None
    found = Severity.__members__.get(value.strip()) if isinstance(value, str) else value
    if not isinstance(found, Severity) or found < mildest:
        raise ValueError
    return found


def _bad_values(error: ValidationError, declared: type[Struct], directory: Path | None) -> Iterator[BadValue]:
    for error_row in error.errors(include_url=False):
        key = str(error_row["loc"][0]) if error_row["loc"] else _NO_KEY
        setting = settings_of(declared).get(key)
        rule = str(error_row.get("ctx", {}).get("error", ""))
        allowed = rule or (setting.allowed if setting else "") or str(error_row["msg"])
        where = str(directory / key) if directory is not None and (directory / key).exists() else _ENVIRONMENT
        value = None if error_row["type"] == "missing" else str(error_row["input"])
        if value is not None and declared is NodeSettings:  # a ConfigMap's text may have 1 MiB
            value = value.strip()[:_LONGEST_VALUE]
        yield BadValue(key, value, allowed, where)


def _unreadable(directory: Path | None) -> Iterator[BadValue]:
    """Yield the files that are not text, as `binaryData` can create them, can't be read, or lie in another folder."""
    for key in settings_of(NodeSettings):
        path = directory / key if directory else None
        try:
            if path is None or not stat.S_ISREG(path.stat().st_mode):
                continue
            if not path.resolve().is_relative_to(path.parent.resolve()):
                yield BadValue(key, "a link to a file elsewhere", "a file of this folder", str(path))
                continue
            path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            if not (isinstance(error, OSError) and is_absent(error)):
                allowed = "readable UTF-8 text"
                yield BadValue(key, str(error)[:_LONGEST_ERROR], allowed, str(path), _is_passing(error))


def _not_readable(why: str, directory: Path | None) -> BadValue:
    return BadValue(_NO_KEY, "", why, str(directory), passing=True)


def _is_passing(error: Exception) -> bool:
    """Whether another read of the same files may succeed. Raises Shortage."""
    if isinstance(error, OSError):
        refuse_shortage(error)
    return isinstance(error, OSError)


def _settled(seen: Seen) -> Seen | None:
    """Return the folder's state; None if a file was written just now.

    Another write in the same moment could not be distinguished.
    """
    now = time.time_ns()
    written = (int(times[-1]) for _, *times in seen if len(times) > 1)
    return None if any(abs(now - at) < _SETTLED_NS for at in written) else seen


def _entries(directory: Path) -> Iterator[tuple[str | int, ...]]:
    for entry in entries_of(directory):
        try:
            now = entry.stat()
        except OSError as error:
            refuse_shortage(error)
            yield entry.name, error.errno or 0
        else:
            yield entry.name, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _nearest(key: str, known: Mapping[str, str]) -> str:
    """Return the most similar known key, ignoring case; '' for a long name, which is not a misspelled key."""
    import difflib  # noqa: PLC0415 - needed only for a misspelled key

    close = difflib.get_close_matches(key.lower(), known, 1) if len(key) <= _LONGEST_KEY else []
    return known[close[0]] if close else ""
