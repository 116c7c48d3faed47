"""Compute how much of their granted HAMi shares pods use, by pod and card. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.hami.grants import shares
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.meta import subject


class MeasuredUse(Struct, frozen=True):
    """Use in MiB and percent; None if no series reports it."""

    memory: int | None = None
    cores: int | None = None

    def __str__(self) -> str:
        memory = f"{self.memory} MiB" if self.memory is not None else ""
        cores = f"{self.cores} %" if self.cores is not None else ""
        return ", ".join(filter(None, (memory, cores)))


def used(snapshot: Snapshot) -> Mapping[tuple[str, str], MeasuredUse]:
    """Return the use by a pod's subject and a card's UUID.

    A series for a pod that was not given the card is ignored.
    """
    if not snapshot.share_use:
        return {}
    given = {(pod.subject, share.card) for pod in snapshot.pods if not pod.over for share in shares(pod.meta)}
    found: dict[tuple[str, str], MeasuredUse] = {}
    for one in snapshot.share_use:
        keys = ((subject("Pod", *pair), one.uuid) for pair in one.pods)
        key = next((key for key in keys if key in given), None)
        if key is not None:
            told = found.get(key, MeasuredUse())
            memory = told.memory if one.memory is None else one.memory
            found[key] = replace(told, memory=memory, cores=told.cores if one.cores is None else one.cores)
    return found
