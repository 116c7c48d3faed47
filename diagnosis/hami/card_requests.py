"""Determine a container's request to HAMi, before and after HAMi's webhook. Pure."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.facts.quantity import amount
from diagnosis.hami.settings import HamiSettings
from diagnosis.hami.versions import Version
from diagnosis.snapshot.pods import Container

_INT32 = 1 << 32
_MOST = (1 << 31) - 1
_UNSAID = 101
"""HAMi's value for a percentage that is not set."""
_EXCLUSIVE_SINCE: Version = (2, 7)
_CHECKS_SINCE: Version = (2, 10)
"""First version with checks; before, memory beyond 32 bits wrapped around, and any percentage was accepted."""


class CardRequest(Struct, frozen=True):
    """Request for a number of cards with the same share of each.

    `percentage` applies if `memory`, in MiB, is 0. If `percentage` is None, only `memory` counts, even if it is 0.
    """

    cards: int
    memory: int
    percentage: int | None
    cores: int

    def memory_of(self, total: int) -> int:
        """Return the requested memory in MiB, for a card with this total."""
        if self.memory or self.percentage is None:
            return max(self.memory, 0)
        return total * self.percentage // 100


def asked_of(container: Container, settings: HamiSettings, version: Version) -> CardRequest | None:
    """Return the request; None if the container requests no card from HAMi's scheduler.

    A request needs a number of cards.
    """
    cards = _number(container, settings.count_name)
    if cards is None or not 0 < cards <= _MOST:
        return None
    written = _number(container, settings.memory_name) if _says(container, settings.memory_name) else 0
    memory = _memory(written, settings.memory_factor, version)
    if memory is None:
        return None
    percentage = _percentage(container, settings, version)
    if percentage is None and not written:
        memory, percentage = (settings.default_memory, None) if settings.default_memory else (0, 100)
    cores = _number(container, settings.cores_name)
    return CardRequest(cards, memory, percentage, min(settings.default_cores if cores is None else cores, 100))


def admitted(container: Container, settings: HamiSettings, version: Version) -> Container:
    """Return the container as HAMi's webhook changes it.

    A request for parts only gets a number of cards, and a request for a whole card becomes exclusive.
    """
    limits = dict(container.limits)
    parts = (settings.cores_name, settings.memory_name, settings.percentage_name)
    if settings.count_name not in limits and settings.default_cards > 0 and any(part in limits for part in parts):
        limits[settings.count_name] = str(settings.default_cards)
    container = replace(container, limits=limits)
    if version >= _EXCLUSIVE_SINCE and _wants_whole_card(container, settings):
        limits[settings.cores_name] = "100"
    return container


def _wants_whole_card(container: Container, settings: HamiSettings) -> bool:
    if not _says(container, settings.count_name) or _says(container, settings.cores_name):
        return False
    if _says(container, settings.percentage_name):
        return _number(container, settings.percentage_name) == 100
    return not _says(container, settings.memory_name)


def _memory(written: int | None, factor: int, version: Version) -> int | None:
    """Return the memory in MiB; None if HAMi does not accept the number as a request to itself."""
    if version < _CHECKS_SINCE:
        number = (written or 0) * max(factor, 1) % _INT32
        return number - _INT32 if number > _MOST else number
    if written is None or not 0 <= written <= _MOST // max(factor, 1):
        return None
    return written * max(factor, 1)


def _percentage(container: Container, settings: HamiSettings, version: Version) -> int | None:
    written = _number(container, settings.percentage_name)
    if written is None or version < _CHECKS_SINCE:
        return None if written == _UNSAID else written
    return min(written, 100) if written > 0 else None


def _says(container: Container, name: str) -> bool:
    return bool(name) and (name in container.limits or name in container.requests)


def _number(container: Container, name: str) -> int | None:
    """Return the number; None if it is absent or not a whole number."""
    text = container.limits.get(name) or container.requests.get(name) or ""
    value = amount(text) if name else None
    return int(value) if value is not None and value == value.to_integral_value() else None
