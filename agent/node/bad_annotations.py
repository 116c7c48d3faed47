"""Annotations of the Node that are unreadable or make this program fail: each is reported and then ignored."""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from msgspec.structs import replace

from agent.node.reporter import Reporter
from agent.telemetry import Telemetry
from healthcheck.checks.examine import failure
from healthcheck.model import PREFIX
from healthcheck.node.state import NodeState

log = structlog.get_logger()


class BadAnnotations:
    """Unreadable annotations of the Node: reported once, then ignored until they change."""

    def __init__(self, telemetry: Telemetry, reporter: Reporter) -> None:
        self._telemetry = telemetry
        self._reporter = reporter
        self._complaints: tuple[str, ...] = ()
        self._skipped: dict[str, str] = {}
        """Text by key of the annotation. Replaced as a whole, because the watch reads it while the node writer adds to
        it.
        """

    def report(self, complaints: tuple[str, ...]) -> None:
        """Report the unreadable annotations, once per state."""
        if complaints and complaints != self._complaints:
            self._telemetry.bad_annotations.inc()
            for complaint in complaints:
                log.warning("an annotation on the node is not a valid record", complaint=complaint)
                self._reporter.warn("BadAnnotation", complaint)
        self._complaints = complaints or self._complaints

    def without(self, node: NodeState) -> NodeState:
        """Return the Node without the skipped annotations."""
        skipped = {key for key, text in self._skipped.items() if node.annotations.get(key) == text}
        return hidden(node, skipped) if skipped else node

    def skip(self, node: NodeState, keys: set[str], error: Exception) -> None:
        """Skip these annotations until they change, because reading them failed by a fault of this program."""
        for key in sorted(keys & node.annotations.keys()):
            self._skipped = {**self._skipped, key: node.annotations[key]}
            self._telemetry.set_aside.labels("annotation").inc()
            log.error("an annotation on the node is skipped", key=key, failure=failure(error))
            message = f"annotation {key} is skipped until it changes: {failure(error)}"
            self._reporter.warn("AnnotationSetAside", message)


def suspects(node: NodeState) -> Iterator[set[str]]:
    """Yield the annotations that may cause a failure: each of ours alone, then all together."""
    ours = [key for key in node.annotations if key.startswith(PREFIX)]
    yield from ({key} for key in ours)
    if len(ours) > 1:
        yield set(ours)


def hidden(node: NodeState, keys: set[str]) -> NodeState:
    return replace(node, annotations={key: text for key, text in node.annotations.items() if key not in keys})
