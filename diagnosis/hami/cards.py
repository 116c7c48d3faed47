"""Add up the cards of a node, the share of each pod, and the measured use; format a card as a row. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, reduce
from itertools import islice

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.hami_node import MIG_MODE, Card
from gpu_healthcheck.diagnosis.snapshot.hami_pod import PodGrant
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod, condition_in

COLUMNS = ("Card", "Slots free", "Memory free", "Cores free", "Pods")
_MOST_PODS = 4
_NOT_VISIBLE = "?"


class Share(Struct, frozen=True):
    """Part of one card, in slots, MiB and percent."""

    slots: int = 0
    memory: int = 0
    cores: int = 0

    def plus(self, other: Share) -> Share:
        return Share(self.slots + other.slots, self.memory + other.memory, self.cores + other.cores)

    def at_least(self, other: Share) -> Share:
        return Share(max(self.slots, other.slots), max(self.memory, other.memory), max(self.cores, other.cores))

    def __str__(self) -> str:
        """Format as `4096 MiB, 30 %`."""
        cores = f", {self.cores} %" if self.cores else ""
        slots = f", {self.slots} slots" if self.slots > 1 else ""
        return f"{self.memory} MiB{cores}{slots}"


class CardUsage(Struct, frozen=True):
    """Card with its parts in use."""

    card: Card
    part: Share = Share()
    pods: tuple[tuple[str, Share], ...] = ()
    """Pods by subject, each with its part."""
    cordoned: bool = False
    cordoned_by_agent: bool = False

    @property
    def free(self) -> Share:
        card, part = self.card, self.part
        return Share(
            max(card.slots - part.slots, 0), max(card.memory - part.memory, 0), max(card.cores - part.cores, 0)
        )

    @property
    def usable(self) -> bool:
        return self.card.healthy


class MeasuredUse(Struct, frozen=True):
    """Use in MiB and percent; None if no series reports it."""

    memory: int | None = None
    cores: int | None = None

    def __str__(self) -> str:
        memory = f"{self.memory} MiB" if self.memory is not None else ""
        cores = f"{self.cores} %" if self.cores is not None else ""
        return ", ".join(filter(None, (memory, cores)))


class CardRow(Struct, frozen=True):
    """One card in the allocation table: free slots, memory and cores, and its pods."""

    card: str
    slots: str
    memory: str
    cores: str
    pods: tuple[str, ...] = ()
    """Pods with their parts; the last entry may be the number of omitted pods."""
    usable: bool = True

    def __iter__(self) -> Iterator[str]:
        return iter((self.card, self.slots, self.memory, self.cores, ", ".join(self.pods)))


@lru_cache(maxsize=1)
def cards_of(snapshot: Snapshot) -> Mapping[str, tuple[CardUsage, ...]]:
    """Return the NVIDIA cards of each node that registered any, in the order of the registration."""
    granted = ((pod, pod.grant) for pod in snapshot.pods if pod.grant is not None and not pod.over)
    # A grant counts before the pod is bound.
    grants = grouped((grant.node or pod.spec.node, (pod, grant)) for pod, grant in granted)
    return {node.name: _node_cards(node, grants.get(node.name, ())) for node in snapshot.nodes if node.hami.cards}


def _node_cards(node: Node, grants: Iterable[tuple[Pod, PodGrant]]) -> tuple[CardUsage, ...]:
    pods: defaultdict[str, list[tuple[str, Share]]] = defaultdict(list)
    for pod, grant in grants:
        for uuid, part in share_by_card(pod, grant).items():
            pods[uuid].append((pod.subject, part))
    return tuple(
        CardUsage(
            card,
            total(part for _, part in pods[card.uuid]),
            tuple(pods[card.uuid]),
            card.uuid in node.hami.cordoned,
            card.uuid in node.hami.cordoned_by_agent,
        )
        for card in node.hami.cards
    )


def share_by_card(pod: Pod, grant: PodGrant) -> dict[str, Share]:
    """Return, by card, the largest part that the pod owns at one time.

    Init containers have ended before the others start; sidecars stay.
    """
    inits = [container for container in pod.spec.containers if container.init]
    # Versions that do not count init containers write no entries for them.
    if len(grant.containers) <= len(pod.spec.containers) - len(inits):
        inits = []
    initialized = condition_in(pod.conditions, "Initialized", "True") is not None
    lasting: dict[str, Share] = {}
    starting: dict[str, Share] = {}
    for number, shares in enumerate(grant.containers):
        passes = number < len(inits) and not inits[number].sidecar
        for share in shares if not (passes and initialized) else ():
            part = Share(1, share.memory, share.cores)
            if passes:
                starting[share.card] = starting.get(share.card, Share()).at_least(part)
            else:
                lasting[share.card] = lasting.get(share.card, Share()).plus(part)
    return {uuid: lasting.get(uuid, Share()).at_least(starting.get(uuid, Share())) for uuid in (*lasting, *starting)}


def total(parts: Iterable[Share]) -> Share:
    return reduce(Share.plus, parts, Share())


def measured_use(snapshot: Snapshot) -> Mapping[tuple[str, str], MeasuredUse]:
    """Return the use by a pod's subject and a card's UUID.

    A series for a pod that was not given the card is ignored.
    """
    if not snapshot.share_use:
        return {}
    given = {(pod.subject, share.card) for pod in snapshot.pods if not pod.over for share in pod.shares}
    uses: dict[tuple[str, str], MeasuredUse] = {}
    for use in snapshot.share_use:
        keys = ((subject("Pod", *pair), use.uuid) for pair in use.pods)
        key = next((key for key in keys if key in given), None)
        if key is not None:
            known = uses.get(key, MeasuredUse())
            memory = known.memory if use.memory is None else use.memory
            uses[key] = MeasuredUse(memory, known.cores if use.cores is None else use.cores)
    return uses


def card_row(usage: CardUsage, pods_seen: bool, used: Mapping[tuple[str, str], MeasuredUse] | None = None) -> CardRow:
    """Return the row of a card. `used`: by pod and card, if Prometheus was queried."""
    card, free = usage.card, usage.free
    state = [
        *(["unhealthy"] if not usage.usable else []),
        *(["cordoned by the agent" if usage.cordoned_by_agent else "cordoned"] if usage.cordoned else []),
        *(["MIG"] if card.mode == MIG_MODE else []),
    ]
    name = f"{card.index} {card.uuid}" + (f" ({', '.join(state)})" if state else "")
    slots, memory, cores = (
        f"{left if pods_seen else _NOT_VISIBLE} of {total}{unit}"
        for left, total, unit in (
            (free.slots, card.slots, ""),
            (free.memory, card.memory, " MiB"),
            (free.cores, card.cores, " %"),
        )
    )
    return CardRow(name, slots, memory, cores, tuple(_pods(usage, used or {})), usage.usable and not usage.cordoned)


def _pods(usage: CardUsage, used: Mapping[tuple[str, str], MeasuredUse]) -> Iterator[str]:
    for pod, part in islice(usage.pods, _MOST_PODS):
        use = used.get((pod, usage.card.uuid))
        in_use = f"; {use} in use" if use is not None else ""
        yield f"{pod.partition('/')[2]} ({part}{in_use})"
    if len(usage.pods) > _MOST_PODS:
        yield f"{len(usage.pods) - _MOST_PODS} more"
