"""Parse and format amounts of a resource as Kubernetes writes them: `8`, `1500m`, `64Gi`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache

_FORM = re.compile(
    r"([+-]?\d{1,20}(?:\.\d{1,9})?|\.\d{1,9})(?:([eE][+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)\Z", re.ASCII
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MOST = Decimal((1 << 63) - 1)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


@lru_cache(maxsize=4096)
def amount(text: str) -> Decimal | None:
    """Parse cores, bytes or a count; None for a text that Kubernetes would not accept.

    As in Kubernetes, no value exceeds 2^63 - 1.
    """
    form = _FORM.match(text)
    if form is None:
        return None
    number, exponent, suffix = form.groups()
    if exponent:
        value = Decimal(number + exponent)
    elif suffix in _BINARY:
        value = Decimal(number) * (1 << _BINARY[suffix])
    else:
        value = Decimal(number).scaleb(_DECIMAL[suffix or ""])
    return max(min(value, _MOST), -_MOST)


def count_of(amounts: Mapping[str, str], resource: str) -> int:
    """Return the whole number of a resource; 0 if it is absent or malformed."""
    return int(amount(amounts.get(resource, "0")) or 0)


def digits(text: str, otherwise: int) -> int:
    """Parse a label with a number of at most five digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else otherwise


def shown(resource: str, value: Decimal) -> str:
    """Format an amount for people: memory in Gi, any other resource as a plain number."""
    if resource == "memory" or resource.endswith("storage") or resource.startswith("hugepages-"):
        return f"{_plain(round(value / (1 << 30), 1))}Gi"
    return _plain(value)


def counted(number: int, word: str) -> str:
    """Format as `1 node` or `3 nodes`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"
