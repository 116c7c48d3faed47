"""HAMi's bookkeeping of a whole cluster, and what its scheduler would say of a pod on each node. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diagnosis.hami.asking import asked_of
from diagnosis.hami.card_checks import Terms
from diagnosis.hami.fit import NodeVerdict, Wanted, fit
from diagnosis.hami.holding import Held, by_node, held_on
from diagnosis.hami.quota import room_of
from diagnosis.hami.reasons import UNREGISTERED
from diagnosis.hami.registration import SCORES, Form, registered, registration, scores_unreadable
from diagnosis.hami.settings import Settings, settings_of
from diagnosis.hami.versions import NEWEST, Version, scheduler_version
from diagnosis.hami.wishes import wishes
from diagnosis.placement import has, offers
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.meta import Meta
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import PodSpec

_JSON_SINCE: Version = (2, 8)


@dataclass(frozen=True, slots=True)
class Books:
    """`cards`: of each node that registered any, by its name. `told_version` None: no image tells it."""

    settings: Settings
    told_version: Version | None
    cards: Mapping[str, tuple[Held, ...]]

    @property
    def version(self) -> Version:
        return self.told_version or NEWEST


def books_of(snapshot: Snapshot) -> Books:
    settings, version = settings_of(snapshot), scheduler_version(snapshot)
    nodes = [node for node in snapshot.nodes if registered(node)]
    given = by_node(snapshot.pods) if nodes else {}
    return Books(settings, version, {one.name: held_on(one, given.get(one.name, ()), settings) for one in nodes})


def verdicts(snapshot: Snapshot, books: Books, meta: Meta, spec: PodSpec) -> Iterator[tuple[Node, NodeVerdict]]:
    """Of HAMi's scheduler alone, node by node; taints, CPU and the like are the other scheduler's.

    The pod is taken as it stands: what its webhook has not done is not done.
    """
    room = room_of(snapshot, meta.namespace, books.settings, books.version)
    terms = Terms(wishes(meta), room, books.version)
    # HAMi's filter looks at a sidecar as at any init container: beside nothing else.
    wanted = [Wanted(one.name, asked_of(one, books.settings, books.version), one.init) for one in spec.containers]
    for node in snapshot.nodes:
        why = unregistered(node, books)
        yield node, NodeVerdict(False, UNREGISTERED) if why else fit(books.cards[node.name], wanted, terms)


def unregistered(node: Node, books: Books) -> str:
    """Why HAMi's scheduler knows no cards of the node; '' where it does."""
    told = registration(node)
    if told is None:
        return "no device plugin of HAMi has registered cards there"
    if why := told.unreadable or ("" if told.cards else "it lists no card"):
        return f"its registration can't be read: {why}"
    if why := scores_unreadable(node):
        return f"its annotation {SCORES} can't be read: {why}"
    if books.told_version is not None and told.form is not _form(books.told_version):
        return f"its registration is {told.form.value}, and the scheduler is {'.'.join(map(str, books.told_version))}"
    count = books.settings.count_name
    if has(node, count) and not offers(node, count):
        return f"it offers no {count} any more: the device plugin is gone"
    return ""


def _form(version: Version) -> Form:
    return Form.JSON if version >= _JSON_SINCE else Form.TEXT
