"""Annotations on the Node that end in a failure of ours: passed over until somebody changes them, and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import structlog

from healthcheck.checks.examine import failure
from healthcheck.model import PREFIX
from healthcheck.node.state import NodeState
from healthcheck.telemetry import Telemetry

log = structlog.get_logger()


class SetAside:
    def __init__(self, telemetry: Telemetry, say: Callable[[str, str], None]) -> None:
        self._telemetry = telemetry
        self._say = say
        self._texts: dict[str, str] = {}
        """By key of the annotation; replaced whole, for the watch reads it while the teller adds to it."""

    def without(self, node: NodeState) -> NodeState:
        """The Node as if what is set aside were not there."""
        aside = {key for key, text in self._texts.items() if node.annotations.get(key) == text}
        return hidden(node, aside) if aside else node

    def put(self, node: NodeState, keys: set[str], error: Exception) -> None:
        for key in sorted(keys & node.annotations.keys()):
            self._texts = {**self._texts, key: node.annotations[key]}
            self._telemetry.set_aside.labels("annotation").inc()
            told = f"annotation {key} is passed over until it changes: {failure(error)}"
            log.error("an annotation on the node is set aside", key=key, failure=failure(error))
            self._say("AnnotationSetAside", told)


def suspects(node: NodeState) -> Iterator[set[str]]:
    """Which annotations may be to blame: each of ours by itself, then all together."""
    ours = [key for key in node.annotations if key.startswith(PREFIX)]
    yield from ({key} for key in ours)
    if len(ours) > 1:
        yield set(ours)


def hidden(node: NodeState, keys: set[str]) -> NodeState:
    return replace(node, annotations={key: text for key, text in node.annotations.items() if key not in keys})
