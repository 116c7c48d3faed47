"""Standard output and standard error of a program, safe for any text and any reader."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import msgspec

from gpu_healthcheck.healthcheck.text.printable import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_BY_A_SIGNAL, _COULD_NOT = 128, 2
"""Offset that a shell adds to the signal number in an exit code, as this project does."""


def take_any_text() -> None:
    """Write characters that the locale lacks as escapes.

    Without this, programs would fail in a locale without UTF-8.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def end_with_whoever_reads() -> None:
    """End the program when the reader of its output has gone (`| head -1`), with the exit code of SIGPIPE.

    The signal itself stays ignored, because it would also end the program for a closed connection or an ended child.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _closed(name))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _ending_with_its_reader(stream))


def _closed(name: str) -> IO[Any]:
    """Return a stream in place of one that the caller closed (`>&-`). Output fails when it is written, not before.

    Its descriptor must be open: the next opened file would otherwise get it, and the output.
    """
    flags, mode = (os.O_WRONLY, "w") if name == "stderr" else (os.O_RDONLY, "r")
    return os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8", closefd=False)


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
    """Output file that ends the process when its reader has gone.

    It raises no exception, because a caller could catch it. The process can end from any thread, because it has nothing
    to clean up.
    """

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            os._exit(_BY_A_SIGNAL + signal.SIGPIPE)
        except OSError as error:
            with suppress(OSError):
                os.write(2, f"gpu-healthcheck: the output can't be written: {error.strerror}\n".encode())
            os._exit(_COULD_NOT)


def complain(program: str, message: str) -> None:
    """Print the reason why a program could not do its work. The message may have several lines."""
    say(f"gpu-healthcheck {program}: {message}")


def say(message: str) -> None:
    """Print to stderr, for text that does not belong in the command's output."""
    sys.stderr.write("\n".join(map(printable, message.split("\n"))) + "\n")


def write_document(text: str) -> None:
    """Print a report of several lines to stdout.

    The caller must have made all external text in it printable.
    """
    sys.stdout.write(text)


def write_json(value: Any, indent: int | None = None) -> None:
    """Print plain values and Structs to stdout as one JSON document.

    It is plain ASCII, so that all locales can write it and no text can control the terminal.
    """
    document = msgspec.json.encode(value)
    if indent is not None:
        document = msgspec.json.format(document, indent=indent)
    if not document.isascii():
        separators = (",", ":") if indent is None else None
        document = json.dumps(json.loads(document), indent=indent, separators=separators).encode()
    sys.stdout.write(document.decode() + "\n")
