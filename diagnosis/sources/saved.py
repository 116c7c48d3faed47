"""Read a cluster's state from saved files.

These are files of `kubectl get … -o json`, `kubectl cluster-info dump` and `--save`, or texts that a person pasted.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.snapshot import KINDS, Builder, Snapshot
from gpu_healthcheck.diagnosis.sources.archive import LONGEST, Archive, ArchiveError, is_archive
from gpu_healthcheck.diagnosis.sources.bundle import HEADER
from gpu_healthcheck.diagnosis.sources.dump_logs import DumpError, files_below, read_dump_logs
from gpu_healthcheck.healthcheck.captures.blocks import CaptureError, InputFile
from gpu_healthcheck.healthcheck.text.json_cost import JsonCostError, refuse_costly
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, moment_or_none
from gpu_healthcheck.healthcheck.text.printable import printable

if TYPE_CHECKING:
    from gpu_healthcheck.diagnosis.sources.texts import Texts

_NOT_SAVED = "not in the saved files"
_MOST_VALUES = 24_000_000
"""Limit for all files, enough for 100,000 pods as kubectl prints them."""
_MOST_OBJECTS = 500_000
_LONGEST_OBJECT = 8 << 20
"""Bytes: more than the API server stores as one object."""
_SUFFIX = ".json"
_STANDARD_INPUT = "-"
IsKnown = Callable[[str], bool]
"""Whether a log has the text of a cause."""
_HEAD = 512
_MOST_MISSING, _SHOWN = 64, 120
_NO_JSON = "not the JSON of kubectl -o json"
_WANTED = "expected an object of the Kubernetes API, or a List of objects"
_TOP_LEVEL = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.DOTALL)
_Part = bytearray | memoryview | msgspec.Raw
"""Bytes of one document, or of one object."""
_TIMES = frozenset(
    (
        *("creationTimestamp", "lastTimestamp", "eventTime", "lastTransitionTime", "lastHeartbeatTime"),
        *("lastObservedTime", "startedAt", "finishedAt", "renewTime", "startTime", "completionTime"),
    )
)
"""Fields with times of past events; future ones, such as `deletionTimestamp`, are left out."""
_CLOCKS = frozenset(("Event", "Node", "Lease"))
"""Kinds whose newest time is about the time of saving. The times of a pod that waits do not change."""
_WAITED = timedelta(minutes=30)
"""Assumed age of a state without such a kind: it was saved because it lasts."""


class SavedStateError(ValueError):
    """Saved state can't be read. The message names the file and its fault."""


class NoSavedStateError(SavedStateError):
    """A saved file does not exist, or can't be opened."""


class _NoStateError(ValueError):
    """Content of a file is not the state of a cluster."""


class _Document(msgspec.Struct):
    """Kind and items of a document; its objects stay bytes until each is parsed separately."""

    kind: msgspec.Raw = msgspec.Raw(b"null")
    items: msgspec.Raw = msgspec.Raw(b"null")


