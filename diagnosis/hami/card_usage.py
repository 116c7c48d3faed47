"""Add up the cards of a node and the share of each pod, as HAMi's scheduler does. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.hami.settings import Geometry, HamiSettings
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.hami_node import HAMI_CORE, MIG_MODE, Card
from diagnosis.snapshot.hami_pod import ContainerShare, PodGrant
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import Pod, condition_in

_OF_LAYOUT = re.compile(r"\[(\d{1,3})-(\d{1,3})\]\Z", re.ASCII)


class Share(Struct, frozen=True):
    """Part of one card, in slots, MiB and percent."""

    slots: int = 0
    memory: int = 0
    cores: int = 0

    def with_share(self, share: ContainerShare) -> Share:
        return Share(self.slots + 1, self.memory + share.memory, self.cores + share.cores)

    def plus(self, other: Share) -> Share:
        return Share(self.slots + other.slots, self.memory + other.memory, self.cores + other.cores)

    def at_least(self, other: Share) -> Share:
        return Share(max(self.slots, other.slots), max(self.memory, other.memory), max(self.cores, other.cores))


class MigLayout(Struct, frozen=True):
    """MIG layout of a card up to 2.9: its number, and the instances in use."""

    number: int
    used: frozenset[int] = frozenset()


class CardUsage(Struct, frozen=True):
    """Card with its parts in use. `placements`: slices that its MIG instances occupy, from 2.10."""

    card: Card
    part: Share = Share()
    pods: tuple[tuple[str, Share], ...] = ()
    """Pods by subject, each with its part."""
    placements: tuple[tuple[int, int], ...] = ()
    layout: MigLayout | None = None
    layouts: tuple[Geometry, ...] = ()
    cordoned: bool = False
    cordoned_by_agent: bool = False
    mixed: bool = False
    """Whether a MIG task owns a part of a card that is not in MIG mode: HAMi treats the card as unhealthy."""

    @property
    def free(self) -> Share:
        card, part = self.card, self.part
        return Share(
            max(card.slots - part.slots, 0), max(card.memory - part.memory, 0), max(card.cores - part.cores, 0)
        )

    @property
    def usable(self) -> bool:
        return self.card.healthy and not self.mixed


def by_node(pods: Iterable[Pod]) -> Mapping[str, list[tuple[Pod, PodGrant]]]:
    """Return pods with a grant, by the node of the grant. A grant counts before the pod is bound."""
    granted = ((pod, pod.grant) for pod in pods if pod.grant is not None and not pod.over)
    return grouped((node, (pod, grant)) for pod, grant in granted if (node := grant.node or pod.spec.node))


def held_on(node: Node, pods: Iterable[tuple[Pod, PodGrant]], settings: HamiSettings) -> tuple[CardUsage, ...]:
    """Return the node's NVIDIA cards in the order of their registration."""
    states = {
        card.uuid: CardUsage(
            card,
            layouts=_layouts(card, settings),
            cordoned=card.uuid in node.hami.cordoned,
            cordoned_by_agent=card.uuid in node.hami.cordoned_by_agent,
        )
        for card in node.hami.cards
    }
    for pod, granted in pods:
        for uuid, part in parts(pod, granted).items():
            if uuid in states:
                card = states[uuid]
                states[uuid] = replace(card, part=card.part.plus(part), pods=(*card.pods, (pod.subject, part)))
        for place in granted.mig:
            if place.uuid in states and place.size > 0:
                card = states[place.uuid]
                states[place.uuid] = replace(card, placements=(*card.placements, (place.start, place.size)))
        for share in granted.shares:
            if share.uuid != share.card and share.card in states:
                states[share.card] = _with_instance(states[share.card], share)
    return tuple(states.values())


def parts(pod: Pod, grant: PodGrant) -> dict[str, Share]:
    """Return, by card, the largest part that the pod owns at one time.

    Init containers have ended before the others start; sidecars stay.
    """
    inits = [container for container in pod.spec.containers if container.init]
    # HAMi's list has no entries for init containers in versions that do not count them.
    skipped = len(inits) if len(grant.containers) <= len(pod.spec.containers) - len(inits) else 0
    ended = condition_in(pod.conditions, "Initialized", "True") is not None
    peak: dict[str, Share] = {}
    sidecars: dict[str, Share] = {}
    running: dict[str, Share] = {}
    for place, shares in enumerate(grant.containers):
        init = inits[place] if not skipped and place < len(inits) else None
        for uuid, part in _sum(shares).items():
            if init is None:
                running[uuid] = running.get(uuid, Share()).plus(part)
            elif init.sidecar:
                sidecars[uuid] = sidecars.get(uuid, Share()).plus(part)
                peak[uuid] = peak.get(uuid, Share()).at_least(sidecars[uuid])
            elif not ended:
                peak[uuid] = peak.get(uuid, Share()).at_least(sidecars.get(uuid, Share()).plus(part))
    cards = dict.fromkeys((*peak, *sidecars, *running))
    return {
        uuid: sidecars.get(uuid, Share()).plus(running.get(uuid, Share())).at_least(peak.get(uuid, Share()))
        for uuid in cards
    }


def _sum(shares: Iterable[ContainerShare]) -> dict[str, Share]:
    found: dict[str, Share] = {}
    for share in shares:
        found[share.card] = found.get(share.card, Share()).with_share(share)
    return found


def _layouts(card: Card, settings: HamiSettings) -> tuple[Geometry, ...]:
    """Return the layouts of the first model that the card's type names, up to 2.9."""
    if card.mode != MIG_MODE or card.profiles:
        return ()
    return next((found for model, found in (settings.geometries or {}).items() if model in card.kind), ())


def _with_instance(state: CardUsage, share: ContainerShare) -> CardUsage:
    """Add the MIG instance that follows the UUID up to 2.9: the layout, and the position in it."""
    match = _OF_LAYOUT.search(share.uuid)
    if match is None:
        return state
    if state.card.mode == HAMI_CORE:
        return replace(state, mixed=True)
    number, place = int(match[1]), int(match[2])
    layout = state.layout or MigLayout(number)
    return replace(state, layout=MigLayout(layout.number, layout.used | {place}))
