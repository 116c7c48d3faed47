"""Work of a command on nodes: requests that are repeated until Ctrl-C, progress output, and a thread per node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

from msgspec import Struct

from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.cli.output.progress import NodeProgress, ProgressDisplay
from gpu_healthcheck.cli.words import explained
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import NotFound
from gpu_healthcheck.healthcheck.cluster.installation import Right
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.retries import CommandRetries
from gpu_healthcheck.healthcheck.node.state import NodeState, PatchFor

T = TypeVar("T")


class CouldNot(Exception):
    """The command can't go on with a node. The message has the reason; `details` are further lines below it."""

    def __init__(self, message: str, *details: str) -> None:
        super().__init__(message)
        self.details = details


class NodeRequests(Struct, frozen=True):
    """Requests of a command about one node, and the output for it. Raises CouldNot, ClusterError and Interrupted."""

    cluster: Cluster
    name: str
    retries: CommandRetries
    progress: NodeProgress

    def node(self) -> NodeState:
        try:
            return self.retries.ask(partial(self.cluster.nodes.read, self.name))
        except NotFound:
            raise CouldNot("the node does not exist (any more)") from None

    def patched(self, change: PatchFor) -> NodeState | None:
        """Patch the Node and return it; None if there was nothing to patch."""
        try:
            return self.retries.ask(lambda: self.cluster.nodes.update(self.name, change))
        except NotFound:
            raise CouldNot("the node is gone") from None

    def is_allowed(self, right: Right) -> bool:
        return self.retries.ask(partial(self.cluster.rights.is_allowed, right))

    def must_evict(self, namespaces: Iterable[str]) -> None:
        """Raise CouldNot if the user may not evict pods of these namespaces."""
        rights = (Right("create", "pods/eviction", "", namespace) for namespace in sorted(set(namespaces)))
        must_have(rights, self.is_allowed, "you have no permission to evict its pods")


def must_have(
    rights: Iterable[Right],
    is_allowed: Callable[[Right], bool],
    why: str = "your permissions are not enough, and nothing was changed",
) -> None:
    """Raise CouldNot with this reason and the permissions that the user lacks."""
    if missing := [str(right) for right in rights if not is_allowed(right)]:
        raise CouldNot(why, *missing)


class NodeThreads:
    """Threads of a command, one for each node. Ctrl-C ends no thread: it sets `stopping`, a second one `leaving`."""

    def __init__(self, display: ProgressDisplay, access: Access, every_seconds: float) -> None:
        self._display = display
        self._access = access
        self._every_seconds = every_seconds
        self.stopping, self.leaving = threading.Event(), threading.Event()

    def progress(self, name: str) -> NodeProgress:
        return self._display.of_node(name)

    def requests(self, name: str, ending: threading.Event | None = None) -> NodeRequests:
        """Return the requests about the node, which Ctrl-C ends, or another event."""
        progress = self.progress(name)
        retries = CommandRetries(ending or self.stopping, progress.say, self._every_seconds)
        return NodeRequests(cluster_of(self._access), name, retries, progress)

    def run(self, names: Sequence[str], work: Callable[[str], T]) -> list[T]:
        """Run the work for all nodes, and return the results."""
        with ThreadPoolExecutor(len(names)) as threads:
            results = [threads.submit(work, name) for name in names]
            for ending in (self.stopping, self.leaving):
                try:
                    wait(results)
                    break
                except KeyboardInterrupt:
                    ending.set()  # each thread ends at its next wait
        return [result.result() for result in results]

    def report(self, name: str, error: Exception) -> str:
        """Print the reason why the command can't go on with the node, and return it in one line."""
        self._display.stage(name, "")
        first, *details = reason_lines(error)
        self._display.say(name, first, "bold red")
        for detail in details:
            self._display.say(name, f"  {detail}", "red")
        return reason_line(error)


def reason_lines(error: Exception) -> list[str]:
    """Return the error as a line, and a line for each of its details."""
    details = error.details if isinstance(error, CouldNot) else ()
    return [f"{explained(error)}{':' if details else ''}", *details]


def reason_line(error: Exception) -> str:
    first, *details = reason_lines(error)
    return f"{first} {'; '.join(details)}" if details else first
