"""Recordings of a terminal in the format asciicast v2: recorded in a pseudo terminal, and drawn as an SVG.

A file has a header and one JSON array for each event: time in seconds, kind and text. Kind `o` is output, `m` the label
of a chapter, here of each command (docs.asciinema.org/manual/asciicast/v2).
"""

from __future__ import annotations

import codecs
import os
import re
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

COLUMNS, ROWS = 80, 32
PROMPT, TYPED, RUN = "\x1b[36m$\x1b[0m ", "\x1b[1m", "\x1b[0m\r\n"
"""Output before a command, before its first character and after its last."""
KEY_SECONDS = 0.04
"""Time of each typed character."""
LONGEST_PAUSE_SECONDS = 3.0
"""Longest time without output: a longer pause is shortened to it."""
READING_SECONDS = 6.0
"""Time after each command, to read its output."""

_TITLE = "gpu-healthcheck"
_CONTROL = re.compile(r"\x1b\[(?P<values>[0-9;?]*)(?P<kind>[A-Za-z])|(?P<text>[^\x1b])")
_STYLES = {1: "b", 2: "d", 31: "r", 32: "g", 33: "y", 35: "m", 36: "c", 90: "d", 91: "r"}
"""Class of the SVG by SGR parameter."""
_ADVANCE, _PITCH, _MARGIN, _BAR = 8.4, 17, 14, 30
"""Width of a character, height of a row, margin, and height of the window's bar, in pixels."""


class Header(Struct, frozen=True, kw_only=True):
    version: Literal[2] = 2
    width: int = COLUMNS
    height: int = ROWS
    title: str = _TITLE


class Event(Struct, frozen=True, array_like=True):
    at: float
    kind: Literal["o", "m"]
    text: str


