"""Remove commands from remedies that another finding of our agents makes harmful.

The correction that has to be made first replaces them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec.structs import replace

from gpu_healthcheck.diagnosis.facts.commands import explain
from gpu_healthcheck.diagnosis.model import FoundCause
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.healthcheck.checks import runtime_restart

FILES_FIRST = "Until then, do not restart the container runtime or the toolkit pods: that would load its files."
_RESTARTS = re.compile(r"`[^`]*\b(?:systemctl|snap) restart ")
_RESTARTS_ALL = re.compile(r"`[^`]*(?:\bhelm upgrade |\brollout restart |\bpatch clusterpolicy )")
"""When it starts, the operator's toolkit restarts the node's container runtime."""
_MAKES_PODS = re.compile(r"`kubectl [^`]*\bdelete pods? ")
_ENDS_PODS_ALONE = ("NvidiaRuntimeElsewhere", "NvidiaRuntimeMissing", "RuntimeNotReady")
"""With these findings, no new pod starts, or none with NVIDIA's handler, so deleting a pod would not help."""
_REASONS = frozenset((*runtime_restart.REASONS, *_ENDS_PODS_ALONE))
_MOST_NODES = 4


def with_fixes_first(snapshot: Snapshot, found: FoundCause) -> FoundCause:
    """Return the result without such commands; unchanged if it has none."""
    kept: list[str] = []
    fixes: dict[str, None] = {}
    for line in found.remedy:
        first = list(_fixes(snapshot, found, line))
        fixes |= dict.fromkeys(first)
        kept += [] if first else [line]
    return replace(found, remedy=(*[*fixes][:_MOST_NODES], FILES_FIRST, *kept)) if fixes else found


def _fixes(snapshot: Snapshot, found: FoundCause, line: str) -> Iterator[str]:
    """Yield corrections that have to be made before the commands of the line are run."""
    if _RESTARTS_ALL.search(line):
        yield from _corrections(_faulty(snapshot).values(), runtime_restart.REASONS)
    elif _RESTARTS.search(line):
        yield from _corrections(_nodes_of(snapshot, found), runtime_restart.REASONS)
    elif _MAKES_PODS.search(line):
        yield from _corrections(_nodes_of(snapshot, found), (*runtime_restart.REASONS, *_ENDS_PODS_ALONE))


def _corrections(nodes: Iterable[Node], reasons: Iterable[str]) -> Iterator[str]:
    """Yield a correction for each node with its faults, in the order in which they are to be corrected."""
    for node in nodes:
        recorded = {finding.reason for finding in node.findings}
        first = [reason for reason in reasons if reason in recorded]
        if first:
            yield f"First fix the finding of the agent on {node.subject}: {', '.join(first)}; see {explain(first[0])}"


@lru_cache(maxsize=1)
def _faulty(snapshot: Snapshot) -> Mapping[str, Node]:
    """Return, by name, the nodes with a finding that has to be corrected before such commands."""
    return {node.name: node for node in snapshot.nodes if any(one.reason in _REASONS for one in node.findings)}


def _nodes_of(snapshot: Snapshot, found: FoundCause) -> list[Node]:
    """Return the faulty nodes among the subject and the affected objects, and of the pods among these."""
    faulty, names = _faulty(snapshot), set()
    for subject in (found.subject, *found.affected) if faulty else ():
        pod = snapshot.pod.get(subject)
        names.add(pod.spec.node if pod is not None else subject.removeprefix("node/"))
    return [node for name, node in faulty.items() if name in names]
