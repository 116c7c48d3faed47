"""Parse a scheduler's text about a pod that no node accepts: each reason, and its node count. Pure.

Supported are kube-scheduler since 1.16 (`0/4 nodes are available: …`), Volcano (`0/4 nodes are unavailable: …`) and KAI
(`no nodes with enough resources were found: …`), with the texts that extenders and other plugins add.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache

from msgspec import Struct

_HEAD = re.compile(r"(\d{1,7})/(\d{1,7}) nodes are (?:un)?available: ?", re.ASCII)
_NEXT = re.compile(r", (?=\d{1,7} )", re.ASCII)
_OF_KAI = re.compile(r"no nodes with enough resources were found[:.]\s*", re.ASCII | re.IGNORECASE)
_NEXT_OF_KAI = re.compile(r"\.\s+(?=\d{1,7} |<)", re.ASCII)
"""KAI counts the nodes for each reason, or with detailed errors names each node: `<a>: Node didn't have …`."""
_NODE_OF_KAI = re.compile(r"<[^<>]{1,253}>: (?=.)", re.ASCII | re.DOTALL)
_RESOURCES = {
    "GPUs": "nvidia.com/gpu",
    "GPU memory": "nvidia.com/gpu.memory",
    "CPU cores": "cpu",
    "Too many pods": "pods",
    "pod number": "pods",
}
"""Names of resources by a scheduler's words for them."""
_COUNTED = re.compile(r"(\d{1,7}) (.+)", re.ASCII | re.DOTALL)
_AFTER = (
    *("preemption:", "no new claims to deallocate", "still not schedulable", "deallocation of ResourceClaim completed"),
    *("deletion of ResourceClaim completed", "No preemption victims found"),
)
"""Beginnings of the text about preemption, which does not explain why the pod does not fit."""
_EMPTY = "no nodes available to schedule pods"


class ReasonSubject(Enum):
    """Subject of a reason."""

    SHORT = "too little of a resource"
    TAINT = "a taint that the pod does not tolerate"
    CORDON = "a cordon"
    NOT_READY = "a node that is not ready or under pressure"
    SELECTOR = "the pod's node selector or affinity"
    NODE_NAME = "the pod's node name"
    OTHER_PODS = "affinity or anti-affinity to other pods"
    SPREAD = "topology spread"
    PORTS = "a port of the host"
    VOLUME_UNBOUND = "a volume that is not bound"
    VOLUME_MISSING = "a PersistentVolumeClaim that does not exist"
    VOLUME_ELSEWHERE = "a volume that lies elsewhere"
    VOLUME_BUSY = "a volume that is in use or one too many"
    CLAIM = "a claim that no device satisfies"
    CLAIM_MISSING = "a ResourceClaim that does not exist"
    CLASS_MISSING = "a DeviceClass that does not exist"
    GANG = "a group of pods that must start together"
    HAMI = "HAMi's own judgement"
    OTHER = "something else"


class UnfitReason(Struct, frozen=True):
    """Reason why a pod does not fit.

    `nodes` is the number of nodes; None if the reason concerns the pod as such. `what`: the resource, taint or object.
    """

    about: ReasonSubject
    text: str
    nodes: int | None = None
    what: str = ""


class FitError(Struct, frozen=True):
    """Parsed text of a scheduler. `nodes`: how many the scheduler knew; None if the text has no number."""

    nodes: int | None
    reasons: tuple[UnfitReason, ...]

    def of(self, *about: ReasonSubject) -> tuple[UnfitReason, ...]:
        return tuple(reason for reason in self.reasons if reason.about in about)


