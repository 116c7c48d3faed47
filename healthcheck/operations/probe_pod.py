"""Pod that checks one node once, built from the pods of the agent's DaemonSet. Pure functions, no I/O.

It is bound to its node by name, so no scheduler, taint or cordon keeps it away. It requests no resources. It omits the
agent's settings for a long-running process, its service account, and volumes that would be created on the node.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gpu_healthcheck.healthcheck.deep.job import COMPONENT_LABEL, TESTED_NODE, TemplateError, short_name
from gpu_healthcheck.healthcheck.text.moments import moment

COMPONENT = "probe"
LABELS = {"app.kubernetes.io/name": "gpu-healthcheck", COMPONENT_LABEL: COMPONENT}
"""Labels of the pod. With the agent's component label, the agent's DaemonSet would adopt the pod."""
SELECTOR = ",".join(f"{key}={value}" for key, value in LABELS.items())
LONGEST_SECONDS = 300
"""Deadline after which the kubelet ends the pod. A check takes seconds; the image may have to be pulled first."""
_GRACE_SECONDS = 5
_KEPT_OF_POD = ("hostNetwork", "hostPID", "dnsPolicy", "dnsConfig", "imagePullSecrets", "securityContext")
_KEPT_OF_CONTAINER = ("image", "imagePullPolicy", "env", "terminationMessagePath", "securityContext")
_LIMITS = ("cpu", "memory", "ephemeral-storage")


def probe_pod(template: Mapping[str, Any], node: tuple[str, str], namespace: str, unique: str) -> dict[str, Any]:
    """Return the pod for the node with this name and UID, which owns the pod. Raises TemplateError."""
    name, uid = node
    spec = template.get("spec") or {}
    volumes = [kept for entry in spec.get("volumes") or () if (kept := _kept(entry))]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": short_name("gpu-probe", name, f"{name} {unique}"),
            "namespace": namespace,
            "labels": LABELS,
            "annotations": {TESTED_NODE: name},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}],
        },
        "spec": {
            **_copied(spec, _KEPT_OF_POD),
            "nodeName": name,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LONGEST_SECONDS,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [_container(spec, {volume["name"] for volume in volumes})],
            "volumes": volumes,
        },
    }


def with_image(template: Mapping[str, Any], image: str) -> dict[str, Any]:
    """Return the pod with another image. Raises TemplateError."""
    changed = copy.deepcopy(dict(template))
    _first(changed.get("spec") or {})["image"] = image
    return changed


def is_left_over(pod: Mapping[str, Any], now: datetime) -> bool:
    """Whether the pod is so old that no command still waits for its output.

    A younger pod may still be read by another command.
    """
    try:
        made = moment(pod["metadata"]["creationTimestamp"])
    except (KeyError, ValueError, TypeError):
        return False
    return now - made > timedelta(seconds=2 * LONGEST_SECONDS)


def _container(spec: Mapping[str, Any], volumes: set[str]) -> dict[str, Any]:
    agent = _first(spec)
    limits = (agent.get("resources") or {}).get("limits") or {}
    return {
        "name": COMPONENT,
        **_copied(agent, _KEPT_OF_CONTAINER),
        "command": ["gpu-healthcheck", "check", "--json"],
        # No requests: the kubelet of a full node would reject the pod. Limits alone would count as requests.
        "resources": {
            "requests": {key: "0" for key in limits if key in _LIMITS},
            "limits": {key: value for key, value in limits.items() if key in _LIMITS},
        },
        "volumeMounts": [entry for entry in agent.get("volumeMounts") or () if entry.get("name") in volumes],
    }


def _first(spec: Mapping[str, Any]) -> dict[str, Any]:
    try:
        container = spec["containers"][0]
    except (KeyError, TypeError, IndexError):
        raise TemplateError("the agent's pods have no container") from None
    if not isinstance(container, dict):
        raise TemplateError("the agent's pods have no container")
    return container


def _copied(source: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: copy.deepcopy(source[key]) for key in keys if key in source}


def _kept(volume: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the volume if it can be kept, else None.

    Host paths are kept only if they need not be created. The pod never waits for a volume.
    """
    if "hostPath" in volume:
        return None if str(volume["hostPath"].get("type", "")).endswith("OrCreate") else dict(volume)
    if "configMap" in volume:
        return {**volume, "configMap": {**volume["configMap"], "optional": True}}
    return dict(volume) if "emptyDir" in volume else None
