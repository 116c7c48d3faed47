"""Job that diagnoses one node. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_healthcheck.healthcheck.deep import job
from gpu_healthcheck.healthcheck.deep.job import SHOWN, JobName, job_on
from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.healthcheck.node.state import NodeState

CRON_JOB = "gpu-healthcheck-quarantine-node"
"""Name of the CronJob that is its template."""
COMPONENT = "quarantine"
_BEGINNING = "gpu-quarantine"
TARGET = f"{PREFIX}/target-node"
"""Label by which the replaced scripts find a node's Job."""
_LONGEST_LABEL = 63


def quarantine_job(template: Mapping[str, Any], node: NodeState, namespace: str) -> dict[str, Any]:
    """Return the Job for this node. Raises TemplateError."""
    made = job_on(template, JobName(job_name(node.name), namespace, COMPONENT), node.name, node.uid)
    made["metadata"]["annotations"][SHOWN] = ""
    if len(node.name) <= _LONGEST_LABEL:
        made["metadata"]["labels"][TARGET] = node.name
    return made


def job_name(node_name: str) -> str:
    """Return the name `gpu-quarantine-<NODE>`, shortened if it is too long."""
    return job.job_name(_BEGINNING, node_name)
