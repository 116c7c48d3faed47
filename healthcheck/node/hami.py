"""HAMi on a Node and in the cluster: registered cards, cordoned cards, and the version of its schedulers.

Pure functions, no I/O. `hami.io/device-cordon` lists card ids, separated by commas. HAMi trims the entries and ignores
empty ones; its scheduler gives no listed card to a new pod (HAMi #2298, in 2.10; older versions ignore the list). A
card's id is the UUID of its GPU, also in MIG mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpu_healthcheck.healthcheck.node.state import DEVICE_CORDON, NodeState
from gpu_healthcheck.healthcheck.text import strict_json
from gpu_healthcheck.healthcheck.text.printable import printable

CARDS, CORDON = "hami.io/node-nvidia-register", "hami.io/device-cordon"
WEBHOOK = "vgpu.hami.io"
"""Name of the webhook that HAMi's chart registers for its scheduler, whatever the release is called."""
UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_EXTENDER = "vgpu-scheduler-extender"
_FIRST = (2, 10)
"""First release whose scheduler reads the list."""
_RELEASE = re.compile(
    r":v?(\d{1,3})\.(\d{1,3})\.\d{1,3}(?!-(?:alpha|beta|rc|dev))(?:[.+-][\w.+-]{1,80})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
"""End of an image's name with a release number. A pre-release may lack what its release has."""
_LONGEST, _LONGEST_NAME = 64 * 1024, 200


def is_shared(node: NodeState) -> bool:
    """Whether HAMi has registered the node's GPUs. The registration stays after an uninstallation of HAMi."""
    return CARDS in node.annotations


def card_ids(node: NodeState) -> frozenset[str]:
    """Return the ids of the registered cards. Raises ValueError if no HAMi with cordons can read the registration.

    Since 2.8 it is a JSON list.
    """
    cards = strict_json.loads(node.annotations.get(CARDS, ""), _LONGEST)
    if not isinstance(cards, list) or not all(isinstance(card, dict) and card.get("id") for card in cards):
        raise ValueError("it is not a list of cards with ids")
    return frozenset(printable(str(card["id"]), _LONGEST_NAME) for card in cards)


def cordoned(node: NodeState) -> tuple[str, ...]:
    """Return the entries of HAMi's list."""
    return _entries(node.annotations.get(CORDON, ""))


def our_cordons(node: NodeState) -> frozenset[str]:
    """Return the cordons in force that an agent added."""
    return _ours(node) & frozenset(cordoned(node))


def cordon_change(node: NodeState, wanted: Iterable[str]) -> dict[str, str | None]:
    """Return the annotations to write so that these cards are cordoned, and no others by us; None removes one.

    A card that is already listed stays its author's. Of an entry that is listed twice, one is ours and the other stays.
    """
    wanted, ours = frozenset(wanted), _ours(node)
    texts = [text for text in node.annotations.get(CORDON, "").split(",") if text.strip()]
    added = wanted.difference(cordoned(node))
    for uuid in ours - wanted:
        last = next((at for at in reversed(range(len(texts))) if texts[at].strip() == uuid), None)
        if last is not None:
            del texts[last]
    after = {
        CORDON: ",".join((*texts, *sorted(added))) or None,
        DEVICE_CORDON: ",".join(sorted((ours & wanted) | added)) or None,
    }
    # Without a change of ours, a person's spelling of the list stays.
    if not added and not ours - wanted:
        return {}
    return {key: text for key, text in after.items() if text != node.annotations.get(key)}


def scheduler_places(configuration: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield namespace and name of HAMi's schedulers from an API MutatingWebhookConfiguration.

    The chart gives Service and Deployment of a scheduler the same name.
    """
    for webhook in configuration.get("webhooks") or ():
        service = (webhook.get("clientConfig") or {}).get("service")
        if webhook.get("name") == WEBHOOK and service:
            yield str(service["namespace"]), str(service["name"])


def why_ignored(deployment: Mapping[str, Any]) -> str:
    """Return why the scheduler of this API Deployment may give a cordoned card to a pod; '' if it does not."""
    metadata, spec, status = deployment["metadata"], deployment["spec"], deployment.get("status") or {}
    name = printable(f"{metadata['namespace']}/{metadata['name']}", _LONGEST_NAME)
    containers = spec["template"]["spec"]["containers"]
    images = [str(container["image"]) for container in containers if container.get("name") == _EXTENDER]
    if not images:
        return f"the Deployment {name} has no container {_EXTENDER}"
    image = printable(images[0], _LONGEST_NAME)
    version = _version(image)
    if version is None:
        return f"the version of HAMi's scheduler {name} is unknown: its image {image} has no release number"
    if version < _FIRST:
        return f"HAMi's scheduler {name} is older than 2.10 ({image}) and ignores {CORDON}"
    is_observed = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
    if not is_observed or not status.get("replicas") or status["replicas"] != status.get("updatedReplicas"):
        return f"HAMi's scheduler {name} does not run, or is being updated"
    return ""


def _version(image: str) -> tuple[int, int] | None:
    found = re.search(rf"{_RELEASE.pattern}\Z", image, re.ASCII)
    return (int(found[1]), int(found[2])) if found else None


def _ours(node: NodeState) -> frozenset[str]:
    return frozenset(filter(UUID.fullmatch, _entries(node.annotations.get(DEVICE_CORDON, ""))))


def _entries(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text[:_LONGEST].split(",") if entry.strip())
