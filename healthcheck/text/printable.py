"""Sanitising of foreign text for records, Events, log lines and terminals."""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST = 4096
"""Default limit in characters. No kernel log record with a fault is longer, and no person reads more."""
_INVISIBLE = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
            *(*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)),
        ),
    )
)
"""Invisible letters and marks, which make two names appear equal.

They are Unicode's Default_Ignorable_Code_Point without the format characters, and the empty Braille pattern.
"""
_BLANKS = frozenset(map(chr, (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)))
"""Unicode's space separators except the common blank. They occur in ordinary text of many languages."""
_TORN = re.compile(r"\\(?:x[0-9a-f]?|u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?\Z")


def printable(text: str, longest: int = LONGEST) -> str:
    """Return the text on one line of at most `longest` characters, all of them visible and without effect.

    Control and format characters (ESC, line ends, marks of writing direction), unpaired surrogates and other invisible
    characters are replaced by Python's escape sequences. Any kind of blank becomes a space. A shortened text ends with
    `…`. Applied to its own result, the function changes nothing.
    """
    if len(text) <= longest and text.isascii() and text.isprintable():
        return text
    message = _seen(text[: longest + 1])
    return message if len(message) <= longest else _TORN.sub("", message[: longest - 1]) + "…"


def are_printable(texts: Iterable[str]) -> bool:
    """Whether `printable` would change none of the texts.

    The result may be False if the total length of the texts is large.
    """
    together = "".join(texts)
    return len(together) <= LONGEST and together.isascii() and together.isprintable()


def _seen(text: str) -> str:
    if text.isprintable() and _INVISIBLE.isdisjoint(text):
        return text
    return "".join(name if name.isprintable() and name not in _INVISIBLE else _written_out(name) for name in text)


def _written_out(character: str) -> str:
    return " " if character in _BLANKS else character.encode("unicode_escape").decode("ascii")
