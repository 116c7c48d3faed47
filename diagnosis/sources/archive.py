"""Read members of a tar archive from a stream, within limits, because headers may be damaged or hostile.

`tarfile` treats a damaged header as the end of the archive, and trusts any size in a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from gpu_healthcheck.healthcheck.text.printable import printable

LONGEST = 512 << 20
"""Bytes of all members that are read."""
MOST_HEADERS = 16_384
_BLOCK = 512
_MOST_EXTENDED = 1 << 16
"""Bytes of an extended header: longer names than any file system has."""
_LONGEST_NAME, _LONGEST_SHOWN = 4096, 120
_REGULAR = frozenset((b"0", b"\0", b"7"))
_WITHOUT_CONTENT = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))
"""Links, devices, folders and pipes: whatever size their header names, no content follows it."""
_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK, _SPARSE = b"x", b"g", b"L", b"K", b"S"
_EXTENDED = frozenset((_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK))
_CHECKSUM = re.compile(rb" {0,5}[0-7]{1,7}(?:\0 ?| \0)")
"""Field of a header's checksum, as packers write it. The checksum does not cover the field itself."""
_MAGIC = slice(257, 262)
_PAX_RECORD = re.compile(rb"([0-9]{1,5}) ([^=]{1,256})=")


class ArchiveError(ValueError):
    """Archive exceeds the limits for reading. The message states the limit."""


class _Damaged(Exception):
    """Archive is damaged. The message describes the damage."""


class _Header(Struct, frozen=True):
    name: str
    kind: bytes
    size: int


class Archive:
    """Single-pass reader of a tar archive.

    After the last member, `damage` states why a part could not be read; '' if all of it was read. `read_to` is the name
    of the last member that was read completely.
    """

    def __init__(self, chunks: Iterator[bytes], suffix: str) -> None:
        self._stream = _Stream(chunks)
        self._suffix = suffix
        self._left = LONGEST
        self.damage = ""
        self.read_to = ""

    def members(self) -> Iterator[tuple[str, bytearray]]:
        """Yield regular files with the suffix, with their names. Raises ArchiveError."""
        try:
            for header in self._headers():
                if header.kind in _REGULAR and header.name.endswith(self._suffix):
                    yield header.name, self._stream.take(header.size)
                    self.read_to = header.name
                    self._stream.skip(-header.size % _BLOCK)
                elif header.kind not in _WITHOUT_CONTENT:
                    self._stream.skip(header.size + -header.size % _BLOCK)
        except _Damaged as error:
            place = f"after {self.read_to[:_LONGEST_SHOWN]}" if self.read_to else "at its beginning"
            self.damage = f"damaged {place}: {error}"

    def _headers(self) -> Iterator[_Header]:
        """Yield headers of members, with name and size from preceding extended headers."""
        fields: dict[str, str] = {}
        for _ in range(MOST_HEADERS):
            header = self._next()
            if header is None:
                return
            if header.kind in _EXTENDED:
                fields |= self._extended(header)
                continue
            size = _number(fields["size"]) if "size" in fields else header.size
            name = printable(fields.get("path", header.name), _LONGEST_NAME)
            sparse = header.kind == _SPARSE or any(key.startswith("GNU.sparse.") for key in fields)
            if sparse and name.endswith(self._suffix):
                raise ArchiveError(f"{name[:_LONGEST_SHOWN]} is a sparse file; pack it as a plain one")
            header = _Header(name, header.kind, self._bounded(name, size))
            yield header
            fields = {}
        raise ArchiveError(f"over {MOST_HEADERS:,} headers, which is the limit")

    def _next(self) -> _Header | None:
        """Return the next header, or None at the end of the archive, after which only zeros may follow."""
        block = self._stream.take(_BLOCK)
        if block.count(0) == _BLOCK:
            if not self._stream.only_zeros():
                raise _Damaged("data follows its end marker")
            return None
        if not _is_header(block):
            raise _Damaged("the checksum of a header is wrong")
        return _parse(block)

    def _extended(self, header: _Header) -> dict[str, str]:
        if not 0 <= header.size <= _MOST_EXTENDED:
            raise ArchiveError(f"an extended header of {header.size:,} bytes; at most {_MOST_EXTENDED:,} are read")
        raw = self._stream.take(header.size)
        self._stream.skip(-header.size % _BLOCK)
        if header.kind == _LONG_NAME:
            return {"path": raw.split(b"\0")[0].decode("utf-8", "replace")}
        return dict(_pax(raw)) if header.kind == _PAX else {}

    def _bounded(self, name: str, size: int) -> int:
        if size < 0:
            raise ArchiveError(f"{name[:_LONGEST_SHOWN]} has a negative size in its header")
        self._left -= size
        if self._left < 0:
            raise ArchiveError(f"over {LONGEST >> 20} MiB unpacked, which is the limit")
        return size