class Cast(Struct, frozen=True):
    header: Header
    events: tuple[Event, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(event.text for event in self.events if event.kind == "m")

    def lines(self) -> str:
        """Return the recording as the text of its file."""
        return "".join(f"{msgspec.json.encode(line).decode()}\n" for line in (self.header, *self.events))


def read(lines: str) -> Cast:
    """Parse a file's text. Raises msgspec.ValidationError, or msgspec.DecodeError for text that is not JSON."""
    header, *events = lines.splitlines()
    return Cast(
        msgspec.json.decode(header, type=Header), tuple(msgspec.json.decode(line, type=Event) for line in events)
    )


class Recorder:
    """Commands that are typed and run one after the other in a pseudo terminal, with shortened pauses."""

    def __init__(self) -> None:
        self._seconds = 0.5
        self._events: list[Event] = [Event(0.0, "o", PROMPT)]

    def run(self, command: str, folder: Path, environment: Mapping[str, str]) -> int:
        """Type the command, run it with bash, and return its exit code."""
        self._add("m", command)
        self._add("o", TYPED)
        for character in command:
            self._seconds += KEY_SECONDS
            self._add("o", character)
        self._add("o", RUN)
        leader, follower = os.openpty()
        termios.tcsetwinsize(follower, (ROWS, COLUMNS))
        with subprocess.Popen(  # noqa: S603 - the commands of our own script
            ("/bin/bash", "-c", command), cwd=folder, env=environment, stdin=follower, stdout=follower, stderr=follower
        ) as process:
            os.close(follower)
            last = time.monotonic()
            for text in _output(leader):
                now = time.monotonic()
                self._seconds += min(now - last, LONGEST_PAUSE_SECONDS)
                last = now
                self._add("o", text)
        os.close(leader)
        self._seconds += READING_SECONDS
        self._add("o", f"\r\n{PROMPT}")
        return process.returncode

    def cast(self) -> Cast:
        """Return the recording so far, without the prompt after the last command."""
        return Cast(Header(), (*self._events[:-1], Event(self._events[-1].at, "o", "")))

    def _add(self, kind: Literal["o", "m"], text: str) -> None:
        self._events.append(Event(round(self._seconds, 3), kind, text))


def _output(leader: int) -> Iterator[str]:
    """Yield the output of the terminal's programs until the last of them has closed it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            chunk = os.read(leader, 1 << 16)
        except OSError:  # EIO: closed by all programs
            return
        if text := decoder.decode(chunk):
            yield text


class Cell(Struct, frozen=True):
    character: str = " "
    style: str = ""


class Screen:
    """Rows of a terminal that only scrolls: no row is dropped, and no program moves the cursor to a fixed position."""

    def __init__(self) -> None:
        self.rows: list[list[Cell]] = [[]]
        self.changed_at = [0.0]
        """Time of the last change of each row, in seconds."""
        self._row = self._column = 0
        self._style = ""

    def write(self, text: str, at: float) -> None:
        """Write output. Raises ValueError for a control sequence that no command of ours uses."""
        end = 0
        for part in _CONTROL.finditer(text):
            if part.start() != end:
                break
            end = part.end()
            if part["text"]:
                self._character(part["text"], at)
            else:
                self._control(part["kind"], part["values"], at)
        if end != len(text):
            raise ValueError(f"unknown control sequence: {text[end : end + 20]!r}")

    def _character(self, character: str, at: float) -> None:
        if character == "\r":
            self._column = 0
            return
        if character == "\n":
            self._next_row(at)
            return
        if not character.isprintable():
            raise ValueError(f"unknown control character: {character!r}")
        if self._column == COLUMNS:
            self._next_row(at)
            self._column = 0
        cells = self.rows[self._row]
        cells += [Cell()] * (self._column + 1 - len(cells))
        cells[self._column] = Cell(character, self._style)
        self.changed_at[self._row] = at
        self._column += 1

    def _next_row(self, at: float) -> None:
        self._row += 1
        if self._row == len(self.rows):
            self.rows.append([])
            self.changed_at.append(at)

    def _control(self, kind: str, values: str, at: float) -> None:
        match kind, values:
            case "m", _:
                for value in map(int, (values or "0").split(";")):
                    if value and value not in _STYLES:
                        raise ValueError(f"unknown style: {value}")
                    self._style = f"{self._style}{_STYLES[value]}" if value else ""
            case "K", "2":
                self.rows[self._row].clear()
                self.changed_at[self._row] = at
            case "A", "1" | "":
                self._row = max(0, self._row - 1)
            case "h" | "l", "?25":
                pass
            case _:
                raise ValueError(f"unknown control sequence: {values}{kind}")


def screen_of(cast: Cast) -> Screen:
    """Return the rows of the whole recording. Raises ValueError as `Screen.write`."""
    screen = Screen()
    for event in cast.events:
        if event.kind == "o":
            screen.write(event.text, event.at)
    return screen


def svg(cast: Cast) -> str:
    """Return an SVG that plays the recording in a loop: a window over all its rows, which scrolls with time.

    Without animation (`prefers-reduced-motion`, a renderer without CSS) it shows the last screen. Raises ValueError as
    `Screen.write`.
    """
    screen = screen_of(cast)
    width, height = round(COLUMNS * _ADVANCE + 2 * _MARGIN), ROWS * _PITCH + 2 * _MARGIN + _BAR
    duration = cast.events[-1].at
    shown = {f"{100 * at / duration:.1f}": _shift(rows) for at, rows in _scrolled(screen)}
    stops = "".join(f"{percent}%{{transform:translateY({shift}px)}}" for percent, shift in shown.items())
    final = _shift(len(screen.rows))
    texts = "\n".join(text for number, cells in enumerate(screen.rows) for text in _texts(number, cells))
    return _SVG.format(
        width=width,
        height=height,
        title=_TITLE,
        description=escape(", ".join(cast.commands), quote=False),
        duration=f"{duration:.1f}",
        stops=stops,
        final=final,
        texts=texts,
        margin=_MARGIN,
        top=_BAR + _MARGIN,
        inner=ROWS * _PITCH,
        bar=_BAR,
        middle=width / 2,
    )


def _shift(rows: int) -> int:
    """Return the vertical move, in pixels, after which the first `rows` rows end at the lower edge of the window."""
    return (ROWS - rows) * _PITCH


def _scrolled(screen: Screen) -> Iterator[tuple[float, int]]:
    """Yield the times from which on a number of rows is shown: a row once it and all above it are final."""
    latest = 0.0
    for number, changed_at in enumerate(screen.changed_at):
        latest = max(latest, changed_at) if number else latest
        yield latest, number + 1


def _texts(number: int, cells: list[Cell]) -> Iterator[str]:
    """Yield an element for each run of one style in a row, with the exact width of its columns."""
    column = 0
    for style, run in groupby(cells, lambda cell: cell.style):
        text = "".join(cell.character for cell in run)
        start, shown = column + len(text) - len(text.lstrip()), text.strip()
        column += len(text)
        if shown:
            style_class = f' class="{" ".join(sorted(set(style)))}"' if style else ""
            yield (
                f'<text x="{start * _ADVANCE:.1f}" y="{(number + 1) * _PITCH - 4}" '
                f'textLength="{len(shown) * _ADVANCE:.1f}"{style_class}>{escape(shown, quote=False)}</text>'
            )


_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{title} in a terminal</title>
<desc>{description}</desc>
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#e6edf3;white-space:pre}}
.b{{font-weight:700}}.d{{fill:#9198a1}}.r{{fill:#ff7b72}}.g{{fill:#56d364}}.y{{fill:#e3b341}}.m{{fill:#d2a8ff}}.c{{fill:#76e3ea}}
#rows{{animation:play {duration}s step-end infinite}}
@media (prefers-reduced-motion:reduce){{#rows{{animation:none}}}}
@keyframes play{{{stops}}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#0d1117" stroke="#6e7681"/>
<circle cx="20" cy="17" r="5" fill="#6e7681"/><circle cx="38" cy="17" r="5" fill="#6e7681"/>
<circle cx="56" cy="17" r="5" fill="#6e7681"/>
<text x="{middle}" y="22" text-anchor="middle" class="d">{title}</text>
<svg x="{margin}" y="{top}" width="{width}" height="{inner}">
<g id="rows" transform="translate(0,{final})" xml:space="preserve">
{texts}
</g>
</svg>
</svg>
"""
