"""Group of nodes in which the faults of a fleet concentrate, and one command line for all of its faulty nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from cli.fleet import FleetRow
from cli.node_groups import Concentration, concentration, dividing
from healthcheck.model import Status
from healthcheck.text.printable import printable

_LONGEST = 120
_MOST_NODES = 20
"""Most nodes in one command line."""
_WITHOUT_VERDICT = ("", Status.UNKNOWN)
UNHEARD = "nodes without a current verdict"
_NODE = '"$node"'
_MANY = f"gpu-healthcheck quarantine {_NODE}"
"""The command that accepts several nodes."""


class FaultPattern(Struct, frozen=True):
    """Faulty nodes that have a group in common. `reason` is '' if they have several."""

    found: Concentration
    reason: str
    command: str
    """Command line for `nodes`; '' if they are too many, or need different commands."""
    nodes: frozenset[str]

    @property
    def where(self) -> str:
        """Return the first half of a sentence; `size` is the other one."""
        return group_sentence(self.found, "faulty nodes")[0]

    @property
    def size(self) -> str:
        size = group_sentence(self.found, "faulty nodes")[1]
        return f"{size} All {self.found.inside} have one reason: {self.reason}." if self.reason else size


def group_sentence(found: Concentration, noun: str) -> tuple[str, str]:
    """Return the group in which the nodes concentrate, and its size, as the two halves of a sentence."""
    where = f"{found.inside} of {found.among} {noun} are in {found.grouping} {printable(found.group, _LONGEST)}"
    return where, f", which has {found.size} of the {found.total} nodes."


def fault_pattern(rows: Sequence[FleetRow]) -> FaultPattern | None:
    """Return the pattern of the faulty nodes; None if chance explains where they are."""
    faulty = [place for place, row in enumerate(rows) if row.status == Status.FAIL]
    groups = [row.groups for row in rows]
    found = concentration(groups, dividing(groups), faulty) if len(faulty) > 1 else None
    if found is None:
        return None
    inside = [rows[place] for place in faulty if groups[place].get(found.grouping) == found.group]
    reasons = {row.reason for row in inside}
    reason = printable(reasons.pop(), _LONGEST) if len(reasons) == 1 else ""
    # A node that a run uses has no step.
    todo = {row.node: command for row in inside if (command := _repair(row))}
    if len(set(todo.values())) != 1 or len(todo) > _MOST_NODES:
        return FaultPattern(found, reason, "", frozenset())
    command, names = next(iter(todo.values())), " ".join(todo)
    line = command.replace(_NODE, names) if command == _MANY else f"for node in {names}; do {command} || break; done"
    return FaultPattern(found, reason, line, frozenset(todo))


def unheard_group(rows: Sequence[FleetRow]) -> Concentration | None:
    """Return the group in which the nodes without a current verdict concentrate, as after a loss of power."""
    groups = [row.groups for row in rows]
    unheard = [place for place, row in enumerate(rows) if row.silent or row.status in _WITHOUT_VERDICT]
    return concentration(groups, dividing(groups), unheard) if len(unheard) > 1 else None


def _repair(row: FleetRow) -> str:
    """Return the first command after a cordon, with a variable instead of the node's name."""
    words = next(iter(row.next_step.commands[row.accepts_work :]), "").split(" ")
    return " ".join(_NODE if word == row.node else word for word in words) if row.node in words else ""
