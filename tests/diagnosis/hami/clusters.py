"""Clusters with HAMi built by hand: nodes with registered cards, pods with requests and allocations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpu_healthcheck.diagnosis.hami.fit import NodeVerdict, verdicts
from gpu_healthcheck.diagnosis.hami.installation import Installation, installation_of, settings_of
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from tests.diagnosis.states import GPU, Object, container, node, obj, pod

MEMORY, PERCENTAGE, CORES = "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"


def card(number: int, /, **changes: Any) -> Object:
    """Return a V100 for ten pods, as HAMi 2.10 registers it."""
    plain = {"id": f"GPU-{number}", "index": number, "count": 10, "devmem": 32768, "devcore": 100}
    return plain | {"type": "NVIDIA-Tesla V100", "mode": "hami-core", "health": True} | changes


def shared(name: str, *cards: Object, text: str | None = None, **changes: Any) -> Object:
    """Return a node with cards that HAMi shares. `text`: the registration, instead of the JSON of these."""
    register = (
        json.dumps([{key: entry for key, entry in each.items() if entry} for each in cards]) if text is None else text
    )
    annotations = {"hami.io/node-nvidia-register": register} | changes.pop("annotations", {})
    return node(name, 10 * len(cards) or 10, annotations=annotations, **changes)


def asking(name: str, /, cards: int = 1, **changes: Any) -> Object:
    """Return a pod that waits for HAMi. `memory`, `percentage`, `cores`: of each card; other changes as in `pod`."""
    amounts: dict[str, str] = {GPU: str(cards)} if cards else {}
    for resource, key in ((MEMORY, "memory"), (PERCENTAGE, "percentage"), (CORES, "cores")):
        if key in changes:
            amounts[resource] = str(changes.pop(key))
    return pod(name, containers=[container(resources=amounts)], **changes)


def given(name: str, on: str, shares: str, **changes: Any) -> Object:
    """Return a running pod with these shares, in the form of HAMi's annotation."""
    annotations = {"hami.io/vgpu-node": on, "hami.io/vgpu-devices-allocated": shares} | changes.pop("annotations", {})
    return pod(name, 1, on=on, metadata={"annotations": annotations}, **changes)


def scheduler(version: str = "v2.10.0") -> Object:
    """Return the scheduler's Deployment with its extender."""
    images = {"kube-scheduler": "registry.k8s.io/kube-scheduler:v1.33.4", "vgpu-scheduler-extender": f"hami:{version}"}
    containers = [{"name": name, "image": image} for name, image in images.items()]
    template = {"metadata": {"labels": {"app.kubernetes.io/component": "hami-scheduler"}}}
    spec = {"replicas": 1, "template": template | {"spec": {"containers": containers}}}
    return obj("Deployment", "hami-scheduler", "kube-system", spec=spec, status={"readyReplicas": 1})


def device_config(text: str, namespace: str = "kube-system") -> Object:
    return obj("ConfigMap", "hami-scheduler-device", namespace, data={"device-config.yaml": text})


def quota(**hard: str) -> Object:
    limits = {f"limits.nvidia.com/{name}": value for name, value in hard.items()}
    return obj("ResourceQuota", "q", "team", spec={"hard": limits})


def verdicts_by_node(state: Snapshot, name: str) -> Mapping[str, NodeVerdict]:
    """Return the verdict on each node for the pod of that name."""
    pod = next(pod for pod in state.pods if pod.meta.name == name)
    installation = installation_of(state, pod) or Installation("", "", settings=settings_of(state))
    return {node.name: verdict for node, verdict in verdicts(state, installation, pod)}
