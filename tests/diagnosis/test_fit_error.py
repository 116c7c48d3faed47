"""Reasons in a scheduler's message, each with its number of nodes and its object."""

from __future__ import annotations

import pytest

from gpu_healthcheck.diagnosis.facts.fit_error import ReasonSubject, parse

_TAIL = "preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
_KAI = "no nodes with enough resources were found"
Reason = tuple[ReasonSubject, int | None, str]
READ: list[tuple[str, list[Reason]]] = [
    (f"4 Insufficient nvidia.com/gpu. {_TAIL}", [(ReasonSubject.SHORT, 4, "nvidia.com/gpu")]),
    (
        "1 Insufficient cpu, 3 node(s) had taint {nvidia.com/gpu: present}, that the pod didn't tolerate.",
        [(ReasonSubject.SHORT, 1, "cpu"), (ReasonSubject.TAINT, 3, "{nvidia.com/gpu: present}")],
    ),
    (
        f"1 node(s) had untolerated taint {{a: }}, 2 node(s) didn't match Pod's node affinity/selector. {_TAIL}",
        [(ReasonSubject.TAINT, 1, "{a: }"), (ReasonSubject.SELECTOR, 2, "")],
    ),
    (f"2 node(s) had untolerated taint(s). {_TAIL}", [(ReasonSubject.TAINT, 2, "")]),
    ("2 node(s) had taints that the pod didn't tolerate.", [(ReasonSubject.TAINT, 2, "")]),
    ("2 node(s) were unschedulable.", [(ReasonSubject.CORDON, 2, "")]),
    ("2 node(s) didn't match node selector.", [(ReasonSubject.SELECTOR, 2, "")]),
    ("2 node(s) didn't match scheduler-enforced node affinity.", [(ReasonSubject.SELECTOR, 2, "")]),
    ("2 node(s) didn't match pod anti-affinity rules.", [(ReasonSubject.OTHER_PODS, 2, "")]),
    ("2 node(s) didn't satisfy existing pods anti-affinity rules.", [(ReasonSubject.OTHER_PODS, 2, "")]),
    (
        "2 node(s) didn't match pod topology spread constraints (missing required label).",
        [(ReasonSubject.SPREAD, 2, "")],
    ),
    (f"pod has unbound immediate PersistentVolumeClaims. {_TAIL}", [(ReasonSubject.VOLUME_UNBOUND, None, "")]),
    ("2 pod has unbound immediate PersistentVolumeClaims.", [(ReasonSubject.VOLUME_UNBOUND, 2, "")]),
    (f'persistentvolumeclaim "data" not found. {_TAIL}', [(ReasonSubject.VOLUME_MISSING, None, "data")]),
    ("2 node(s) had volume node affinity conflict.", [(ReasonSubject.VOLUME_ELSEWHERE, 2, "")]),
    ("2 node(s) didn't match PersistentVolume's node affinity.", [(ReasonSubject.VOLUME_ELSEWHERE, 2, "")]),
    (f"2 Too many pods. {_TAIL}", [(ReasonSubject.SHORT, 2, "pods")]),
    (f"2 cannot allocate all claims. still not schedulable, {_TAIL}", [(ReasonSubject.CLAIM, 2, "")]),
    (
        f"request gpu: device class gpu.nvidia.com does not exist. no new claims to deallocate, {_TAIL}",
        [(ReasonSubject.CLASS_MISSING, None, "gpu.nvidia.com")],
    ),
    ("waiting for minCount pods from a gang to appear in scheduling queue.", [(ReasonSubject.GANG, None, "")]),
    (
        "3 node unregistered, 1 Insufficient cpu.",
        [(ReasonSubject.HAMI, 3, ""), (ReasonSubject.SHORT, 1, "cpu")],
    ),
    (
        "1 3/8 CardInsufficientMemory, 5/8 CardInsufficientCore, 3 node unregistered.",
        [(ReasonSubject.HAMI, 1, ""), (ReasonSubject.HAMI, 3, "")],
    ),
]
OTHERS = [
    ("0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu.", [(ReasonSubject.SHORT, 1, "nvidia.com/gpu")]),
    ("no nodes available to schedule pods", []),
    (
        f"{_KAI}: 2 node(s) had untolerated taint(s). \n5 node(s) didn't have enough resources: GPUs.",
        [(ReasonSubject.TAINT, 2, ""), (ReasonSubject.SHORT, 5, "nvidia.com/gpu")],
    ),
    (
        f"{_KAI}: 1 node(s) didn't have enough resources: CPU cores. 2 node(s) didn't have enough of mig profile: x/y.",
        [(ReasonSubject.SHORT, 1, "cpu"), (ReasonSubject.SHORT, 2, "x/y")],
    ),
    (
        f"\n{_KAI}.\n<a>: Node didn't have enough resource: GPUs, requested: 2, used: 6, capacity: 8.",
        [(ReasonSubject.SHORT, 1, "nvidia.com/gpu")],
    ),
    (
        f"Resources were found for 5 pods, 9 are required for gang scheduling. {_KAI}: 2 cannot allocate all claims.",
        [(ReasonSubject.GANG, None, ""), (ReasonSubject.CLAIM, 2, "")],
    ),
    (f"{_KAI}: 3 node(s) pod number exceeded.", [(ReasonSubject.SHORT, 3, "pods")]),
]
ROWS = [*((f"0/4 nodes are available: {text}", reasons) for text, reasons in READ), *OTHERS]


@pytest.mark.parametrize(("message", "reasons"), ROWS, ids=[row[0][25:85] for row in ROWS])
def test_message_is_split_into_reasons(message: str, reasons: list[Reason]) -> None:
    read = parse(message)
    assert read is not None
    assert [(reason.about, reason.nodes, reason.what) for reason in read.reasons] == reasons


def test_message_of_another_format_is_none() -> None:
    assert parse("binding rejected: node a has been locked within 5 minutes") is None
