"""Determine the number of a pod in its job, as the controllers of jobs write it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_healthcheck.diagnosis.facts.quantity import digits
from gpu_healthcheck.diagnosis.snapshot.pods import Pod

_COMPLETION = "batch.kubernetes.io/job-completion-index"
RANK_KEYS = (
    *(_COMPLETION, "leaderworkerset.sigs.k8s.io/worker-index"),
    *("apps.kubernetes.io/pod-index", "volcano.sh/task-index"),
)
"""Labels or annotations with a pod's number in its workload."""
REPLICA, REPLICA_TYPE = "training.kubeflow.org/replica-index", "training.kubeflow.org/replica-type"
_JOB, _JOB_INDEX = "jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index"
_WORKER, _UNKNOWN = "worker", -10_000_000


def marks_of(pod: Pod) -> dict[str, str]:
    return {**pod.meta.annotations, **pod.meta.labels}


def pod_numbers(pods: Sequence[Pod]) -> Mapping[str, int]:
    """Return the number of each pod of one job by subject, from 0; empty if it is not known of each pod.

    A JobSet numbers its Jobs, each of which numbers its pods. A PyTorchJob numbers its workers after its master.
    """
    marks = [marks_of(pod) for pod in pods]
    in_job = 1 + max((digits(own.get(_COMPLETION, ""), 0) for own in marks), default=0)
    masters = len({own[REPLICA_TYPE] for own in marks if own.get(REPLICA_TYPE, _WORKER) != _WORKER})
    numbers = {}
    for pod, own in zip(pods, marks, strict=True):
        ordinal = pod.meta.name.rpartition("-")[2] if pod.meta.owner and pod.meta.owner.kind == "StatefulSet" else ""
        number = digits(next((own[key] for key in (REPLICA, *RANK_KEYS) if key in own), ordinal), _UNKNOWN)
        number += in_job * digits(own.get(_JOB_INDEX, "0"), _UNKNOWN)
        numbers[pod.subject] = number + (masters if own.get(REPLICA_TYPE) == _WORKER else 0)
    is_known = all(number >= 0 for number in numbers.values()) and len({own.get(_JOB) for own in marks}) == 1
    return numbers if is_known and len({*numbers.values()}) == len(numbers) else {}
