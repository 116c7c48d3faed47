"""Find the card, the node and the owning pod for each Prometheus series. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.quantity import digits
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.gpu_use import GpuUse
from gpu_healthcheck.diagnosis.snapshot.meta import subject

_HOSTNAME = "kubernetes.io/hostname"


class CardLoad(Struct, frozen=True):
    """Load of one card.

    `pod` is the pod in the labels; '' if they name no pod with GPUs on the node.
    """

    uuid: str
    index: str
    percent: float
    pod: str = ""


def loads(
    snapshot: Snapshot, uses: Iterable[GpuUse], holders: Mapping[str, Iterable[str]]
) -> dict[str, list[CardLoad]]:
    """Return the cards by node, each once, sorted by number.

    `holders`: the subjects of the pods with GPUs on each node.
    """
    places, homes = _places(snapshot), {pod.subject: pod.spec.node for pod in snapshot.pods}
    cards: defaultdict[str, dict[str, CardLoad]] = defaultdict(dict)
    held = {node: frozenset(pods) for node, pods in holders.items()}
    for use in uses:
        pods = [subject("Pod", *pair) for pair in use.pods]
        node = next(filter(None, (places.get(use.node, ""), *(homes.get(pod, "") for pod in pods))), "")
        if node:
            pod = next((pod for pod in pods if pod in held.get(node, ())), "")
            load = CardLoad(use.uuid, use.index, use.percent, pod)
            key = use.uuid or use.index
            cards[node][key] = max((load, cards[node].get(key, load)), key=lambda load: (load.percent, load.pod))
    return {node: sorted(some.values(), key=_order) for node, some in cards.items()}


def _places(snapshot: Snapshot) -> dict[str, str]:
    """Return nodes by the names under which an exporter may know them.

    An exporter without a configured name uses that of its own pod.
    """
    by_pod = {pod.meta.name: pod.spec.node for pod in snapshot.pods if "dcgm-exporter" in pod.meta.name}
    by_label = {node.meta.labels.get(_HOSTNAME, ""): node.name for node in snapshot.nodes}
    return by_pod | by_label | {node.name: node.name for node in snapshot.nodes}


def _order(load: CardLoad) -> tuple[int, str, str]:
    return digits(load.index, 1 << 20), load.index, load.uuid
