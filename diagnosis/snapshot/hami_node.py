"""HAMi's annotations on a Node: the registered cards, the handshake, the lock, cordoned cards. Pure.

Since HAMi 2.8 no plugin answers the handshake: a request that is days old is normal on healthy nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Annotated

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot.hami_pod import (
    LONGEST_ANNOTATION,
    LONGEST_WORD,
    MOST_ENTRIES,
    boolean,
    list_items,
    short,
    whole_number,
)
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.healthcheck.node import state as node_names
from gpu_healthcheck.healthcheck.node.hami import CORDON
from gpu_healthcheck.healthcheck.text import strict_json
from gpu_healthcheck.healthcheck.text.boundary import At, entries, listed, read, text, value_at, whole
from gpu_healthcheck.healthcheck.text.moments import moment_or_none

LOCK = "hami.io/mutex.lock"
_word = partial(text, longest=LONGEST_WORD)
HANDSHAKE = "hami.io/node-handshake"
_NVIDIA = "nvidia"
HAMI_CORE = "hami-core"
MIG_MODE = "mig"
_REGISTER_KEY = re.compile(
    r"hami\.io/node-(?:register-([A-Za-z0-9_.-]{1,60})|([A-Za-z0-9_.-]{1,60})-register)\Z", re.ASCII
)
_UNANSWERED = re.compile(r"(?:Requesting|Deleted)_(\d{4})[-.](\d{2})[-.](\d{2}) (\d{2}:\d{2}:\d{2})\Z", re.ASCII)
"""Handshake of the scheduler. A plugin up to 2.7 answers with `Reported …`."""
_LINE_END = re.compile(r"(?:[\r\n]|\\[rnt])+ *")
"""Line ends that an editor or a saved manifest adds to a registration, also made printable; HAMi writes none."""


class RegistrationFormat(Enum):
    """Format of a registration. A scheduler reads only the format of its own version."""

    JSON = "JSON, as HAMi 2.8 and later read it"
    TEXT = "text, as HAMi up to 2.7 reads it"


def _amount(value: object) -> int:
    return whole_number(str(whole(value)))


def _mode(card: object) -> str:
    return _word(value_at(card, "mode") or "")


def _largest_profile(profiles: object) -> int | None:
    return max((_amount(value_at(profile, "memoryMB") or 0) for profile in entries(profiles)), default=None)


class Card(Struct, frozen=True):
    """Card as its node registered it.

    `slots` pods may share it. `memory` is in MiB, and may be scaled beyond the physical memory. `largest_profile`: MiB
    of its largest MIG profile; None if it has no list of profiles.
    """

    uuid: Annotated[str, At("id"), _word] = ""
    index: Annotated[int, _amount] = 0
    slots: Annotated[int, At("count"), _amount] = 0
    memory: Annotated[int, At("devmem"), _amount] = 0
    cores: Annotated[int, At("devcore"), _amount] = 0
    model: Annotated[str, At("type"), _word] = ""
    healthy: Annotated[bool, At("health")] = False
    numa: int = 0
    mode: Annotated[str, At(""), _mode] = HAMI_CORE
    largest_profile: Annotated[int | None, At("migProfiles"), _largest_profile] = None


class Registration(Struct, frozen=True):
    """One registration annotation.

    `unreadable` is the reason why no scheduler can read it; there are then no cards.
    """

    vendor: str
    """Vendor of the cards, as `nvidia`, `dcu` or `Ascend910B`."""
    form: RegistrationFormat
    cards: tuple[Card, ...] = ()
    unreadable: str = ""


class Handshake(Struct, frozen=True):
    """Handshake of NVIDIA's plugin. `unanswered_since` is None if the plugin answered, or the time can't be read."""

    annotation: str
    unanswered_since: datetime | None


class NodeLock(Struct, frozen=True):
    """Lock that a scheduler sets while it binds a pod. `at` is None if its time can't be read.

    `pod` is the subject of its owner; '' if an older HAMi does not record it.
    """

    at: datetime | None
    pod: str = ""
    annotation: str = ""


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

    @property
    def registration(self) -> Registration | None:
        """Return the registration of NVIDIA's cards."""
        return next((registration for registration in self.registrations if registration.vendor == _NVIDIA), None)

    @property
    def cards(self) -> tuple[Card, ...]:
        """Return the NVIDIA cards; none if the registration can't be read."""
        return self.registration.cards if self.registration is not None else ()