_TEXTS: tuple[tuple[ReasonSubject, str], ...] = (
    # HAMi's codes before the rest: its texts name nodes and cards.
    (
        ReasonSubject.HAMI,
        (
            r"\b(?:NodeUnfitPod|node unregistered|node usage unavailable|node not fit pod|NodeInsufficientDevice"
            r"|Card[A-Z][A-Za-z]{1,40}|AllocatedCardsInsufficientRequest|ExclusiveDeviceAllocateConflict|NumaNotFit"
            r"|ResourceQuotaNotFit|ModeNotFit|node lock)\b"
        ),
    ),
    (ReasonSubject.SHORT, r"\AInsufficient (\S{1,320})"),
    (ReasonSubject.SHORT, r"\A(?:node\(s\) had )?(Too many pods)"),
    (
        ReasonSubject.SHORT,
        r"didn't have enough (?:resources?|of mig profile): (GPU memory|CPU cores|[^\s,]{1,320}?)(?=[.,]?(?:\s|\Z))",
    ),
    (ReasonSubject.SHORT, r"node\(s\) (pod number) exceeded"),
    (ReasonSubject.TAINT, r"had untolerated taint\(s\)"),
    (ReasonSubject.TAINT, r"had (?:un)?tolerated taint (\{[^{}]{0,700}\})"),
    (ReasonSubject.TAINT, r"had taint (\{[^{}]{0,700}\})"),
    (ReasonSubject.TAINT, r"had taints? that the pod didn't tolerate"),
    (ReasonSubject.CORDON, r"were unschedulable"),
    (ReasonSubject.NOT_READY, r"were not ready|had unknown conditions|were out of disk|(?:disk|memory|pid) ?pressure"),
    (ReasonSubject.OTHER_PODS, r"pod (?:anti-)?affinity|pods anti-affinity"),
    (ReasonSubject.SELECTOR, r"node affinity/selector|match node selector|Pod's node affinity|enforced node affinity"),
    (ReasonSubject.SELECTOR, r"pod affinity terms conflict"),
    (ReasonSubject.NODE_NAME, r"match the requested (?:node ?name|hostname)"),
    (ReasonSubject.SPREAD, r"topology spread"),
    (ReasonSubject.PORTS, r"free ports for the requested pod ports"),
    (ReasonSubject.VOLUME_UNBOUND, r"unbound (?:immediate )?PersistentVolumeClaims|persistent volumes to bind"),
    (ReasonSubject.VOLUME_UNBOUND, r"not have enough free storage"),
    (ReasonSubject.VOLUME_MISSING, r"persistentvolumeclaim \"([^\"]{1,320})\" (?:not found|is being deleted)"),
    (ReasonSubject.VOLUME_MISSING, r"bound to non-existent (?:pv|persistentvolume)"),
    (ReasonSubject.VOLUME_ELSEWHERE, r"volume node affinity conflict|PersistentVolume's node affinity"),
    (ReasonSubject.VOLUME_ELSEWHERE, r"no available volume zone"),
    (ReasonSubject.VOLUME_BUSY, r"max volume count|no available disk|ReadWriteOncePod"),
    (ReasonSubject.CLASS_MISSING, r"device class (\S{1,320}) does not exist"),
    (ReasonSubject.CLAIM_MISSING, r"resourceclaim \"?([^\" ]{0,320})\"? not found"),
    (ReasonSubject.CLAIM_MISSING, r"resource ?claim (?:\S{1,320} )?(?:was )?not (?:been )?created"),
    (ReasonSubject.CLAIM_MISSING, r"controller to create the resourceclaim"),
    (ReasonSubject.CLAIM, r"cannot allocate all claims|resource ?claim|extended resource claim|cannot fit resource"),
    (ReasonSubject.GANG, r"\bgang\b|pod ?group|sibling pods|minmember|minavailable|rejected due to timeout"),
)


@cache
def _patterns() -> tuple[tuple[ReasonSubject, re.Pattern[str]], ...]:
    """Return the compiled patterns, at the first message only, because most clusters have none."""
    return tuple((subject, re.compile(pattern, re.ASCII | re.IGNORECASE)) for subject, pattern in _TEXTS)


_OF_THE_POD = (
    ReasonSubject.VOLUME_UNBOUND,
    ReasonSubject.VOLUME_MISSING,
    ReasonSubject.CLAIM_MISSING,
    ReasonSubject.CLASS_MISSING,
)
"""Reasons without a node count: the pod is refused before any node is checked."""


def parse(message: str) -> FitError | None:
    """Parse a scheduler's text; None for any other text.

    The texts of Volcano and KAI name the group first, then why one pod of the group does not fit.
    """
    if _EMPTY in message:
        return FitError(0, ())
    head = _HEAD.search(message)
    if head is None and (of_kai := _OF_KAI.search(message)) is not None:
        texts = (_NODE_OF_KAI.sub("1 ", text).strip(" .") for text in _NEXT_OF_KAI.split(message[of_kai.end() :]))
        return FitError(None, (*_of_group(message[: of_kai.start()]), *map(_reason, filter(None, texts))))
    if head is None:
        alone = reason_of(message)
        return FitError(None, (alone,)) if alone.about in _OF_THE_POD else None
    rest = message[head.end() :]
    cut = min((at for text in _AFTER if (at := rest.find(text)) >= 0), default=len(rest))
    body = rest[:cut].strip(" .,")
    before = _of_group(message[: head.start()])
    listed = (_reason(word.strip(" .")) for word in _NEXT.split(body) if word.strip(" ."))
    return FitError(int(head[2]), (*before, *listed))


def _of_group(text: str) -> tuple[UnfitReason, ...]:
    reason = reason_of(text)
    return (reason,) if reason.about is ReasonSubject.GANG else ()


def reason_of(text: str, nodes: int | None = None) -> UnfitReason:
    """Parse the text of one reason, without its count."""
    for subject, pattern in _patterns():
        found = pattern.search(text)
        if found is not None:
            what = (found[1] or "") if pattern.groups else ""
            return UnfitReason(subject, text, nodes, _RESOURCES.get(what, what))
    return UnfitReason(ReasonSubject.OTHER, text, nodes)


def _reason(text: str) -> UnfitReason:
    counted = _COUNTED.match(text)
    return reason_of(text) if counted is None else reason_of(counted[2], int(counted[1]))