class _State:
    """State that has been read from the files so far."""

    def __init__(self, is_known: IsKnown) -> None:
        self.builder = Builder()
        self._is_known = is_known
        self.texts: Texts | None = None
        self.newest = EARLIEST
        self.has_clock = False
        self.missing: dict[str, str] = {}
        self.only_in = ""
        self.damage: list[str] = []
        self._values = _MOST_VALUES
        self._objects = _MOST_OBJECTS

    def take(self, name: str, content: bytearray) -> None:
        """Read one file. Raises JsonCostError and _NoStateError."""
        self._values -= refuse_costly(content, self._values)
        for document, part in _documents(content):
            self._count()
            if name.endswith(f"!{HEADER}"):
                self._take_header(_decoded(part))
            else:
                self._take(document, part)

    def take_text(self, name: str, content: bytearray) -> None:
        """Read a text that is not the JSON of the API. Raises JsonCostError, NothingRecognisedError."""
        from gpu_healthcheck.diagnosis.sources.texts import Texts  # noqa: PLC0415 - most saved states contain no text

        self.texts = self.texts or Texts(self._is_known)
        text = self.texts.take(name, content)
        for one in text.objects:
            self._count()
            self.builder.add(one["kind"], one)
            self.newest = max(self.newest, _newest(one))
        is_dated = text.at is not None or any(one["kind"] in _CLOCKS for one in text.objects)
        self.newest, self.has_clock = max(self.newest, text.at or EARLIEST), self.has_clock or is_dated
        self.damage += (f"{printable(name, _SHOWN)}: {why}" for why in text.incomplete[:_MOST_MISSING])

    def take_archive(self, name: str, archive: Archive, source: InputFile) -> None:
        """Read the archive's files as far as possible. Raises ArchiveError, CaptureError, JsonCostError."""
        is_ours = False
        for member, content in archive.members():
            try:
                self.take(f"{name}!{member}", content)
            except _NoStateError as error:
                self.damage.append(f"{name}!{printable(member, _SHOWN)}: {error}")
                self.builder.lacks(member.removesuffix(_SUFFIX), "its file is damaged")
            is_ours = is_ours or member == HEADER
        if archive.damage or source.cut:
            self.damage.append(f"{name}: {archive.damage}" + (f" ({source.cut})" if source.cut else ""))
            # `diagnose --save` writes a file for each kind, in the order of their names.
            for kind in KINDS if is_ours else ():
                if archive.read_to == HEADER or f"{kind}{_SUFFIX}" > archive.read_to:
                    self.builder.lacks(kind, "the archive is damaged before its file")

    def _take(self, document: _Document, part: _Part) -> None:
        written = _decoded(document.kind)
        if not isinstance(written, str):
            raise _NoStateError(_WANTED)
        kind = written.removesuffix("List")
        if kind == written:
            self._add(kind, part)
            return
        self.builder.listed(kind)  # an empty list shows that there is none
        for raw in _items(document):
            self._count()
            self._add(kind, raw)

    def _add(self, kind: str, part: _Part) -> None:
        """Add one object. `kind`: used if the object has no kind, as in the items of a typed list."""
        one = _decoded(part)
        own = one.get("kind") if isinstance(one, dict) else None
        kind = own if isinstance(own, str) else kind
        self.builder.add(kind, one)
        self.has_clock = self.has_clock or kind in _CLOCKS
        self.newest = max(self.newest, _newest(one))

    def _count(self) -> None:
        self._objects -= 1
        if self._objects < 0:
            raise JsonCostError(f"over {_MOST_OBJECTS:,} objects, which is the limit")

    def _take_header(self, document: object) -> None:
        if not isinstance(document, dict):
            raise _NoStateError("expected an object")
        saved_at = moment_or_none(document.get("at"))
        self.newest = max(self.newest, saved_at or EARLIEST)
        self.has_clock = self.has_clock or saved_at is not None
        listed = document.get("listed")
        for kind in listed[: len(KINDS)] if isinstance(listed, list) else ():
            self.builder.listed(str(kind))
        missing, only_in = document.get("missing"), document.get("only_in")
        self.only_in = printable(only_in, 64) if isinstance(only_in, str) else ""
        for kind in KINDS:
            # The collector listed all of these kinds: a kind without a file has no object.
            self.builder.listed(kind)
        for kind, why in islice((missing if isinstance(missing, dict) else {}).items(), _MOST_MISSING):
            self.missing[printable(str(kind), 64)] = printable(str(why), 256)


def _knows_none(_: str) -> bool:
    return False


def read_saved(paths: Iterable[Path], is_known: IsKnown = _knows_none) -> Snapshot:
    """Return the content of the files, as of their newest timestamp. Raises SavedStateError.

    Without a kind that shows the time of saving, all waiting objects count as waiting for a while. A log alone is read
    only if `is_known`.
    """
    state, logs = _State(is_known), {}
    for path in paths:
        for file in _files(path):
            _read(file, state)
        logs.update(_logs(path))
    for kind, why in state.missing.items():
        state.builder.lacks(kind, why)
    # The clock of the saving machine may have been wrong: a time in the future is replaced by the present time.
    newest = state.newest if state.has_clock or state.newest == EARLIEST else state.newest + _WAITED
    snapshot = state.builder.build(min(newest, datetime.now(UTC)), _NOT_SAVED, logs)
    snapshot = replace(snapshot, unread=tuple(state.damage), only_in=state.only_in)
    return state.texts.into(snapshot) if state.texts is not None else snapshot


def _files(path: Path) -> Iterator[Path]:
    """Yield the files at or below the path. Raises SavedStateError."""
    try:
        if not path.is_dir():
            yield path
            return
        files = sorted(file for file in files_below(path) if file.suffix == _SUFFIX)
    except DumpError as error:
        raise SavedStateError(f"{path}: {error}") from error
    except OSError as error:
        raise NoSavedStateError(f"{path}: {error.strerror}") from error
    if not files:
        raise NoSavedStateError(f"{path}: no {_SUFFIX} file in it")
    yield from files


def _logs(path: Path) -> dict[tuple[str, str], str]:
    try:
        return read_dump_logs(path) if path.is_dir() else {}
    except DumpError as error:
        raise SavedStateError(f"{path}: {error}") from error
    except OSError as error:
        raise NoSavedStateError(f"{path}: {error.strerror}") from error


