"""Parse the cards that a device plugin registered in the node's annotations. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache

from msgspec import Struct

from diagnosis.facts.gpu_nodes import HAMI_REGISTER
from diagnosis.hami.annotation_text import LONGEST_TEXT, MOST_PARTS, flag, listed, whole, word
from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.nodes import Node
from healthcheck.text import strict_json

CORDON = "hami.io/device-cordon"
SCORES = "hami.io/node-nvidia-score"
HAMI_CORE = "hami-core"
MIG_MODE = "mig"
_KEY = re.compile(r"hami\.io/node-(?:register-([A-Za-z0-9_.-]{1,60})|([A-Za-z0-9_.-]{1,60})-register)\Z", re.ASCII)


class RegistrationFormat(Enum):
    """Format of a registration. A scheduler reads only the format of its own version."""

    JSON = "JSON, as HAMi 2.8 and later read it"
    TEXT = "text, as HAMi up to 2.7 reads it"


class MigProfile(Struct, frozen=True):
    """MIG profile that a card allows. `placements`: first slice and number of slices."""

    name: str
    memory: int
    cores: int
    slices: int
    placements: tuple[tuple[int, int], ...] = ()


class Card(Struct, frozen=True):
    """Card as its node registered it.

    `slots` pods may share it. `memory` is in MiB, and may be scaled beyond the physical memory.
    """

    uuid: str
    index: int
    slots: int
    memory: int
    cores: int
    kind: str
    healthy: bool
    numa: int = 0
    mode: str = HAMI_CORE
    profiles: tuple[MigProfile, ...] = ()


class Registration(Struct, frozen=True):
    """One registration annotation.

    `unreadable` is the reason why no scheduler can read it; there are then no cards.
    """

    vendor: str
    """Vendor of the cards, as `nvidia`, `dcu` or `Ascend910B`."""
    form: RegistrationFormat
    cards: tuple[Card, ...] = ()
    unreadable: str = ""


def registrations(node: Node) -> tuple[Registration, ...]:
    """Return the registrations of all vendors on a node, sorted by vendor."""
    found = []
    for key, text in node.meta.annotations.items():
        if match := _KEY.match(key):
            found.append(_read(match[1] or match[2], text))
    return tuple(sorted(found, key=lambda registration: registration.vendor))


def registration(node: Node) -> Registration | None:
    """Return the registration of NVIDIA's cards; None if there is none."""
    text = node.meta.annotations.get(HAMI_REGISTER)
    return None if text is None else _read("nvidia", text)


def registered(node: Node) -> tuple[Card, ...]:
    """Return the node's NVIDIA cards; none if the registration can't be read."""
    registered = registration(node)
    return registered.cards if registered is not None else ()


def scores_unreadable(node: Node) -> str:
    """Return why the link scores of the node's cards can't be read; '' if they can, or are absent.

    With unreadable scores, HAMi's scheduler refuses the whole registration.
    """
    text = node.meta.annotations.get(SCORES)
    try:
        listed_scores = strict_json.loads(text, LONGEST_TEXT) if text is not None else []
    except ValueError as error:
        return word(str(error))
    return "" if isinstance(listed_scores, list) else "it is not a list"


def cordoned(node: Node) -> frozenset[str]:
    """Return the cards that a person has closed to new pods. HAMi before 2.10 ignores this."""
    return frozenset(listed(node.meta.annotations.get(CORDON, "")))


@lru_cache(maxsize=8192)
def _read(vendor: str, text: str) -> Registration:
    form = RegistrationFormat.JSON if text.lstrip().startswith("[") else RegistrationFormat.TEXT
    try:
        cards = tuple(_from_json(text) if form is RegistrationFormat.JSON else _from_text(text))
    except ValueError as error:
        return Registration(vendor, form, (), word(str(error)))
    return Registration(vendor, form, cards)


def _from_json(text: str) -> Iterator[Card]:
    """Yield the cards of a JSON registration. Go omits fields that are zero or false."""
    listed_cards = strict_json.loads(text, LONGEST_TEXT)
    if len(listed_cards) > MOST_PARTS or not all(isinstance(card, dict) for card in listed_cards):
        raise ValueError("it contains entries other than cards")
    for fields in map(Fields, listed_cards):
        slots, memory, cores = (_amount(fields, key) for key in ("count", "devmem", "devcore"))
        yield Card(
            word(fields.text("id")),
            _amount(fields, "index"),
            slots,
            memory,
            cores,
            word(fields.text("type")),
            fields.flag("health"),
            fields.number("numa") or 0,
            word(fields.text("mode")),
            tuple(_profile(profile) for profile in fields.each("migProfiles")),
        )


def _amount(card: Fields, key: str) -> int:
    if not card.has(key):
        return 0
    number = card.number(key)
    return whole("no number" if number is None else str(number))


def _profile(raw: Fields) -> MigProfile:
    placements = tuple((_amount(fields, "start"), _amount(fields, "size")) for fields in raw.each("placements"))
    memory, cores, slices = (_amount(raw, key) for key in ("memoryMB", "core", "sliceCount"))
    return MigProfile(word(raw.text("name")), memory, cores, slices, placements)


def _from_text(text: str) -> Iterator[Card]:
    """Yield the cards of a text registration. One unreadable card makes all unreadable, as in HAMi."""
    if len(text) > LONGEST_TEXT or ":" not in text:
        raise ValueError("no card ends with a colon" if len(text) <= LONGEST_TEXT else "it is too long")
    for number, part in enumerate(name for name in text.split(":") if name):
        words = part.split(",")
        if len(words) not in (7, 9) or number >= MOST_PARTS:
            raise ValueError(f"a card of {len(words)} fields: 7 or 9 are known")
        slots, memory, cores = (whole(name) for name in words[1:4])
        index = whole(words[7]) if len(words) == 9 else number
        numa = -whole(words[5][1:]) if words[5].startswith("-") else whole(words[5])
        mode = word(words[8]) if len(words) == 9 else HAMI_CORE
        yield Card(word(words[0]), index, slots, memory, cores, word(words[4]), flag(words[6]), numa, mode)