class _Stream:
    """Bytes of an iterator of blocks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def take(self, size: int) -> bytearray:
        """Read `size` bytes. Raises _Damaged if fewer bytes are left."""
        taken = bytearray()
        for part in self._parts(size):
            taken += part
        return taken

    def skip(self, size: int) -> None:
        """Skip `size` bytes. Raises _Damaged if fewer bytes are left."""
        for _ in self._parts(size):
            pass

    def only_zeros(self) -> bool:
        """Read to the end, where an unpacker verifies its checksum; a sparse file of zeros is limited."""
        read = 0
        while self._rest and read < LONGEST:
            if bytes(self._rest).strip(b"\0"):
                return False
            read += len(self._rest)
            self._rest = memoryview(next(self._chunks, b""))
        return True

    def _parts(self, size: int) -> Iterator[memoryview]:
        while size:
            if not self._rest:
                self._rest = memoryview(next(self._chunks, b""))
                if not self._rest:
                    raise _Damaged("it ends early")
            part, self._rest = self._rest[:size], self._rest[size:]
            size -= len(part)
            yield part


def is_archive(head: bytes) -> bool:
    """Whether a file with this head is a tar archive. It may be damaged."""
    return len(head) >= _BLOCK and (head[_MAGIC] == b"ustar" or _is_header(head[:_BLOCK]))


def _is_header(block: bytes | bytearray) -> bool:
    """Whether the block is a tar header, by its checksum."""
    if not _CHECKSUM.fullmatch(block[148:156]):
        return False
    return _number(block[148:156]) == sum(block[:148]) + 8 * 0x20 + sum(block[156:])


def _parse(block: bytes | bytearray) -> _Header:
    name = block[:100].split(b"\0")[0]
    if block[257:263] == b"ustar\0" and (prefix := block[345:500].split(b"\0")[0]):
        name = prefix + b"/" + name
    return _Header(name.decode("utf-8", "replace"), bytes(block[156:157]), _number(block[124:136]))


def _number(field: bytes | bytearray | str) -> int:
    """Parse a number of a header. Raises _Damaged.

    A field holds octal digits, or base 256 if the number is too long for them. An extended header holds decimal digits.
    """
    try:
        if isinstance(field, str):
            return int(field[:20])
        if field[0] in (0x80, 0xFF):
            return int.from_bytes(field[1:], "big", signed=field[0] == 0xFF)
        return int(field.split(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        raise _Damaged("a number in a header is invalid") from None


def _pax(raw: bytearray) -> Iterator[tuple[str, str]]:
    """Yield key and value of each record `LENGTH KEY=VALUE`. Raises _Damaged."""
    at = 0
    while at < len(raw):
        record = _PAX_RECORD.match(raw, at)
        end = at + int(record[1]) if record else 0
        if record is None or not record.end() < end <= len(raw):
            raise _Damaged("an extended header can't be read")
        yield record[2].decode("utf-8", "replace"), raw[record.end() : end - 1].decode("utf-8", "replace")
        at = end
