"""A cluster with HAMi, as its chart makes it."""

from __future__ import annotations

import json
from typing import Any

from tests.diagnosis.states import Object, ago, condition, container, node, obj, pod

NAMESPACE = "kube-system"
SCHEDULER, PLUGIN, LABEL = "hami-scheduler", "hami-device-plugin", "app.kubernetes.io/component"
LEADER = {"hami.io/scheduler-role": "leader"}
GIB_24, GIB_80 = 24576, 81920


def card(uuid: str, memory: int = GIB_24, **changes: Any) -> Object:
    """Return a card as a plugin since 2.8 registers it."""
    fields = {"id": uuid, "count": 10, "devmem": memory, "devcore": 100, "type": "NVIDIA A10", "mode": "hami-core"}
    return fields | {"health": True} | changes


def hami_node(name: str, *cards: Object, **changes: Any) -> Object:
    """Return a node with these cards, or two of 24 GiB. `register`: the annotation as it is; `offers`: slots."""
    own = cards or (card(f"GPU-{name}-0"), card(f"GPU-{name}-1", index=1))
    register = changes.pop("register", json.dumps(own))
    offers = changes.pop("offers", sum(entry.get("count", 0) for entry in own))
    annotations = {"hami.io/node-nvidia-register": register, "hami.io/node-handshake": "Requesting_2026-11-01 10:08:42"}
    annotations = {
        key: entry for key, entry in (annotations | changes.pop("annotations", {})).items() if entry is not None
    }
    labels = {"gpu": "on", "nvidia.com/gpu.count": str(len(own))} | changes.pop("labels", {})
    return node(name, offers, annotations=annotations, labels=labels, **changes)


def text_card(uuid: str, memory: int = GIB_24) -> str:
    """Return a card as a plugin up to 2.7 registers it."""
    return f"{uuid},10,{memory},100,NVIDIA-NVIDIA A10,0,true:"


def hami(*nodes: Object, **changes: Any) -> list[Object]:
    """Return HAMi in working order on the nodes.

    `ready`: its scheduler is; `webhook`: changes of its entry, or None for no webhook; `addresses` behind its Service;
    `leads`: its scheduler pod has the leader's label.
    """
    namespace, release = changes.get("namespace", NAMESPACE), changes.get("release", "hami")
    version, ready = changes.get("version", "v2.9.0"), changes.get("ready", True)
    plugin_version = changes.get("plugin_version", version)
    scheduler = deployment(release, namespace, version, ready=ready)
    own = scheduler_pod(release, namespace, version, ready=ready, leads=changes.get("leads", True))
    plugins = [plugin_pod(node["metadata"]["name"], release, namespace, plugin_version) for node in nodes]
    webhook = changes.get("webhook", {})
    hooks = [] if webhook is None else [configuration(release, namespace, **webhook)]
    addresses = changes.get("addresses", int(ready))
    return [
        obj("Namespace", namespace, metadata={"labels": {"kubernetes.io/metadata.name": namespace}}),
        obj("Namespace", "team", metadata={"labels": {"kubernetes.io/metadata.name": "team"}}),
        *nodes,
        scheduler,
        own,
        daemon_set(release, namespace, plugin_version, len(nodes)),
        *plugins,
        *hooks,
        endpoints(release, namespace, addresses),
    ]


def deployment(release: str, namespace: str, version: str, *, ready: bool = True) -> Object:
    labels = {LABEL: SCHEDULER, "app.kubernetes.io/instance": release}
    template = {"metadata": {"labels": labels}, "spec": {"containers": _containers(version)}}
    status = {"replicas": 1, "readyReplicas": int(ready)}
    spec = {"replicas": 1, "template": template}
    return obj("Deployment", f"{release}-scheduler", namespace, metadata={"labels": labels}, spec=spec, status=status)


