"""A cluster's state from files: what `kubectl get … -o json`, `kubectl cluster-info dump` and `--save` wrote."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from diagnosis.bundle import HEADER, BundleError, read_bundle
from diagnosis.dump_logs import files_below, read_dump_logs
from diagnosis.snapshot import KINDS, Builder, Snapshot
from healthcheck.text.moments import EARLIEST, moment_or_none
from healthcheck.text.printable import printable

_NOT_SAVED = "no file has it"
_MOST_BYTES = 1 << 30
_DECODER = json.JSONDecoder()
_TIMES = frozenset(
    (
        *("creationTimestamp", "lastTimestamp", "eventTime", "lastTransitionTime", "lastHeartbeatTime"),
        *("lastObservedTime", "startedAt", "finishedAt", "renewTime", "startTime", "completionTime"),
    )
)
"""When something had happened. What is due later, as `deletionTimestamp`, is none of them."""


class SavedStateError(ValueError):
    """The message names the file, and says what is wrong with it."""


class _State:
    """What the files have said so far."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.newest = EARLIEST
        self.missing: dict[str, str] = {}

    def take(self, name: str, content: bytes) -> None:
        """One file. Raises SavedStateError."""
        for document in _documents(name, content):
            self._take(name, document)

    def _take(self, name: str, document: Mapping[str, object]) -> None:
        if name.endswith(f"!{HEADER}"):
            self._take_header(document)
            return
        kind = document.get("kind")
        if isinstance(kind, str) and kind.endswith("List"):
            self.builder.listed(kind.removesuffix("List"))  # an empty one says that there is none
        for kind, one in _listed(name, document):
            self.builder.add(kind, one)
            self.newest = max(self.newest, _newest(one))

    def _take_header(self, document: Mapping[str, object]) -> None:
        self.newest = max(self.newest, moment_or_none(document.get("at")) or EARLIEST)
        listed = document.get("listed")
        for kind in listed if isinstance(listed, list) else ():
            self.builder.listed(str(kind))
        missing = document.get("missing")
        for kind in KINDS:
            # Whoever saved it had looked for all of them: a kind without a file has no object.
            self.builder.listed(kind)
        for kind, why in (missing if isinstance(missing, Mapping) else {}).items():
            self.missing[printable(str(kind), 64)] = printable(str(why), 256)


def read_saved(paths: Iterable[Path]) -> Snapshot:
    """All that the files hold, as of their newest timestamp. Raises SavedStateError."""
    state, logs = _State(), {}
    for path in paths:
        for name, content in _contents(path):
            state.take(name, content)
        logs.update(_logs(path))
    for kind, why in state.missing.items():
        state.builder.lacks(kind, why)
    # A clock may have been wrong where it was saved; nothing was saved in the future.
    return state.builder.build(min(state.newest, datetime.now(UTC)), _NOT_SAVED, logs)


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if path.is_dir():
            files = sorted(file for file in files_below(path) if file.suffix == ".json")
            if not files:
                raise SavedStateError(f"{path}: no .json file in it")
            for file in files:
                yield str(file), _read(file)
        elif path.is_file() and tarfile.is_tarfile(path):
            yield from ((f"{path}!{name}", content) for name, content in read_bundle(path))
        else:
            yield str(path), _read(path)
    except BundleError as error:
        raise SavedStateError(f"{path}: {error}") from error
    except OSError as error:
        raise SavedStateError(f"{path}: {error.strerror}") from error


def _logs(path: Path) -> dict[tuple[str, str], str]:
    try:
        return read_dump_logs(path) if path.is_dir() else {}
    except OSError as error:
        raise SavedStateError(f"{path}: {error.strerror}") from error


def _read(file: Path) -> bytes:
    with file.open("rb") as stream:
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise SavedStateError(f"{file}: over {_MOST_BYTES >> 20} MiB")
    return content


def _documents(name: str, content: bytes) -> Iterator[Mapping[str, object]]:
    """One after another, as whoever appends what kubectl prints leaves them."""
    at, text = 0, ""
    while at < len(text) or not text:
        try:
            text = text or content.decode(json.detect_encoding(content)).strip()
            document, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise SavedStateError(f"{name}: no JSON, as kubectl writes it with -o json: {error}") from error
        if not isinstance(document, Mapping):
            raise SavedStateError(f"{name}: an object of the Kubernetes API, or a List of them, is wanted")
        yield document
        while text[at : at + 1].isspace():
            at += 1


def _listed(name: str, document: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The objects of a List, or the one that it is. A typed list's items do not say their kind."""
    kind, items = document.get("kind"), document.get("items")
    if not isinstance(kind, str):
        raise SavedStateError(f"{name}: an object of the Kubernetes API, or a List of them, is wanted")
    if not kind.endswith("List"):
        yield kind, document
        return
    for one in items if isinstance(items, list) else ():
        own = one.get("kind") if isinstance(one, Mapping) else None
        yield own if isinstance(own, str) else kind.removesuffix("List"), one


def _newest(value: object) -> datetime:
    newest, ahead = EARLIEST, [value]
    while ahead:
        one = ahead.pop()
        if isinstance(one, Mapping):
            told = (moment_or_none(text) for key, text in one.items() if key in _TIMES)
            newest = max((newest, *filter(None, told)))
            ahead += one.values()
        elif isinstance(one, list):
            ahead += one
    return newest
