"""Folder of the mounted ConfigMap: detection of changes, and of files that are not settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from healthcheck.catalog.profiles import PROFILES_FILE
from healthcheck.host.opening import entries_of, refuse_shortage
from healthcheck.settings.declared import settings_of
from healthcheck.settings.values import ENVIRONMENT, BadValue, NodeSettings, Seen
from healthcheck.text.printable import printable

_MOST_NAMED, _LONGEST_KEY, _LONGEST_VALUE = 8, 64, 80


class UnknownKeys(Struct, frozen=True):
    """Keys of the configuration that are not settings, each with the setting it may be meant for, or ''."""

    keys: tuple[tuple[str, str], ...]
    where: str

    def __str__(self) -> str:
        named = [f"{key} (did you mean {near}?)" if near else key for key, near in self.keys[:_MOST_NAMED]]
        more = f" and {len(self.keys) - _MOST_NAMED} more" if len(self.keys) > _MOST_NAMED else ""
        return f"{self.where}: unknown settings: {', '.join(named)}{more}; all others are used"


def seen_in(directory: Path | None) -> Seen:
    """Return the state of the folder, for comparison with a later state.

    It changes if the kubelet swaps the `..data` link, and if a file is written, created or removed. Raises Shortage.
    """
    try:
        return tuple(sorted(_seen(directory))) if directory else ()
    except FileNotFoundError:
        return ()
    except OSError as error:
        return ((str(directory), error.errno or 0),)


def not_allowed(key: str, value: object, allowed: str, directory: Path | None) -> BadValue:
    """Return an invalid value with its source: the file of this key, or the environment."""
    where = str(directory / key) if directory is not None and (directory / key).exists() else ENVIRONMENT
    return BadValue(key, str(value).strip()[:_LONGEST_VALUE], allowed, where)


def unknown_keys(directory: Path | None) -> UnknownKeys | None:
    """Return the files that no setting is read from, such as a misspelled key; None if there are none."""
    known = [*settings_of(NodeSettings), PROFILES_FILE]
    # Names that begin with two dots belong to the kubelet. Keys of a ConfigMap never begin with two dots.
    found = sorted(_files(directory) - set(known))
    keys = [name for name in found if not name.startswith("..")]
    near = {name.lower(): name for name in known}
    entries = tuple((printable(key, _LONGEST_KEY), _nearest(key, near)) for key in keys)
    return UnknownKeys(entries, str(directory)) if entries else None


def _seen(directory: Path) -> Iterator[tuple[str | int, ...]]:
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


def _files(directory: Path | None) -> set[str]:
    try:
        return {entry.name for entry in entries_of(directory) if not entry.is_dir()} if directory else set()
    except OSError:
        return set()
