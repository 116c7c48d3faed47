"""A Node without room for our record: the reduced write, and the record that it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from healthcheck.node.state import RESULTS, NodeState
from healthcheck.verdict.node_events import cut

_NOTE = "no room on the Node for the record"


class RecordLeftOut(Struct):
    """Record that the Node did not accept; '' if it did.

    The missing record is then no change, or it would be written again at each change of the Node.
    """

    text: str = ""
    may_try: bool = False
    """A cycle has ended since the record was last tried."""

    def as_if_there(self, node: NodeState) -> NodeState:
        """Return the Node with the record that it rejected, for comparison. A record on the Node takes precedence."""
        if not self.text or RESULTS in node.annotations:
            return node
        return replace(node, annotations={**node.annotations, RESULTS: self.text})

    def noted_in(self, condition: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the note to the condition, the only other place for it on the Node."""
        return {**condition, "message": cut(f"{_NOTE}; {condition['message']}")} if self.text else condition


def without_record(patch: Mapping[str, Any], node: NodeState) -> dict[str, Any]:
    """Return the write without the record, and remove an older record, which would contradict the new labels.

    A label `pass` with a worse record would even count as a person's release.
    """
    metadata = patch["metadata"]
    annotations = {key: value for key, value in metadata["annotations"].items() if key != RESULTS}
    if RESULTS in node.annotations:
        annotations[RESULTS] = None
    return {**patch, "metadata": {**metadata, "annotations": annotations}}
