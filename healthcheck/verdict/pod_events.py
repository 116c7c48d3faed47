"""Events about the pods that use a faulty GPU, for the people who run them and who cannot see the Node. Pure.

Their texts name no process and no other pod: a detail from the kernel log may be about another namespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from gpu_healthcheck.healthcheck.catalog.policy import step_for
from gpu_healthcheck.healthcheck.catalog.xid import xid_table
from gpu_healthcheck.healthcheck.checks.listed import CHECKS, DEEP_CHECKS
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.node.state import GPU_UNHEALTHY
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict.gate import is_on
from gpu_healthcheck.healthcheck.verdict.node_events import InvolvedPod, NodeEvent, cut, event_name

LEAST = Severity.RESET
"""Least severity that is reported to pods: below it, the GPU still works."""
_XID = re.compile(r"Xid([0-9]{1,5})\Z", re.ASCII)
_WORK = "Work on it may hang, fail or give wrong results, and the other pods of a distributed job wait for it."
_PARTS = {"nvswitch": "an NVSwitch", "driver": "the GPU driver", "efa": "the EFA network", "rdma": "the RDMA network"}


def reported(active: Iterable[ActiveFinding]) -> tuple[ActiveFinding, ...]:
    """Return the findings that are reported to pods, the worst first."""
    found = (finding for finding in active if finding.finding.severity >= LEAST)
    return tuple(sorted(found, key=lambda finding: (-finding.finding.severity, finding.first_seen)))


def pod_events(
    node: str, found: Sequence[ActiveFinding], pods: Mapping[InvolvedPod, frozenset[str] | None], *, is_tainted: bool
) -> list[NodeEvent]:
    """Return one Event for each pod and finding that concerns it: first the worst finding of each pod.

    `pods`: subjects of each pod's GPUs. If they are unknown (None), only findings about the node as a whole count.
    """
    ranked = [
        (rank, _event(node, pod, active, is_tainted=is_tainted))
        for pod, gpus in pods.items()
        for rank, active in enumerate(
            finding for finding in found if is_on(finding.finding.subject, gpus or frozenset())
        )
    ]
    return [event for _, event in sorted(ranked, key=lambda pair: pair[0])]


def _event(node: str, pod: InvolvedPod, active: ActiveFinding, *, is_tainted: bool) -> NodeEvent:
    finding = active.finding
    since = timestamp(active.first_seen.replace(microsecond=0))
    step = step_for(finding.severity, (finding.subject,))
    taint = " Until then, no new pod starts on the node." if is_tainted else ""
    message = (
        f"{_subject(active)} is faulty since {since}: {_meaning(finding.reason)} ({finding.reason}, "
        f"{finding.severity.name}). {_WORK} If the job still makes progress, let it write a checkpoint. Ask an "
        f"administrator of the cluster to {step}, and name the node, {node}.{taint} "
        f"`kubectl gpu-healthcheck diagnose pod {pod.namespace}/{pod.name}` shows how to move the job."
    )
    name = event_name(node, pod.uid, finding.reason, finding.subject, active.first_seen.isoformat())
    return NodeEvent(name, "Warning", GPU_UNHEALTHY, cut(message), pod)


def _subject(active: ActiveFinding) -> str:
    """Return the faulty part as the user of the pod knows it."""
    finding = active.finding
    kind, _, name = finding.subject.partition("/")
    if kind != "gpu":
        part = _PARTS.get(kind)
        return f"{part[0].upper()}{part[1:]} of this pod's node" if part else "This pod's node"
    index, uuid = finding.about.get("index", ""), finding.about.get("uuid", "")
    title = f"GPU {index}" if index else "A GPU"
    return f"{title} of the node ({uuid or name}), which this pod uses,"


def _meaning(reason: str) -> str:
    """Return the first sentence of the meaning, without its full stop."""
    found = _XID.match(reason)
    row = xid_table().get(int(found[1])) if found else None
    meaning = row.meaning if row else _meanings().get(reason, "")
    return meaning.partition(". ")[0].removesuffix(".") or "a check of the node failed"


@cache
def _meanings() -> Mapping[str, str]:
    return {reason.name: reason.meaning for check in (*CHECKS, *DEEP_CHECKS) for reason in check.reasons}
