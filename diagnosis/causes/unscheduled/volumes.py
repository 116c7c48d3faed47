"""Find volumes that keep a pod from being scheduled, and declare the rules that only the scheduler can judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting
from gpu_healthcheck.diagnosis.facts.commands import command
from gpu_healthcheck.diagnosis.facts.fit_error import ReasonSubject, UnfitReason
from gpu_healthcheck.diagnosis.facts.placement import has, holds_volume, selects
from gpu_healthcheck.diagnosis.facts.quantity import counted
from gpu_healthcheck.diagnosis.facts.symptoms import older, shortened
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import Volume, VolumeClaim
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.healthcheck.node.label_selector import Expression
from gpu_healthcheck.healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED, severity=CauseSeverity.MEDIUM)
UNBOUND = _scheduled(
    "VolumeClaimNotBound",
    "A pod's PersistentVolumeClaim has no volume, so the pod can't be scheduled.",
    "Name an existing StorageClass in the claim (`kubectl get storageclass`), and check that its provisioner runs and "
    "may create volumes of this size.",
    severity=CauseSeverity.HIGH,
)
MISSING = _scheduled(
    "VolumeClaimMissing",
    "A pod names a PersistentVolumeClaim that does not exist or is being deleted.",
    "Create the claim, or correct its name in the workload. The existing ones: `kubectl get pvc -A`.",
    severity=CauseSeverity.HIGH,
)
ELSEWHERE = _scheduled(
    "VolumeInAnotherZone",
    "A pod's volume is in a zone, or on a node, without a suitable GPU node.",
    "Add GPU nodes in the volume's zone, or move the data to a volume near the GPU nodes.",
    severity=CauseSeverity.HIGH,
)
BUSY = _scheduled(
    "VolumeInUse",
    "Another pod uses the pod's volume exclusively, or the nodes can attach no more volumes.",
    "Stop the other pod, or use a volume that several nodes can mount (ReadWriteMany).",
)
OTHER_PODS = _scheduled(
    "PodAffinityUnmet",
    "Rules about other pods (affinity, anti-affinity, topology spread) leave no node with room.",
    "Change the rule from required to preferred (spreading: `whenUnsatisfiable: ScheduleAnyway`), or add nodes.",
)
PORTS = _scheduled(
    "HostPortTaken",
    "A pod requires a host port that is in use on every node with room.",
    "Use a Service instead of hostPort, or run at most one such pod per node.",
)
CAUSES = (UNBOUND, MISSING, ELSEWHERE, BUSY, OTHER_PODS, PORTS)

_MOST = 5
_LOST = "Lost"
"""Phase of a claim whose volume was deleted."""
_ANEW = "save the claim's manifest, delete the claim, create it again"
_PROVISIONED = 1.0
"""Minutes in which a provisioner creates a volume."""
_NEARER = (
    "Add nodes with GPUs where the volume is, or copy the data to a volume in the zone of the nodes with room.",
    "A StorageClass with volumeBindingMode: WaitForFirstConsumer creates a new volume in the zone of its pod.",
)


def find_unbound(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield claims without a volume, which a scheduler judges before any node."""
    claims = _own_claims(snapshot, waiting)
    lost = [claim for claim in claims if claim.phase == _LOST]
    for reason in waiting.reasons(ReasonSubject.VOLUME_MISSING, ReasonSubject.VOLUME_UNBOUND) if lost else ():
        yield from (_unbound(snapshot, waiting, reason, claim) for claim in lost)
    for reason in waiting.reasons(ReasonSubject.VOLUME_MISSING) if not lost else ():
        yield from _missing(snapshot, waiting, reason)
    for reason in waiting.reasons(ReasonSubject.VOLUME_UNBOUND) if not lost else ():
        unbound = [claim for claim in claims if not claim.volume]
        yield from (_unbound(snapshot, waiting, reason, claim) for claim in unbound)
        if not unbound:
            yield waiting.found(UNBOUND, waiting.quote(reason), certainty=Certainty.LIKELY)


