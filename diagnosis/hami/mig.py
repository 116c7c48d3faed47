"""Determine whether a card in HAMi's MIG mode has room for another instance, and which one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from diagnosis.hami.card_usage import CardUsage, MigLayout, Share
from diagnosis.snapshot.hami_node import MigProfile

Placement = tuple[int, int]
_FROM_ABOVE = ("1g.", "3g.")
"""Profiles that HAMi places from the last slice down, to keep room for larger ones."""


def has_room(state: CardUsage, memory: int, taken: Iterable[int]) -> bool:
    """Whether an instance fits. `taken`: MiB of the container's instances on the card (up to 2.9: on any card)."""
    if state.layouts:
        return _has_room_in_layout(state, memory, taken)
    placements = list(state.placements)
    for number in taken:
        found = _candidate(state.card.profiles, placements, number)
        if found is None:
            return False
        placements.append(found[1])
    return _candidate(state.card.profiles, placements, memory) is not None


def with_instance(state: CardUsage, memory: int) -> CardUsage | None:
    """Return the card with the new instance, which uses the profile's memory; None if no profile fits."""
    if state.layouts:
        return _with_place_in_layout(state, memory)
    found = _candidate(state.card.profiles, state.placements, memory)
    if found is None:
        return None
    profile, placement = found
    part = state.part.plus(Share(1, profile.memory, profile.cores))
    return replace(state, part=part, placements=(*state.placements, placement))


def _candidate(
    profiles: Iterable[MigProfile], occupied: Sequence[Placement], memory: int
) -> tuple[MigProfile, Placement] | None:
    """Return the smallest profile with enough memory and a free position."""
    for profile in sorted(profiles, key=lambda mig_profile: (mig_profile.memory, mig_profile.slices)):
        if profile.memory < memory:
            continue
        from_above = profile.name.startswith(_FROM_ABOVE)
        for placement in sorted(profile.placements, key=lambda pair: pair[0], reverse=from_above):
            if not any(_overlap(placement, pair) for pair in occupied):
                return profile, placement
    return None


def _overlap(pair: Placement, other: Placement) -> bool:
    return pair[0] < other[0] + other[1] and other[0] < pair[0] + pair[1]


def _has_room_in_layout(state: CardUsage, memory: int, taken: Iterable[int]) -> bool:
    number = state.layout.number if state.layout is not None else _first_layout(state, memory)
    if number is None or number >= len(state.layouts):
        return False
    instances = state.layouts[number].instances
    free = [profile.memory for place, profile in enumerate(instances) if not _in_use(state, place)]
    for wanted in (*taken, memory):
        place = next((place for place, value in enumerate(free) if value >= wanted), None)
        if place is None:
            return False
        del free[place]
    return True


def _with_place_in_layout(state: CardUsage, memory: int) -> CardUsage | None:
    empty = state.layout is None or not state.layout.used
    number = _first_layout(state, memory) if empty else state.layout.number if state.layout is not None else None
    if number is None or number >= len(state.layouts):
        return None
    used: frozenset[int] = frozenset() if empty or state.layout is None else state.layout.used
    for place, profile in enumerate(state.layouts[number].instances):
        if place not in used and profile.memory >= memory:
            part = state.part.plus(Share(1, profile.memory, profile.cores))
            return replace(state, part=part, layout=MigLayout(number, used | {place}))
    return None


def _first_layout(state: CardUsage, memory: int) -> int | None:
    layouts = enumerate(state.layouts)
    return next(
        (number for number, geometry in layouts if any(each.memory >= memory for each in geometry.instances)), None
    )


def _in_use(state: CardUsage, place: int) -> bool:
    return state.layout is not None and place in state.layout.used