def scheduler_pod(release: str, namespace: str, version: str, *, ready: bool = True, leads: bool = True) -> Object:
    crash: Object = {"name": "vgpu-scheduler-extender", "ready": False, "restartCount": 9}
    crash["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    crash["lastState"] = {"terminated": {"exitCode": 2, "reason": "Error", "finishedAt": ago(2)}}
    return pod(
        f"{release}-scheduler-5d8c7b-x2x9z",
        0,
        on="control",
        namespace=namespace,
        labels={LABEL: SCHEDULER} | (LEADER if leads and ready else {}),
        owner=("ReplicaSet", f"{release}-scheduler-5d8c7b"),
        containers=_containers(version),
        age=600,
        **({} if ready else {"states": [crash]}),
    )


def daemon_set(release: str, namespace: str, version: str, wanted: int) -> Object:
    labels = {LABEL: PLUGIN, "app.kubernetes.io/instance": release}
    spec = {"nodeSelector": {"gpu": "on"}, "containers": _plugin_containers(version)}
    template = {"metadata": {"labels": labels}, "spec": spec}
    numbers = {"desiredNumberScheduled": wanted, "currentNumberScheduled": wanted, "numberReady": wanted}
    name = f"{release}-device-plugin"
    return obj("DaemonSet", name, namespace, metadata={"labels": labels}, spec={"template": template}, status=numbers)


def plugin_pod(
    on: str, release: str = "hami", namespace: str = NAMESPACE, version: str = "v2.9.0", **more: Any
) -> Object:
    fields: dict[str, Any] = {
        "namespace": namespace,
        "labels": {LABEL: PLUGIN},
        "owner": ("DaemonSet", f"{release}-device-plugin"),
        "containers": _plugin_containers(version),
        "age": 600,
    }
    return pod(f"{release}-device-plugin-{on}", 0, on=on, **(fields | more))


def configuration(release: str = "hami", namespace: str = NAMESPACE, **changes: Any) -> Object:
    age = changes.pop("age", 600)
    service = {"namespace": namespace, "name": f"{release}-scheduler", "path": "/webhook", "port": 443}
    hook: Object = {
        "name": "vgpu.hami.io",
        "clientConfig": {"service": service, "caBundle": changes.pop("ca", "(set)")},
        "failurePolicy": "Ignore",
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {
            "matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]
        },
        "objectSelector": {"matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]},
    }
    return obj("MutatingWebhookConfiguration", f"{release}-webhook", age=age, webhooks=[hook | changes])


def endpoints(release: str, namespace: str, addresses: int) -> Object:
    return obj(
        "EndpointSlice",
        f"{release}-scheduler-abcde",
        namespace,
        metadata={"labels": {"kubernetes.io/service-name": f"{release}-scheduler"}},
        endpoints=[{"addresses": ["10.0.0.9"], "conditions": {"ready": True}}] * addresses,
    )


def asking(gpus: int = 1, memory: int = 0, cores: int = 0, name: str = "main", **changes: Any) -> Object:
    """Return a container that requests shares."""
    shares = {"nvidia.com/gpumem": memory, "nvidia.com/gpucores": cores}
    return container(name, gpus, resources={key: str(number) for key, number in shares.items() if number}, **changes)


def vgpu_pod(name: str, *containers: Object, on: str = "", given: str = "", **changes: Any) -> Object:
    """Return a pod that HAMi's webhook has changed. On a node it has 1 GiB of the first card, or the shares `given`."""
    annotations = changes.pop("annotations", {})
    if on:
        given = given or f"GPU-{on}-0,NVIDIA,1024,10:;"
        annotations = {
            "hami.io/vgpu-node": on,
            "hami.io/vgpu-time": "1795348800",
            "hami.io/vgpu-devices-allocated": given,
            "hami.io/vgpu-devices-to-allocate": ";",
            "hami.io/bind-phase": "success",
            "hami.io/bind-time": "1795348800",
        } | annotations
    spec = {"schedulerName": "hami-scheduler"} | changes.pop("spec", {})
    return pod(
        name, 0, on=on, containers=list(containers or (asking(1, 1024),)), annotations=annotations, spec=spec, **changes
    )


def unplaced(name: str, message: str, *containers: Object, reason: str = "Unschedulable", **changes: Any) -> Object:
    """Return a pod that a scheduler refuses with this message."""
    conditions = [condition("PodScheduled", "False", reason, message, minutes=30)]
    return vgpu_pod(name, *containers, conditions=conditions, **changes)


def _containers(version: str) -> list[Object]:
    return [
        {"name": "kube-scheduler", "image": "registry.k8s.io/kube-scheduler:v1.33.4"},
        {"name": "vgpu-scheduler-extender", "image": f"projecthami/hami:{version}"},
    ]


def _plugin_containers(version: str) -> list[Object]:
    image = f"projecthami/hami:{version}"
    return [{"name": "device-plugin", "image": image}, {"name": "vgpu-monitor", "image": image}]
