"""A Node too full for our record: what is written without it, and what the record would have said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from healthcheck.node.state import RESULTS, NodeState
from healthcheck.verdict.node_events import cut

_NOTE = "no room on the Node for the record"


class RecordLeftOut:
    """What the agent's record would say on a Node that does not take it; '' where it does.

    Its absence then is no news and says nothing: without it, it would be written again at each change of the Node.
    """

    def __init__(self) -> None:
        self._record = ""
        self._may_try = False

    @property
    def is_left_out(self) -> bool:
        return bool(self._record)

    @property
    def is_worth_a_try(self) -> bool:
        """Whether a look has ended since the record was last tried."""
        return self.is_left_out and self._may_try

    def as_if_there(self, node: NodeState) -> NodeState:
        """The Node with the record that it did not take, for comparing. Where somebody wrote one, that counts."""
        if not self._record or RESULTS in node.annotations:
            return node
        return replace(node, annotations={**node.annotations, RESULTS: self._record})

    def noted_in(self, condition: Mapping[str, Any]) -> Mapping[str, Any]:
        """The condition, which is the one place left to say it beside the Node's labels."""
        if not self.is_left_out:
            return condition
        return {**condition, "message": cut(f"{_NOTE}; {condition['message']}")}

    def left_out_of(self, patch: Mapping[str, Any]) -> bool:
        """It was written without the record. Whether that is new."""
        new = not self.is_left_out
        self._record = patch["metadata"]["annotations"][RESULTS]
        self._may_try = False
        return new

    def tried(self) -> None:
        self._may_try = False

    def written(self) -> None:
        """The Node has the record."""
        self._record = ""

    def look_ended(self) -> None:
        self._may_try = True


def without_record(patch: Mapping[str, Any], node: NodeState) -> dict[str, Any]:
    """The same write without the record, and without an older one: beside newer labels it would tell lies.

    A label that says `pass` beside a record that says worse would even be a person's release.
    """
    metadata = patch["metadata"]
    annotations = {key: value for key, value in metadata["annotations"].items() if key != RESULTS}
    if RESULTS in node.annotations:
        annotations[RESULTS] = None
    return {**patch, "metadata": {**metadata, "annotations": annotations}}
