"""Find workloads for GPUs, and components that GPUs need, that lack pods, with the refusals of their pods."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct

from diagnosis.causes.admission.refusals import Refusal, parse
from diagnosis.facts.components import role_of
from diagnosis.facts.gpu_requests import gpu_claims, meant_as_gpu
from diagnosis.facts.placement import asked_by
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.cluster_events import Event
from diagnosis.snapshot.meta import Meta
from diagnosis.snapshot.pods import PodSpec, condition_in
from diagnosis.snapshot.workloads import KINDS, Workload
from healthcheck.text.moments import EARLIEST

_MAKERS = frozenset(("ReplicaSet", "StatefulSet", "DaemonSet", "Job"))
"""Kinds that create pods themselves; other kinds create one of these."""
_ABOVE = ("JobSet", "LeaderWorkerSet", "PyTorchJob", "MPIJob")
"""Kinds that create one of the above, or pods, and record refusals in their own status."""
_FAILED = frozenset(
    ("FailedCreate", "JobCreationFailed", "FailedCreatePod", "FailedToCreateWorkerPod", "FailedToCreateHeadPod")
)
_PATIENCE = timedelta(minutes=1)
_RECENT = timedelta(minutes=30)
"""A controller retries at least every 15 minutes."""


class IncompleteWorkload(Struct, frozen=True):
    """Workload that lacks pods.

    `refusal` is the last refusal that it received; None if no message reports one, or if it passes on its own.
    """

    workload: Workload
    top: str
    """Object that a person wrote: the Deployment above the ReplicaSet."""
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
    for maker in _makers(snapshot):
        if maker.spec is None or not _lacks(snapshot, maker):
            continue
        is_component = role_of(maker.meta, maker.template_labels, maker.spec) is not None
        if is_component or _for_gpus(maker.meta, maker.spec, claims):
            yield IncompleteWorkload(maker, snapshot.line(maker.meta)[-1], _heard(snapshot, maker), is_component)


def _makers(snapshot: Snapshot) -> Iterator[Workload]:
    """Yield workloads that create pods, and Deployments whose ReplicaSets are not visible.

    The condition of such a Deployment repeats the messages that its ReplicaSets received.
    """
    sets = (workload for workload in snapshot.workloads if workload.meta.kind == "ReplicaSet")
    divided = {above for workload in sets for above in snapshot.line(workload.meta)}
    for workload in snapshot.workloads:
        if workload.meta.kind in _MAKERS or (workload.meta.kind == "Deployment" and workload.subject not in divided):
            yield workload


def strangers(snapshot: Snapshot) -> Iterator[tuple[Event, Refusal]]:
    """Yield recent refusals of GPU pods, from events about objects of kinds that are not read here."""
    known = {kind.lower() for kind in (*KINDS, "Pod") if snapshot.sees(kind) and kind not in _ABOVE}
    heard = {incomplete.workload.subject for incomplete in wanting(snapshot) if incomplete.refusal is not None}
    metas = (pod.meta for some in (snapshot.pods, snapshot.workloads) for pod in some)
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
        is_about_gpus = refusal is not None and (meant_as_gpu(event.message) or "nvidia" in event.message)
        # A pod created after the event shows that the refusal is over.
        if (
            recent
            and is_about_gpus
            and refusal is not None
            and made.get(event.uid, EARLIEST) < (event.last or EARLIEST)
        ):
            yield event, refusal


def _lacks(snapshot: Snapshot, workload: Workload) -> bool:
    young = snapshot.is_new(workload.meta, _PATIENCE)
    ended = any(condition_in(workload.conditions, kind, "True") for kind in ("Complete", "Failed"))
    if workload.meta.deleted is not None or workload.suspended or ended:
        return False
    heard = any(True for _ in _messages(snapshot, workload))
    wanted = workload.wanted if workload.wanted is not None else int(workload.meta.kind != "DaemonSet")
    return wanted > (workload.made or 0) and (heard or not young)


def _for_gpus(meta: Meta, spec: PodSpec, claims: frozenset[tuple[str, str]]) -> bool:
    return any(map(meant_as_gpu, asked_by(spec))) or any(
        (meta.namespace, name) in claims for name in spec.claims.values()
    )


def _heard(snapshot: Snapshot, workload: Workload) -> Refusal | None:
    """Return the last refusal among the messages about the workload."""
    refusals = [refusal for message in _messages(snapshot, workload) if (refusal := parse(message)) is not None]
    return refusals[-1] if refusals else None


def _messages(snapshot: Snapshot, workload: Workload) -> Iterator[str]:
    """Yield the condition first, which persists and may be old, then the events, the newest last."""
    for condition in workload.conditions:
        if condition.type == "ReplicaFailure" and condition.status == "True":
            yield condition.message
    for event in snapshot.events_about.get(workload.subject, ()):
        if event.reason in _FAILED and event.warning and event.uid in ("", workload.meta.uid):
            yield event.message
