"""Reproduce the books of one HAMi scheduler, and its verdict on a pod for each node. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Struct, field
from msgspec.structs import replace

from diagnosis.facts.placement import has, offers
from diagnosis.hami.card_checks import PodConditions
from diagnosis.hami.card_requests import asked_of
from diagnosis.hami.card_usage import CardUsage, by_node, held_on
from diagnosis.hami.command_line import CommandLine
from diagnosis.hami.fit import ContainerRequest, NodeVerdict, fit
from diagnosis.hami.installation import Installation, elsewhere, settings_of, settings_on
from diagnosis.hami.quota import room_of
from diagnosis.hami.reasons import UNREGISTERED
from diagnosis.hami.settings import HamiSettings
from diagnosis.hami.versions import NEWEST, Version
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.hami_node import SCORES, Registration, RegistrationFormat
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import Pod

_JSON_SINCE: Version = (2, 8)


class SchedulerState(Struct, frozen=True):
    """Books of one HAMi scheduler.

    `cards`: the cards of each node that registered any, by node name. `reported_version` is None if no image shows the
    version. `elsewhere`: nodes that only another installation's device plugin serves, with that installation.
    """

    settings: HamiSettings
    reported_version: Version | None
    cards: Mapping[str, tuple[CardUsage, ...]]
    line: CommandLine = field(default_factory=CommandLine)
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> Version:
        return self.reported_version or NEWEST


def books_of(snapshot: Snapshot, installation: Installation | None) -> SchedulerState:
    """Return the books of an installation.

    None: for a cluster in which no part of HAMi is visible, although nodes may have registered cards.
    """
    cards = cards_of(snapshot)
    if installation is None:
        return SchedulerState(settings_of(snapshot), None, cards)
    others = elsewhere(snapshot, installation)
    return SchedulerState(installation.settings, installation.version, cards, installation.command_line, others)


@lru_cache(maxsize=1)
def cards_of(snapshot: Snapshot) -> Mapping[str, tuple[CardUsage, ...]]:
    """Return the cards of each node that registered any, by the settings of the installation serving it."""
    nodes = [node for node in snapshot.nodes if node.hami.cards]
    given = by_node(snapshot.pods) if nodes else {}
    return {node.name: held_on(node, given.get(node.name, ()), settings_on(snapshot, node)) for node in nodes}


def verdicts(snapshot: Snapshot, books: SchedulerState, pod: Pod) -> Iterator[tuple[Node, NodeVerdict]]:
    """Yield the verdict of HAMi's scheduler for each node.

    Taints, CPU and the like belong to the other scheduler. The pod is judged as it is: changes that the webhook did not
    make are not assumed.
    """
    room = room_of(snapshot, pod.meta.namespace, books.settings, books.version)
    policy = pod.card_options.gpu_policy
    own = replace(pod.card_options, gpu_policy=books.line.gpu_policy if policy is None else policy)
    terms = PodConditions(own, room, books.version)
    # HAMi's filter treats a sidecar like any init container: nothing runs in parallel with it.
    wanted = [
        ContainerRequest(container.name, asked_of(container, books.settings, books.version), container.init)
        for container in pod.spec.containers
    ]
    for node in snapshot.nodes:
        why = unregistered(node, books)
        yield node, NodeVerdict(False, UNREGISTERED) if why else fit(books.cards[node.name], wanted, terms)


def unregistered(node: Node, books: SchedulerState) -> str:
    """Return why HAMi's scheduler knows no cards of the node; '' if it does."""
    registered, count = node.hami.registration, books.settings.count_name
    if registered is None:
        return "no device plugin of HAMi has registered cards there"
    if why := _not_asked(node, books):
        return why
    if why := _unreadable(node, registered, books):
        return why
    gone = has(node, count) and not offers(node, count)
    return f"it no longer offers {count}: the device plugin is gone" if gone else ""


def _unreadable(node: Node, registration: Registration, books: SchedulerState) -> str:
    if why := registration.unreadable or ("" if registration.cards else "it lists no card"):
        return f"its registration can't be read: {why}"
    if why := node.hami.scores_unreadable:
        return f"its annotation {SCORES} can't be read: {why}"
    if books.reported_version is not None and registration.form is not _form(books.reported_version):
        version = ".".join(map(str, books.reported_version))
        return f"its registration is {registration.form.value}, and the scheduler is {version}"
    return ""


def _not_asked(node: Node, books: SchedulerState) -> str:
    """Return why another scheduler manages the node's cards; '' if this one does."""
    if missing := [
        f"{key}={text}" for key, text in books.line.node_labels.items() if node.meta.labels.get(key) != text
    ]:
        return f"the scheduler uses only nodes with {', '.join(missing)}"
    if node.name in books.elsewhere and not has(node, books.settings.count_name):
        return f"its cards belong to {books.elsewhere[node.name]}, and it has no {books.settings.count_name}"
    return ""


def _form(version: Version) -> RegistrationFormat:
    return RegistrationFormat.JSON if version >= _JSON_SINCE else RegistrationFormat.TEXT
