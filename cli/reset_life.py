"""Sign of life of a reset's command: without it, the reset's Job or the node's agent returns the node."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.deep import reset_command
from gpu_healthcheck.healthcheck.node.state import NodeState


class SignOfLife(threading.Thread):
    """Thread that renews the annotation while it is on the Node, also during an eviction or an outage."""

    def __init__(self, cluster: Cluster, name: str, *, extends: bool = True) -> None:
        super().__init__(name="sign-of-life", daemon=True)
        self._cluster = cluster
        self._node = name
        self._extends = extends
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def run(self) -> None:
        while not self._ended.is_set():
            with suppress(ClusterError):  # tried again
                self._cluster.nodes.update(self._node, self._renewed)
            self._ended.wait(reset_command.RENEWED_SECONDS)

    def _renewed(self, node: NodeState) -> Mapping[str, Any] | None:
        return reset_command.renewal(node, datetime.now(UTC), extends=self._extends)
