"""GPUs that wait or idle under a pod, in the agent's record. They are no finding and no part of the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Annotated

from gpu_healthcheck.healthcheck.text.boundary import JsonObject, attempt, read_row, table, text

LONGEST = 1024
"""Longest part of a record, in bytes."""
POD_DIGITS = 8
_MOST_GPUS, _LONGEST_UUID = 64, 64


class Work(Enum):
    """Work of a GPU between two check cycles."""

    WAITING = "waiting"
    """A kernel polls: always busy, without use of memory or power, as in a collective whose peer does not come."""
    IDLE = "idle"
    """Never busy, although a pod holds the GPU."""


class WorkRow(JsonObject, frozen=True):
    """One GPU that waits or idles."""

    state: Work | None = None
    since: datetime | None = None
    pod: Annotated[str | None, partial(text, longest=POD_DIGITS)] = None
    """First digits of the UID of the pod that holds the GPU. Its name would be visible to other teams."""


def read_work(value: object) -> Mapping[str, WorkRow]:
    """Return the GPUs of a record by UUID, without invalid entries. Raises ValueError if it is no object."""
    found = {}
    for uuid, entry in islice(table(value).items(), _MOST_GPUS):
        row = attempt(partial(read_row, WorkRow), entry)
        if row is not None and row.state is not None and row.since is not None and isinstance(uuid, str):
            found[text(uuid, _LONGEST_UUID)] = row
    return MappingProxyType(found)
