"""The Job that tests one node, made from the template that stands in the cluster. Pure."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from healthcheck.run import TESTED_NODE
from sweeper.select import Candidate

COMPONENT_LABEL = "app.kubernetes.io/component"
COMPONENT = "sweep"
SELECTOR = f"{COMPONENT_LABEL}={COMPONENT}"
_BEGINNING = "gpu-sweep"
_LONGEST_NAME, _DIGEST_LETTERS = 63, 10
"""A Job's name is a label of its pods."""


class TemplateError(ValueError):
    """The CronJob in the cluster makes no Job that could test a node. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the settings say of each Job. `image` '' is the template's own."""

    namespace: str
    image: str
    deadline_seconds: int
    """From its beginning to its end, the waiting for a place included."""


def job_for(template: Mapping[str, Any], node: Candidate, order: Order, at: datetime) -> dict[str, Any]:
    """The Job for one node. Raises TemplateError.

    It asks for every GPU that the node offers, so that the scheduler proves that nobody uses one, and keeps them for
    the test; and it can run on that node only. It is owned by the Node: of a Node that is gone nothing is left waiting.
    """
    job = copy.deepcopy(dict(template))
    metadata = job.get("metadata") or {}
    job |= {"apiVersion": "batch/v1", "kind": "Job"}
    job["metadata"] = {
        "name": job_name(node.name, at),
        "namespace": order.namespace,
        "labels": {**(metadata.get("labels") or {}), COMPONENT_LABEL: COMPONENT},
        "annotations": {**(metadata.get("annotations") or {}), TESTED_NODE: node.name},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}],
    }
    pod, container = _pod(job)
    job["spec"]["activeDeadlineSeconds"] = order.deadline_seconds
    labels = job["spec"]["template"].setdefault("metadata", {}).setdefault("labels", {})
    labels[COMPONENT_LABEL] = COMPONENT
    _pin(pod, node.name)
    for kind in ("requests", "limits"):
        resources = container.setdefault("resources", {})
        resources[kind] = {**(resources.get(kind) or {}), **{name: str(count) for name, count in node.gpus.items()}}
    if order.image:
        container["image"] = order.image
    return job


def job_name(node_name: str, at: datetime) -> str:
    """At most 63 characters, whatever the node's name, and another one at each attempt: the last may still stand."""
    digest = hashlib.blake2s(f"{node_name} {at.isoformat()}".encode()).hexdigest()[:_DIGEST_LETTERS]
    room = _LONGEST_NAME - len(_BEGINNING) - len(digest) - 2
    readable = re.sub(r"[^a-z0-9-]", "-", node_name)[:room].strip("-")
    return f"{_BEGINNING}-{readable}-{digest}"


def tolerations(template: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Of the sweep's pods. Raises TemplateError."""
    pod, _ = _pod(template)
    return pod.get("tolerations") or ()


def _pod(job: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of a Job and its first container: the one that tests."""
    try:
        pod = job["spec"]["template"]["spec"]
        container = pod["containers"][0]
    except (KeyError, TypeError, IndexError):
        raise TemplateError("its jobTemplate has no container") from None
    return pod, container


def _pin(pod: dict[str, Any], node_name: str) -> None:
    """By the Node's name itself, not by a label that could be missing or belong to another."""
    field = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    # Terms are alternatives: each of the template's own has to be held to this node.
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), field]} for term in terms
    ]