def _read(file: Path, state: _State) -> None:
    """Read one file, compressed or not. Raises SavedStateError."""
    try:
        with nullcontext(sys.stdin.buffer) if str(file) == _STANDARD_INPUT else file.open("rb") as stream:
            source = InputFile(stream)
            chunks = source.unpacked()
            head = b""
            while len(head) < _HEAD and (more := next(chunks, b"")):
                head += more
            if is_archive(head):
                archive = Archive(chain((head,), chunks), _SUFFIX)
                state.take_archive(str(file), archive, source)
            else:
                _take(file, _whole(chain((head,), chunks), source), state)
    except (_NoStateError, ArchiveError, CaptureError, JsonCostError) as error:
        raise SavedStateError(f"{file}: {error}") from error
    except OSError as error:
        raise NoSavedStateError(f"{file}: {error.strerror}") from error


def _take(file: Path, content: bytearray, state: _State) -> None:
    """Read a file as JSON of the API, else as a text. Raises _NoStateError, JsonCostError."""
    try:
        state.take(str(file), content)
    except _NoStateError as error:
        from gpu_healthcheck.diagnosis.sources.pasted import NothingRecognisedError  # noqa: PLC0415

        try:
            state.take_text(str(file), content)
        except NothingRecognisedError as nothing:
            is_json = bytes(content.lstrip()[:1]) in (b"{", b"[", b"")
            raise _NoStateError(f"nothing recognised: {error if is_json else nothing}") from error


def _whole(chunks: Iterator[bytes], source: InputFile) -> bytearray:
    """Return the content of a file within the limit, in UTF-8. Raises _NoStateError, CaptureError."""
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > LONGEST:
            raise _NoStateError(f"over {LONGEST >> 20} MiB, which is the limit for a file")
    if source.cut:
        raise _NoStateError(source.cut)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # of kubectl in Windows PowerShell
        return bytearray(content.decode("utf-16", "replace").encode("utf-8", "replace"))
    return content.removeprefix(codecs.BOM_UTF8)


def _documents(content: bytearray) -> Iterator[tuple[_Document, _Part]]:
    """Yield the documents of a file, in sequence, as appended outputs of kubectl. Raises _NoStateError."""
    try:
        whole = _typed(content)
    except _NoStateError:
        parts = _apart(content)
        first, second = next(parts, None), next(parts, None)
        if first is None or second is None:
            raise
        for part in chain((first, second), parts):
            yield _typed(part), part
    else:
        yield whole, content


def _apart(content: bytearray) -> Iterator[memoryview]:
    """Yield the objects at the top level; none if there is other text between them."""
    depth = begins = ended = 0
    for mark in _TOP_LEVEL.finditer(content):
        if depth == 0:
            begins = mark.start()
            if mark[0] != b"{" or content[ended:begins].strip():
                return
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(bytes(mark[0]), 0)
        if depth == 0:
            ended = mark.end()
            yield memoryview(content)[begins:ended]
    if content[ended:].strip():
        yield memoryview(content)[ended:]


def _typed(part: _Part) -> _Document:
    """Parse kind and items of a document. Raises _NoStateError."""
    try:
        return msgspec.json.decode(part, type=_Document)
    except msgspec.ValidationError as error:
        raise _NoStateError(f"{_NO_JSON}: {_WANTED}") from error
    except (ValueError, RecursionError) as error:
        raise _NoStateError(f"{_NO_JSON}: {error}") from error


def _items(document: _Document) -> list[msgspec.Raw]:
    """Return the objects of a List; empty for any other document. Raises _NoStateError."""
    try:
        return msgspec.json.decode(document.items, type=list[msgspec.Raw])
    except msgspec.ValidationError:
        return []


def _decoded(part: _Part) -> object:
    """Decode one object. Raises _NoStateError, JsonCostError."""
    if memoryview(part).nbytes > _LONGEST_OBJECT:
        raise JsonCostError(f"an object of over {_LONGEST_OBJECT >> 20} MiB, which is the limit")
    try:
        return msgspec.json.decode(part)
    except (ValueError, RecursionError) as error:
        raise _NoStateError(f"{_NO_JSON}: {error}") from error


def _newest(value: object) -> datetime:
    newest, ahead = EARLIEST, [value]
    while ahead:
        one = ahead.pop()
        if isinstance(one, dict):
            moments = (moment_or_none(text) for key, text in one.items() if key in _TIMES)
            newest = max((newest, *filter(None, moments)))
            ahead += one.values()
        elif isinstance(one, list):
            ahead += one
    return newest
