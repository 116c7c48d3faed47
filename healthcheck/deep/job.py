"""A Job for one node, made from the template in the cluster, which is a suspended CronJob.

No side effects.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.model import PREFIX

TESTED_NODE = f"{PREFIX}/node"
"""Annotation of a Job with the name of its Node, which may be too long for a label."""
SHOWN = f"{PREFIX}/told"
"""Annotation of a quarantine Job that a command created and follows: time when the result was shown, or ''."""
COMPONENT_LABEL = "app.kubernetes.io/component"
MADE_BY_LABEL = "app.kubernetes.io/managed-by"
"""Label of a Job that a program created for itself, with the name of its account."""
_LONGEST_NAME, _DIGEST_LETTERS = 63, 10
"""Longest Job name, which is a label of its pods, and length of the digest in it."""


class JobState(Struct, frozen=True):
    """A Job as last read from the API server. `node` is the Node that it tests; '' if its pods may run on another."""

    name: str
    namespace: str
    uid: str
    node: str
    created: datetime
    outcome: str = ""
    """Outcome: `Complete` or the reason of the failure; '' while it runs, or while its pods still terminate."""
    leaving: bool = False
    """The Job was deleted, and its pods are terminating."""
    suspended: bool = False
    """The Job is suspended, for instance by a queue such as Kueue, and has no pods."""
    unshown: bool = False
    """A command created it, and no command has shown its result."""
    component: str = ""
    """Value of its label `app.kubernetes.io/component`."""
    made_by: str = ""
    """Account of the program that created it; '' for a person."""
    account: str = ""
    """Service account of its pods."""
    claims: bool = False
    """Whether the Job's pods claim devices, which no scheduler preempts for other pods."""


class TemplateError(ValueError):
    """Error for a CronJob whose Jobs cannot test a node. The message gives the reason."""


class JobName(Struct, frozen=True):
    """Name, namespace and component of a Job."""

    name: str
    namespace: str
    component: str


def job_on(template: Mapping[str, Any], title: JobName, node_name: str, node_uid: str) -> dict[str, Any]:
    """Return the template's Job, restricted to one node.

    Raises TemplateError. The Node owns the Job, so it is deleted with the Node.
    """
    job = copy.deepcopy(dict(template))
    metadata = job.get("metadata") or {}
    job |= {"apiVersion": "batch/v1", "kind": "Job"}
    job["metadata"] = {
        "name": title.name,
        "namespace": title.namespace,
        "labels": {**(metadata.get("labels") or {}), COMPONENT_LABEL: title.component},
        "annotations": {**(metadata.get("annotations") or {}), TESTED_NODE: node_name},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid}],
    }
    pod, _ = pod_of(job)
    labels = job["spec"]["template"].setdefault("metadata", {}).setdefault("labels", {})
    labels[COMPONENT_LABEL] = title.component
    _pin(pod, node_name)
    return job


def pod_of(job: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pod of a Job and its first container, which runs the test. Raises TemplateError."""
    try:
        pod = job["spec"]["template"]["spec"]
        container = pod["containers"][0]
    except (KeyError, TypeError, IndexError):
        raise TemplateError("its jobTemplate has no container") from None
    return pod, container


def tested_node(job: Mapping[str, Any]) -> str:
    """Return the Node that the Job names, if its pods can run on no other; '' otherwise."""
    name = str((job["metadata"].get("annotations") or {}).get(TESTED_NODE, ""))
    affinity = (_pod_in(job).get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    is_pinned = bool(terms) and all(_only(name) in (term.get("matchFields") or ()) for term in terms)
    return name if is_pinned else ""


def claims_devices(job: Mapping[str, Any]) -> bool:
    """Whether the Job's pods claim devices by dynamic resource allocation."""
    return bool(_pod_in(job).get("resourceClaims"))


def account_of(job: Mapping[str, Any]) -> str:
    """Return the service account of the Job's pods, or an empty string if the Job sets none."""
    return str(_pod_in(job).get("serviceAccountName") or "")


def job_name(beginning: str, node_name: str) -> str:
    """Return the name `BEGINNING-NODE`, shortened if it is too long.

    It is constant, so that a node has only one Job.
    """
    name = f"{beginning}-{node_name}"
    return name if len(name) <= _LONGEST_NAME else short_name(beginning, node_name, node_name)


def short_name(beginning: str, node_name: str, unique: str) -> str:
    """Return a name of at most 63 characters for any node name; it differs for each `unique`."""
    digest = hashlib.blake2s(unique.encode()).hexdigest()[:_DIGEST_LETTERS]
    room = _LONGEST_NAME - len(beginning) - len(digest) - 2
    readable = re.sub(r"[^a-z0-9-]", "-", node_name)[:room].strip("-")
    return f"{beginning}-{readable}-{digest}"


def _pod_in(job: Mapping[str, Any]) -> Mapping[str, Any]:
    return ((job.get("spec") or {}).get("template") or {}).get("spec") or {}


def _pin(pod: dict[str, Any], node_name: str) -> None:
    """Restrict the pod to the Node with this name.

    A label could be missing or belong to another Node.
    """
    affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    # Terms are alternatives: each of the template's terms must be restricted to this node.
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), _only(node_name)]} for term in terms
    ]


def _only(node_name: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "In", "values": [node_name]}
