"""Standard output and standard error of a program: whatever it says, they take it, and a person can look at it."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from healthcheck.text.printable import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_BY_A_SIGNAL, _COULD_NOT = 128, 2
"""A shell's exit code of a program that a signal ended is so much above its number; and ours."""


def take_any_text() -> None:
    """For a locale without UTF-8: a character that it lacks is written out, and ends no program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def end_with_whoever_reads() -> None:
    """As other programs in a pipe: once nobody reads what we say any more (`| head -1`), we end, as by SIGPIPE.

    The signal itself stays ignored: it would end us for a connection or a child that has gone, too.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _ending_with_its_reader(stream))


def _ending_with_its_reader(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = _Pipe(stream.fileno(), "wb", closefd=False)
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Pipe(io.FileIO):
    """Any thread may write, and nothing of ours is to be put away: no exception that somebody might catch."""

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            os._exit(_BY_A_SIGNAL + signal.SIGPIPE)
        except OSError as error:
            with suppress(OSError):
                os.write(2, f"gpu-healthcheck: what it says can't be written: {error.strerror}\n".encode())
            os._exit(_COULD_NOT)


def complain(program: str, message: str) -> None:
    """Why a program could not do its work. The message may have several lines."""
    say(f"gpu-healthcheck {program}: {message}")


def say(message: str) -> None:
    """On standard error: what of standard output whoever reads that does not want."""
    sys.stderr.write("\n".join(map(printable, message.split("\n"))) + "\n")


def write_document(text: str) -> None:
    """A report on standard output, of several lines: whoever wrote it has made all that strangers said printable."""
    sys.stdout.write(text)


def write_json(value: Any, indent: int | None = None) -> None:
    """One document of plain values and Structs on standard output.

    In plain ASCII: every locale can write it, and no terminal obeys it.
    """
    document = msgspec.json.encode(value)
    if indent is not None:
        document = msgspec.json.format(document, indent=indent)
    if not document.isascii():
        separators = (",", ":") if indent is None else None
        document = json.dumps(json.loads(document), indent=indent, separators=separators).encode()
    sys.stdout.write(document.decode() + "\n")
