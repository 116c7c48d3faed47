"""HAMi's annotations on a Node: the registered cards, the handshake, the lock, cordoned cards. Pure.

Since HAMi 2.8 no plugin answers the handshake: a request that is days old is normal on healthy nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum

from msgspec import Struct

from diagnosis.snapshot.annotation_text import LONGEST_TEXT, MOST_PARTS, epoch, flag, listed, whole, word
from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import subject
from healthcheck.node import state as node_names
from healthcheck.node.hami import CORDON
from healthcheck.text import strict_json
from healthcheck.text.moments import held, moment_or_none

SCORES = "hami.io/node-nvidia-score"
LOCK = "hami.io/mutex.lock"
_HANDSHAKE = "hami.io/node-handshake"
_NVIDIA = "nvidia"
HAMI_CORE = "hami-core"
MIG_MODE = "mig"
_KEY = re.compile(r"hami\.io/node-(?:register-([A-Za-z0-9_.-]{1,60})|([A-Za-z0-9_.-]{1,60})-register)\Z", re.ASCII)
_AT = re.compile(
    r"(\d{4})[-.](\d{2})[-.](\d{2})[ T](\d{2}):(\d{2}):(\d{2})(?:\.\d{1,9})?(?:(Z)| ?([+-])(\d{2}):?(\d{2}))?", re.ASCII
)


_LINE_END = re.compile(r"(?:[\r\n]|\\[rnt])+ *")
"""Line ends that an editor or a saved manifest adds to a registration, also made printable; HAMi writes none."""


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


class HandshakeState(Enum):
    """State of a handshake. The value is the annotation's first word."""

    REPORTED = "Reported"
    """The plugin has responded: up to 2.7."""
    REQUESTING = "Requesting"
    """The scheduler has sent a request."""
    DELETED = "Deleted"
    """The scheduler gave the node up."""
    OTHER = ""


class Handshake(Struct, frozen=True):
    """Handshake of NVIDIA's plugin. `zoned`: whether the time has a zone; otherwise UTC is assumed."""

    said: HandshakeState
    at: datetime | None
    zoned: bool
    text: str


class NodeLock(Struct, frozen=True):
    """Lock that a scheduler sets while it binds a pod. `at` is None if its time can't be read.

    `pod` is the subject of its owner; '' if an older HAMi does not record it.
    """

    at: datetime | None
    pod: str = ""
    text: str = ""


class HamiNode(Struct, frozen=True):
    """Annotations of HAMi on a node. `registrations`: of all vendors, sorted by vendor.

    `shared`: whether HAMi shares the node's GPUs; the node then offers slots on cards, not cards.
    """

    shared: bool = False
    registrations: tuple[Registration, ...] = ()
    handshake: Handshake | None = None
    lock: NodeLock | None = None
    cordoned: frozenset[str] = frozenset()
    """Cards that are closed to new pods. HAMi before 2.10 ignores this."""
    cordoned_by_agent: frozenset[str] = frozenset()
    """Those of them that the node's agent closed for its findings."""
    scores_unreadable: str = ""
    """Why the link scores of the cards can't be read: HAMi's scheduler then refuses the whole registration."""

    @property
    def registration(self) -> Registration | None:
        """Return the registration of NVIDIA's cards."""
        return next((one for one in self.registrations if one.vendor == _NVIDIA), None)

    @property
    def cards(self) -> tuple[Card, ...]:
        """Return the NVIDIA cards; none if the registration can't be read."""
        return self.registration.cards if self.registration is not None else ()


_WITHOUT = HamiNode()


def read_hami_node(annotations: Mapping[str, str]) -> HamiNode:
    own = {key: text for key, text in annotations.items() if key.startswith("hami.io/")}
    if not own:
        return _WITHOUT
    cordoned = frozenset(listed(own.get(CORDON, "")))
    registered = (_registration(match[1] or match[2], text) for key, text in own.items() if (match := _KEY.match(key)))
    return HamiNode(
        any(key.startswith("hami.io/node-") for key in own),
        tuple(sorted(registered, key=lambda registration: registration.vendor)),
        _handshake(own[_HANDSHAKE]) if _HANDSHAKE in own else None,
        _lock(own[LOCK]) if LOCK in own else None,
        cordoned,
        cordoned & frozenset(listed(annotations.get(node_names.DEVICE_CORDON, ""))),
        _scores_unreadable(own.get(SCORES, "[]")),
    )


def _handshake(text: str) -> Handshake:
    first, _, rest = text.replace("_", " ", 1).partition(" ")
    state = next((each for each in HandshakeState if each.value == first), HandshakeState.OTHER)
    at = epoch(text.strip())
    if at is not None:
        return Handshake(state, at, zoned=True, text=word(text))
    match = _AT.match(rest)
    return Handshake(state, _moment(match) if match else None, bool(match and (match[7] or match[8])), word(text))


def _moment(match: re.Match[str]) -> datetime | None:
    year, month, day, hour, minute, second = (int(group) for group in match.groups()[:6])
    east = timedelta()
    if match[8]:
        east = timedelta(hours=int(match[9]), minutes=int(match[10])) * (1 if match[8] == "+" else -1)
    try:
        return held(datetime(year, month, day, hour, minute, second, tzinfo=timezone(east) if east else UTC))
    except ValueError:
        return None


def _lock(text: str) -> NodeLock:
    at, _, owner = text.partition(",")
    namespace, _, name = owner.partition(",")
    pod = subject("Pod", word(namespace), word(name)) if namespace and name else ""
    return NodeLock(moment_or_none(at.strip()), pod, word(text))


def _scores_unreadable(text: str) -> str:
    try:
        return "" if isinstance(strict_json.loads(text, LONGEST_TEXT), list) else "it is not a list"
    except ValueError as error:
        return word(str(error))


def _registration(vendor: str, text: str) -> Registration:
    text = _LINE_END.sub("", text[: 2 * LONGEST_TEXT]).strip()
    form = RegistrationFormat.JSON if text.startswith("[") else RegistrationFormat.TEXT
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
