"""Cluster states built by hand, in the shape in which `kubectl get … -o json` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpu_healthcheck.diagnosis.causes.diagnose import Diagnosis, Problem, diagnose
from gpu_healthcheck.diagnosis.snapshot import KINDS, Builder, Snapshot
from gpu_healthcheck.healthcheck.node.state import RESULTS
from gpu_healthcheck.healthcheck.text.moments import timestamp
from tests.diagnosis.one_pod_looks import agree

Object = dict[str, Any]
NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def messages(table: str) -> list[list[str]]:
    """Reason of the event or state, cause, object to change and message of each row of `messages.tsv` in this table."""
    rows = (line.split("\t") for line in (Path(__file__).parent / "messages.tsv").read_text().splitlines())
    return [row[1:] for row in rows if row[0] == table]


def ago(minutes: float) -> str:
    """A time so long before the state was looked at."""
    return timestamp(NOW - timedelta(minutes=minutes))


def obj(kind: str, name: str, namespace: str = "", *, age: float = 600, **parts: Any) -> Object:
    """Any object. `metadata` among the parts is put to its own; `age` in minutes."""
    metadata: Object = {"name": name, "uid": f"{kind}-{namespace}-{name}".lower(), "creationTimestamp": ago(age)}
    if namespace:
        metadata["namespace"] = namespace
    metadata.update(parts.pop("metadata", {}))
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **parts}


def node(name: str, gpus: int | None = 8, /, **changes: Any) -> Object:
    """A ready node of containerd 2 with so many GPUs; None: it has never had any.

    `labels`, `annotations`, `taints`, `cordoned`, `allocatable` and `capacity` (both added to the default), `handlers`
    (None: the kubelet does not report them), `runtime`, `kubelet`, `system`, `conditions`, `ready`.
    """
    plain = {"cpu": "96", "memory": "1000Gi", "pods": "110", "ephemeral-storage": "500Gi"}
    offered = plain | ({} if gpus is None else {GPU: str(gpus)})
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    if gpus is not None:
        labels |= {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": str(gpus)}
    spec: Object = {"taints": changes.get("taints", [])}
    if changes.get("cordoned"):
        spec["unschedulable"] = True
        spec["taints"] = [*spec["taints"], {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    status: Object = {
        "capacity": offered | changes.get("capacity", {}),
        "allocatable": offered | changes.get("allocatable", {}),
        "conditions": [
            condition("Ready", changes.get("ready", "True"), "KubeletReady"),
            *changes.get("conditions", []),
        ],
        "nodeInfo": {
            "containerRuntimeVersion": changes.get("runtime", "containerd://2.1.4"),
            "kubeletVersion": changes.get("kubelet", "v1.33.4"),
            "osImage": changes.get("system", "Ubuntu 24.04.3 LTS"),
        },
    }
    handlers = changes.get("handlers", ("", "runc", "nvidia"))
    if handlers is not None:
        status["runtimeHandlers"] = [{"name": handler} for handler in handlers]
    metadata = {"labels": labels | changes.get("labels", {}), "annotations": changes.get("annotations", {})}
    metadata |= changes.get("metadata", {})
    return obj("Node", name, age=changes.get("age", 600), metadata=metadata, spec=spec, status=status)


def condition(kind: str, status: str, reason: str = "", message: str = "", *, minutes: float = 300) -> Object:
    """A condition that has been so for so long."""
    fields = {"type": kind, "status": status, "reason": reason, "message": message}
    return {key: text for key, text in fields.items() if text} | {"lastTransitionTime": ago(minutes)}


def recorded(*findings: str | Object, **changes: Any) -> dict[str, str]:
    """The annotation of our agent: these findings, or MONITOR findings of these reasons. `changes` of the record."""
    plain = {"severity": "MONITOR", "subject": "runtime/containerd", "detail": changes.pop("detail", "")}
    rows = [{"reason": each, **plain} if isinstance(each, str) else each for each in findings]
    record = {"schema": 1, "timestamp": ago(2), "status": "warn", "severity": "MONITOR", "findings": rows}
    return {RESULTS: json.dumps(record | changes)}


def container(name: str = "main", gpus: int | str = 0, /, **changes: Any) -> Object:
    """With so many GPUs as both request and limit. `resources` are added to both; other parts stand as given."""
    amounts = ({GPU: str(gpus)} if gpus else {}) | changes.pop("resources", {})
    resources = {"requests": dict(amounts), "limits": dict(amounts)}
    return {"name": name, "image": "registry.example/train:1", "resources": resources} | changes


def pod(name: str, gpus: int = 1, /, *, on: str = "", **changes: Any) -> Object:
    """In the namespace `team`, with one container of so many GPUs.

    Without a node it waits for a scheduler, on one it runs, unless `phase`, `conditions` or `states` (of its
    containers, as in `containerStatuses`) say otherwise. `spec` and `status` are added; `owner` is (kind, name).
    """
    namespace, age = changes.get("namespace", "team"), changes.get("age", 60)
    containers = changes.get("containers", [container("main", gpus)])
    spec: Object = {"containers": containers, "schedulerName": "default-scheduler"} | changes.get("spec", {})
    if on:
        spec["nodeName"] = on
    phase = changes.get("phase", "Running" if on else "Pending")
    conditions = changes.get("conditions", [condition("PodScheduled", "True", minutes=age)] if on else [])
    states = changes.get("states", [_running(entry["name"], age) for entry in containers] if phase == "Running" else [])
    status: Object = {"phase": phase, "conditions": conditions, "containerStatuses": states}
    metadata: Object = {"labels": changes.get("labels", {}), "annotations": changes.get("annotations", {})}
    if "owner" in changes:
        kind, owner = changes["owner"]
        uid = f"{kind}-{namespace}-{owner}".lower()
        metadata["ownerReferences"] = [{"kind": kind, "name": owner, "uid": uid, "controller": True}]
    metadata |= changes.get("metadata", {})
    return obj("Pod", name, namespace, age=age, metadata=metadata, spec=spec, status=status | changes.get("status", {}))


def waiting(reason: str, message: str = "", name: str = "main", **more: Any) -> Object:
    """The state of a container that waits, for `states` of a pod."""
    fields = {"reason": reason} | ({"message": message} if message else {})
    return {"name": name, "ready": False, "restartCount": 0, "state": {"waiting": fields}, **more}


def terminated(code: int, reason: str = "Error", message: str = "", *, minutes: float = 2) -> Object:
    """Return the end of a container, the value of `terminated`."""
    fields: Object = {"exitCode": code, "reason": reason, "finishedAt": ago(minutes)}
    return fields | ({"message": message} if message else {})


def event(about: Object, reason: str, message: str, /, **changes: Any) -> Object:
    """About an object. `minutes` since the last one, `count`, `warning` (by default it is), `by`."""
    meta, minutes = about["metadata"], changes.get("minutes", 1)
    involved = {"kind": about["kind"], "name": meta["name"], "uid": changes.get("uid", meta["uid"])}
    if "namespace" in meta:
        involved["namespace"] = meta["namespace"]
    text = f"{meta['name']}.{reason}.{abs(hash(message)):x}".lower()
    return obj(
        "Event",
        text,
        meta.get("namespace", "default"),
        age=minutes,
        involvedObject=involved,
        reason=reason,
        message=message,
        type="Warning" if changes.get("warning", True) else "Normal",
        count=changes.get("count", 1),
        firstTimestamp=ago(minutes),
        lastTimestamp=ago(minutes),
        source={"component": changes.get("by", "kubelet")},
    )


def snapshot(
    *objects: Object, missing: Sequence[str] = (), logs: Mapping[tuple[str, str], str] | None = None
) -> Snapshot:
    """All kinds are listed but the missing ones."""
    builder = Builder()
    for kind in KINDS:
        if kind in missing:
            builder.lacks(kind, "forbidden")
        else:
            builder.listed(kind)
    for entry in objects:
        builder.add(entry["kind"], entry)
    return builder.build(NOW, logs=logs)


def judged(*objects: Object, **more: Any) -> Diagnosis:
    """Diagnose with all searches; the diagnosis of each single pod must agree."""
    whole = snapshot(*objects, **more)
    agree(objects, whole)
    return diagnose(whole)


def results(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """The causes that stand by themselves, each with its subject."""
    return [(problem.found.cause.name, problem.found.subject) for problem in diagnosis.problems]


def consequences(problem: Problem) -> list[tuple[str, str]]:
    return [(consequence.found.cause.name, consequence.found.subject) for consequence in problem.consequences]


def _running(name: str, minutes: float) -> Object:
    return {"name": name, "ready": True, "restartCount": 0, "state": {"running": {"startedAt": ago(minutes)}}}
