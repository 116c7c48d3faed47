"""Compute how much of their granted HAMi shares pods use, by pod and card. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

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
    given = {(pod.subject, share.card) for pod in snapshot.pods if not pod.over for share in pod.shares}
    found: dict[tuple[str, str], MeasuredUse] = {}
    for use in snapshot.share_use:
        keys = ((subject("Pod", *pair), use.uuid) for pair in use.pods)
        key = next((key for key in keys if key in given), None)
        if key is not None:
            measured_use = found.get(key, MeasuredUse())
            memory = measured_use.memory if use.memory is None else use.memory
            found[key] = replace(
                measured_use, memory=memory, cores=measured_use.cores if use.cores is None else use.cores
            )
    return found
