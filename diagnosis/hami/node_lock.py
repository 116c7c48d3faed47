"""Parse the lock that a scheduler sets on a node while it binds a pod there. Pure."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from diagnosis.hami.annotation_text import word
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.nodes import Node
from healthcheck.text.moments import moment_or_none

LOCK = "hami.io/mutex.lock"


class NodeLock(Struct, frozen=True):
    """Lock of a node. `at` is None if its time can't be read.

    `pod` is the subject of its owner; '' if an older HAMi does not record it.
    """

    at: datetime | None
    pod: str = ""
    text: str = ""


def node_lock(node: Node) -> NodeLock | None:
    text = node.meta.annotations.get(LOCK)
    if text is None:
        return None
    at, _, owner = text.partition(",")
    namespace, _, name = owner.partition(",")
    pod = subject("Pod", word(namespace), word(name)) if namespace and name else ""
    return NodeLock(moment_or_none(at.strip()), pod, word(text))
