"""Workloads of GPU pods, and of components that GPUs need, that lack pods, and why as they heard it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct

from diagnosis.causes.admission.texts import Refusal, parse
from diagnosis.components import role_of
from diagnosis.gpus import gpu_claims, meant_as_gpu
from diagnosis.placement import asked_by
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.events import Event
from diagnosis.snapshot.meta import Meta
from diagnosis.snapshot.pods import PodSpec
from diagnosis.snapshot.workloads import KINDS, Workload
from healthcheck.text.moments import EARLIEST

_MAKERS = frozenset(("ReplicaSet", "StatefulSet", "DaemonSet", "Job"))
"""What makes pods itself; the others make one of these."""
_ABOVE = ("JobSet", "LeaderWorkerSet")
"""They make what makes pods, and note themselves what is refused."""
_FAILED = frozenset(
    ("FailedCreate", "JobCreationFailed", "FailedCreatePod", "FailedToCreateWorkerPod", "FailedToCreateHeadPod")
)
_PATIENCE = timedelta(minutes=1)
_RECENT = timedelta(minutes=30)
"""A controller tries again at least every quarter of an hour."""


class IncompleteWorkload(Struct, frozen=True):
    """Workload that lacks pods.

    `refusal` is the last refusal that it received; None if no message reports one, or if it passes on its own.
    """

    workload: Workload
    top: str
    """What a person wrote: the Deployment above the ReplicaSet."""
    refusal: Refusal | None
    is_component: bool

    @property
    def spec(self) -> PodSpec:
        return self.workload.spec or PodSpec()

    @property
    def namespace(self) -> str:
        return self.workload.meta.namespace


def wanting(snapshot: Snapshot) -> Iterator[IncompleteWorkload]:
    """Yield the workloads that lack pods, limited to those for GPUs and to components that GPUs need."""
    claims = gpu_claims(snapshot)
    for one in _makers(snapshot):
        if one.spec is None or not _lacks(snapshot, one):
            continue
        is_component = role_of(one.meta, one.template_labels, one.spec) is not None
        if is_component or _for_gpus(one.meta, one.spec, claims):
            yield IncompleteWorkload(one, snapshot.line(one.meta)[-1], _heard(snapshot, one), is_component)


def _makers(snapshot: Snapshot) -> Iterator[Workload]:
    """Yield workloads that create pods, and Deployments whose ReplicaSets are not visible.

    The condition of such a Deployment repeats the messages that its ReplicaSets received.
    """
    sets = (one for one in snapshot.workloads if one.meta.kind == "ReplicaSet")
    divided = {above for one in sets for above in snapshot.line(one.meta)}
    for one in snapshot.workloads:
        if one.meta.kind in _MAKERS or (one.meta.kind == "Deployment" and one.subject not in divided):
            yield one


def strangers(snapshot: Snapshot) -> Iterator[tuple[Event, Refusal]]:
    """Yield recent refusals of GPU pods, from events about objects of kinds that are not read here."""
    known = {kind.lower() for kind in (*KINDS, "Pod") if snapshot.sees(kind) and kind not in _ABOVE}
    heard = {one.workload.subject for one in wanting(snapshot) if one.refusal is not None}
    metas = (one.meta for some in (snapshot.pods, snapshot.workloads) for one in some)
    made: dict[str, datetime] = {}
    for meta in metas:
        if meta.owner is not None and meta.created is not None:
            made[meta.owner.uid] = max(meta.created, made.get(meta.owner.uid, EARLIEST))
    for event in snapshot.events:
        if event.reason not in _FAILED or not event.warning or event.about.partition("/")[0] in known:
            continue
        if event.about.replace("replicaset/", "deployment/").rpartition("-")[0] in heard:
            continue
        recent = event.last is not None and snapshot.now - event.last < _RECENT
        refusal = parse(event.message)
        told = refusal is not None and (meant_as_gpu(event.message) or "nvidia" in event.message)
        # A pod created after the event shows that the refusal is over.
        if recent and told and refusal is not None and made.get(event.uid, EARLIEST) < (event.last or EARLIEST):
            yield event, refusal


def _lacks(snapshot: Snapshot, one: Workload) -> bool:
    young = one.meta.created is not None and snapshot.now - one.meta.created < _PATIENCE
    ended = any(told.type in ("Complete", "Failed") and told.status == "True" for told in one.conditions)
    if one.meta.deleted is not None or one.suspended or ended:
        return False
    heard = any(True for _ in _messages(snapshot, one))
    wanted = one.wanted if one.wanted is not None else int(one.meta.kind != "DaemonSet")
    return wanted > (one.made or 0) and (heard or not young)


def _for_gpus(meta: Meta, spec: PodSpec, claims: frozenset[tuple[str, str]]) -> bool:
    return any(map(meant_as_gpu, asked_by(spec))) or any(
        (meta.namespace, name) in claims for name in spec.claims.values()
    )


def _heard(snapshot: Snapshot, one: Workload) -> Refusal | None:
    """Return the last refusal among the messages about the workload."""
    told = [refusal for message in _messages(snapshot, one) if (refusal := parse(message)) is not None]
    return told[-1] if told else None


def _messages(snapshot: Snapshot, one: Workload) -> Iterator[str]:
    """Its condition first, which lasts and may be old; then its events, the newest last."""
    for told in one.conditions:
        if told.type == "ReplicaFailure" and told.status == "True":
            yield told.message
    for event in snapshot.events_about.get(one.subject, ()):
        if event.reason in _FAILED and event.warning and event.uid in ("", one.meta.uid):
            yield event.message