_WITHOUT = HamiNode()


def read_hami_node(annotations: Mapping[str, str]) -> HamiNode:
    own = {key: annotation for key, annotation in annotations.items() if key.startswith("hami.io/")}
    if not own:
        return _WITHOUT
    cordoned = frozenset(list_items(own.get(CORDON, "")))
    registrations = (
        _registration(match[1] or match[2], annotation)
        for key, annotation in own.items()
        if (match := _REGISTER_KEY.match(key))
    )
    return HamiNode(
        any(key.startswith("hami.io/node-") for key in own),
        tuple(sorted(registrations, key=lambda registration: registration.vendor)),
        _handshake(own[HANDSHAKE]) if HANDSHAKE in own else None,
        _lock(own[LOCK]) if LOCK in own else None,
        cordoned,
        cordoned & frozenset(list_items(annotations.get(node_names.DEVICE_CORDON, ""))),
    )


def _handshake(annotation: str) -> Handshake:
    match = _UNANSWERED.match(annotation)
    at = moment_or_none(f"{match[1]}-{match[2]}-{match[3]}T{match[4]}Z") if match else None
    return Handshake(short(annotation), at)


def _lock(annotation: str) -> NodeLock:
    at, _, owner = annotation.partition(",")
    namespace, _, name = owner.partition(",")
    pod = subject("Pod", short(namespace), short(name)) if namespace and name else ""
    return NodeLock(moment_or_none(at.strip()), pod, short(annotation))


def _registration(vendor: str, annotation: str) -> Registration:
    annotation = _LINE_END.sub("", annotation[: 2 * LONGEST_ANNOTATION]).strip()
    form = RegistrationFormat.JSON if annotation.startswith("[") else RegistrationFormat.TEXT
    try:
        cards = tuple(_from_json(annotation) if form is RegistrationFormat.JSON else _from_text(annotation))
    except ValueError as error:
        return Registration(vendor, form, (), short(str(error)))
    return Registration(vendor, form, cards)


def _from_json(annotation: str) -> tuple[Card, ...]:
    """Return the cards of a JSON registration. Go omits fields that are zero or false."""
    cards = listed(strict_json.loads(annotation, LONGEST_ANNOTATION))
    if len(cards) > MOST_ENTRIES:
        raise ValueError(f"more than {MOST_ENTRIES} cards")
    return tuple(read(Card, card) for card in cards)


def _from_text(annotation: str) -> Iterator[Card]:
    """Yield the cards of a text registration. One unreadable card makes all unreadable, as in HAMi."""
    if len(annotation) > LONGEST_ANNOTATION or ":" not in annotation:
        raise ValueError("no card ends with a colon" if len(annotation) <= LONGEST_ANNOTATION else "it is too long")
    for number, card in enumerate(part for part in annotation.split(":") if part):
        fields = card.split(",")
        if len(fields) not in (7, 9) or number >= MOST_ENTRIES:
            raise ValueError(f"a card of {len(fields)} fields: 7 or 9 are known")
        slots, memory, cores = map(whole_number, fields[1:4])
        index, mode = (whole_number(fields[7]), short(fields[8])) if len(fields) == 9 else (number, HAMI_CORE)
        numa = -whole_number(fields[5][1:]) if fields[5].startswith("-") else whole_number(fields[5])
        yield Card(short(fields[0]), index, slots, memory, cores, short(fields[4]), boolean(fields[6]), numa, mode)
