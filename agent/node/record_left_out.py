"""A Node without room for our record: the reduced write, and the record that it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from healthcheck.node.state import RESULTS, NodeState
from healthcheck.verdict.node_events import cut

_NOTE = "no room on the Node for the record"


class RecordLeftOut:
    """Record that the Node did not accept; '' if it did.

    The missing record is then no change, or it would be written again at each change of the Node.
    """

    def __init__(self) -> None:
        self._record = ""
        self._may_try = False

    @property
    def is_left_out(self) -> bool:
        return bool(self._record)

    @property
    def is_worth_a_try(self) -> bool:
        """Whether a cycle has ended since the record was last tried."""
        return self.is_left_out and self._may_try

    def as_if_there(self, node: NodeState) -> NodeState:
        """Return the Node with the record that it rejected, for comparison. A record on the Node takes precedence."""
        if not self._record or RESULTS in node.annotations:
            return node
        return replace(node, annotations={**node.annotations, RESULTS: self._record})

    def noted_in(self, condition: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the note to the condition, the only other place for it on the Node."""
        if not self.is_left_out:
            return condition
        return {**condition, "message": cut(f"{_NOTE}; {condition['message']}")}

    def left_out_of(self, patch: Mapping[str, Any]) -> bool:
        """Note that the record was left out, and return whether that is new."""
        new = not self.is_left_out
        self._record = patch["metadata"]["annotations"][RESULTS]
        self._may_try = False
        return new

    def tried(self) -> None:
        self._may_try = False

    def written(self) -> None:
        """Note that the Node has the record."""
        self._record = ""

    def look_ended(self) -> None:
        self._may_try = True


def without_record(patch: Mapping[str, Any], node: NodeState) -> dict[str, Any]:
    """Return the write without the record, and remove an older record, which would contradict the new labels.

    A label `pass` with a worse record would even count as a person's release.
    """
    metadata = patch["metadata"]
    annotations = {key: value for key, value in metadata["annotations"].items() if key != RESULTS}
    if RESULTS in node.annotations:
        annotations[RESULTS] = None
    return {**patch, "metadata": {**metadata, "annotations": annotations}}
