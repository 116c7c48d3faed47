"""Reader of a saved file, packed or plain: blocks of whole lines, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import BinaryIO

from gpu_healthcheck.healthcheck.model import ProbeError

LONGEST_LINE = 65536
MOST_UNPACKED = 1 << 30
"""Most bytes of an unpacked capture. A bug report has tens of MB, a decompression bomb is endless."""
ENOUGH_TO_KNOW = 65536
"""Bytes from which the kind of a file is recognised."""
_BLOCK = 1 << 20
_STEP = 1 << 10
_GZIP = b"\x1f\x8b"
_EXTRA, _NAME = 0x04, 0x08
_EFFORTS, _SYSTEMS = frozenset((0, 2, 4)), frozenset((*range(20), 255))
"""Values of the fields XFL and OS in a gzip head: those of RFC 1952, and the systems of zlib's zutil.h."""
_UTF8_MARK = b"\xef\xbb\xbf"
_OTHER_PACKERS = {b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class CaptureError(ProbeError):
    """Error for a file that is not a capture or cannot be read.

    The message names the expected format.
    """


class InputFile:
    """One open file, which can be read only once.

    `cut` describes the part that could not be read; it is empty if the whole file was read.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._text = self._read_text()
        self.cut = ""

    def blocks(self) -> Iterator[bytes]:
        """Yield blocks of whole lines. The end of a line longer than LONGEST_LINE is dropped. Raises CaptureError."""
        rest, skipping = b"", False
        for block in self.text():
            if skipping:
                _, newline, block = block.partition(b"\n")  # noqa: PLW2901 - drops the rest of an endless line
                if not newline:
                    continue
                skipping = False
            head, newline, tail = block.rpartition(b"\n")
            if newline:
                yield rest + head + newline
                rest = tail
            else:
                rest += tail
            if len(rest) > LONGEST_LINE:
                yield rest[:LONGEST_LINE] + b"\n"
                rest, skipping = b"", True
        if rest:
            yield rest + b"\n"

    def whole(self, most: int) -> bytes:
        """Return the whole content, decoded.

        Raises CaptureError if the content is damaged or longer than `most` bytes.
        """
        plain = bytearray()
        for chunk in self.text():
            plain += chunk
            if len(plain) > most:
                raise CaptureError(f"more than {most >> 20} MiB")
        if self.cut:
            raise CaptureError(self.cut)
        return bytes(plain)

    def beginning(self) -> bytes:
        """Return the first chunks of the text, which `text` yields again. Raises CaptureError."""
        head = b""
        while len(head) < ENOUGH_TO_KNOW and (chunk := next(self._text, b"")):
            head += chunk
        self._text = chain((head,) if head else (), self._text)
        return head

    def text(self) -> Iterator[bytes]:
        """Return the unpacked content without a byte order mark. Raises CaptureError, also for UTF-16."""
        return self._text

    def _read_text(self) -> Iterator[bytes]:
        chunks = self.unpacked()
        first = next(chunks, b"")
        # Without a mark, the first character in UTF-16 has exactly one NUL. A crash leaves more of them.
        if first.startswith(_UTF16_MARKS) or first[:2].count(0) == 1:
            raise CaptureError("UTF-16 text: save it as UTF-8")
        yield first.removeprefix(_UTF8_MARK)
        yield from chunks

    def unpacked(self) -> Iterator[bytes]:
        """Yield the content in blocks, unpacked if the file is a gzip file.

        Raises CaptureError if the file is packed in another format or cannot be read.
        """
        first = self._read()
        for magic, name in _OTHER_PACKERS.items():
            if first.startswith(magic):
                raise CaptureError(f"packed with {name}: unpack it first (gzip is read as it is)")
        if not first.startswith(_GZIP):
            while first:
                yield first
                first = self._read()
            return
        yield from self._gunzipped(first)

    def _gunzipped(self, packed: bytes) -> Iterator[bytes]:
        """Yield the content of all members of a gzip file.

        `nvidia-bug-report.sh` writes one member per section.
        """
        unpacker, size, members, starts = zlib.decompressobj(wbits=31), 0, 0, True
        while packed:
            before = unpacker.copy()
            if starts and _has_damaged_head(packed):  # its content has a checksum of its own
                self.cut = f"the head of gzip member {members + 1} is damaged"
            try:
                plain = unpacker.decompress(packed, _BLOCK)
            except zlib.error as error:
                plain = _up_to_damage(before, packed)
                if not size and not plain:
                    raise CaptureError(f"a gzip file that cannot be unpacked: {error}") from error
                self.cut = f"the gzip data is damaged after {size + len(plain)} bytes unpacked"
                yield plain
                return
            size += len(plain)
            if size > MOST_UNPACKED:
                raise CaptureError(f"unpacks to more than {MOST_UNPACKED >> 20} MiB; unpack it and pass a part")
            if plain:
                yield plain
            starts = unpacker.eof
            if unpacker.eof:
                packed = unpacker.unused_data.lstrip(b"\0") or self._read().lstrip(b"\0")  # padding of a tape or a disk
                members += 1
                if packed and not packed.startswith(_GZIP[: len(packed)]):
                    self.cut = f"something else follows after gzip member {members}"
                    return
                unpacker = zlib.decompressobj(wbits=31)
            else:
                packed = unpacker.unconsumed_tail or self._read()
                if not packed:
                    self.cut = f"the gzip data ends early, after {size} bytes unpacked"

    def _read(self) -> bytes:
        try:
            return self._stream.read(_BLOCK)
        except OSError as error:
            raise CaptureError(error.strerror or str(error)) from error


def _has_damaged_head(packed: bytes) -> bool:
    """Whether the head of a gzip member has a value that no packer writes. Few packers add a checksum of the head."""
    if len(packed) < 12:
        return False
    flags, name_at = packed[3], 10
    if flags & _EXTRA:
        name_at += 2 + int.from_bytes(packed[10:12], "little")
    name = packed[name_at:].split(b"\0", 1)[0][:LONGEST_LINE] if flags & _NAME else b""
    return packed[8] not in _EFFORTS or packed[9] not in _SYSTEMS or not _is_name(name)


def _is_name(name: bytes) -> bool:
    """Whether a file name is free of control characters, in UTF-8 or in Latin-1."""
    try:
        return name.decode().isprintable()
    except UnicodeDecodeError:
        return name.decode("latin-1").isprintable()


def _up_to_damage(unpacker: zlib._Decompress, packed: bytes) -> bytes:
    """Unpack the data up to the damage, in small steps.

    zlib returns no output for the step that fails.
    """
    plain = b""
    with suppress(zlib.error):
        while packed:
            plain += unpacker.decompress(packed, _STEP)
            packed = unpacker.unconsumed_tail
    return plain
