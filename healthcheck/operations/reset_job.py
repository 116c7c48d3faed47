"""Job that resets GPUs of one node. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from healthcheck.deep import job
from healthcheck.deep.job import MADE_BY_LABEL, JobName, job_on, pod_of
from healthcheck.deep.reset_plan import boot_name, gpu_name
from healthcheck.node.state import NodeState

CRON_JOB = "gpu-healthcheck-reset-node"
"""Name of the CronJob that is its template."""
COMPONENT = "reset"
AUTOMATION = "gpu-healthcheck-reset-automation"
"""Account of automatic resets, which may delete only the Jobs that name it."""
_BEGINNING = "gpu-reset"


def reset_job(
    template: Mapping[str, Any],
    node: NodeState,
    namespace: str,
    gpus: Sequence[str],
    wait_seconds: float,
    reboot: str = "",
    made_by: str = "",
) -> dict[str, Any]:
    """Return the Job for these GPUs, which waits this long until they are free. Raises TemplateError.

    `reboot` is the boot that it may end if the reset fails; without GPUs, it tries no reset. `made_by` is the account
    of the program that creates it for itself.
    """
    made = job_on(template, JobName(job_name(node.name), namespace, COMPONENT), node.name, node.uid)
    if made_by:
        made["metadata"]["labels"][MADE_BY_LABEL] = made_by
    _, container = pod_of(made)
    container["args"] = [f"--gpu={gpu_name(gpu)}" for gpu in gpus] + [f"--wait={wait_seconds:.0f}"]
    if reboot:
        container["args"].append(f"--reboot={boot_name(reboot)}")
    return made


def job_name(node_name: str) -> str:
    """Return the name `gpu-reset-<NODE>`, shortened if it is too long. It also is the owner's name in the claim."""
    return job.job_name(_BEGINNING, node_name)