def find_elsewhere(snapshot: Snapshot, waiting: Waiting, free: Sequence[Node]) -> Iterator[FoundCause]:
    """Yield bound volumes that none of the nodes with room can mount together."""
    claims = _own_claims(snapshot, waiting)
    bound = [(claim, snapshot.volume[claim.volume]) for claim in claims if claim.volume in snapshot.volume]
    if any(all(holds_volume(volume, node) for _, volume in bound) for node in free):
        return
    distant = [pair for pair in bound if not any(holds_volume(pair[1], node) for node in free)] or bound
    near = [node for node in snapshot.nodes if all(holds_volume(volume, node) for _, volume in distant)]
    full = [
        node.subject
        for node in near
        if selects(waiting.spec, node) and all(has(node, name) for name in waiting.devices)
    ]
    for claim, volume in distant:
        evidence = (
            f"{claim.meta.subject} is bound to {volume.meta.subject}, only for nodes with {_where(volume)}",
            f"nodes with room but without the volume: {named((node.subject for node in free), _MOST)}",
            f"nodes with the volume have the requested resources, but no room: {named(full, _MOST)}"
            if full
            else f"of {counted(len(near), 'node')} with the volume, none has the requested resources",
        )
        yield waiting.found(ELSEWHERE, *evidence, remedy=_NEARER)


def are_settled(snapshot: Snapshot, waiting: Waiting) -> bool:
    """Whether the scheduler's message about volumes is outdated, or soon will be.

    All claims are bound by now, or so young that a provisioner may still create their volumes, without any warning.
    """
    claims = _own_claims(snapshot, waiting)
    if not claims or len(claims) < len(set(waiting.spec.volume_claims)):
        return False
    return not any(
        claim.meta.deleted is not None or claim.phase == _LOST
        if claim.volume
        else older(snapshot, claim.meta.created, _PROVISIONED)
        or any(event.warning for event in snapshot.events_about.get(claim.meta.subject, ()))
        for claim in claims
    )


def _missing(snapshot: Snapshot, waiting: Waiting, reason: UnfitReason) -> Iterator[FoundCause]:
    known = snapshot.volume_claims_in.get(waiting.namespace, {})
    existing = f"there are {named(known, _MOST) or 'no claims'} in the namespace"
    evidence = (waiting.quote(reason), *((existing,) if snapshot.sees("PersistentVolumeClaim") else ()))
    claims = waiting.spec.volume_claims
    unknown = [name for name in claims if name not in known]
    for name in (reason.what,) if reason.what else unknown or claims:
        yield waiting.found(MISSING, *evidence, subject=subject("PersistentVolumeClaim", waiting.namespace, name))


def _unbound(snapshot: Snapshot, waiting: Waiting, reason: UnfitReason, claim: VolumeClaim) -> FoundCause:
    events = snapshot.events_about.get(claim.meta.subject, ())
    messages = [event.message for event in events if event.warning] or [event.message for event in events]
    state = f"{claim.meta.subject}: {claim.phase or 'no phase'}, storageClassName {claim.storage_class or '(none)'}"
    remedy = tuple(_bind(claim, " ".join(messages[-1:])))
    evidence = (state, waiting.quote(reason), *messages[-1:])
    return waiting.found(UNBOUND, *evidence, subject=claim.meta.subject, remedy=remedy)


def _bind(claim: VolumeClaim, message: str) -> Iterator[str]:
    """Yield how the claim gets a volume."""
    classes, name = command("kubectl", "get", "storageclass"), claim.storage_class
    anew = "delete the claim and create it again, because its class can't be changed"
    if claim.phase == _LOST:
        yield (
            f"Its volume {claim.volume} was deleted. If its storage exists, create a PersistentVolume of that name, "
            "with `claimRef` to this claim and its uid."
        )
        yield f"If it is gone, so is the data: {_ANEW}, and restore the data from a backup."
    elif not name:
        yield f"Name a StorageClass in the claim, or create a PersistentVolume of its size: {classes}"
        yield f"To name a class, {anew}."
    elif "storageclass" in message.lower() and "not found" in message:
        yield f"Create the StorageClass {name}; or name an existing one: {classes}. For that, {anew}."
    else:
        look = command("kubectl", "describe", "storageclass", name)
        yield f"Check that the provisioner of StorageClass {name} runs and may create volumes of this size: {look}"
    look = command("kubectl", "-n", claim.meta.namespace, "describe", "pvc", claim.meta.name)
    yield f"Read all messages about the claim: {look}"


def _where(volume: Volume) -> str:
    """Describe the nodes that can mount the volume, by their labels."""
    zones = [" and ".join(map(_words, volume.zones))] if volume.zones else []
    terms = [" or ".join(" and ".join(map(_words, term)) for term in volume.terms)] if volume.terms else []
    return shortened(" and ".join((*zones, *terms)))


def _words(expression: Expression) -> str:
    return f"{expression.key} {expression.operator} {', '.join(expression.values)}".strip()


def _own_claims(snapshot: Snapshot, waiting: Waiting) -> list[VolumeClaim]:
    """Return the claims of the pods themselves."""
    known = snapshot.volume_claims_in.get(waiting.namespace, {})
    return [known[name] for name in dict.fromkeys(waiting.spec.volume_claims) if name in known]
