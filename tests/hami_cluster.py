"""HAMi's objects as its chart creates them: a Node's registration, the webhook, the Deployment of the scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]
NAMESPACE, SCHEDULER = "kube-system", "hami-scheduler"


def registration(uuids: Iterable[str]) -> str:
    cards = [
        {"id": uuid, "index": index, "count": 10, "devmem": 81559, "devcore": 100, "mode": "hami-core", "health": True}
        for index, uuid in enumerate(uuids)
    ]
    return json.dumps(cards)


def webhook() -> Json:
    service = {"namespace": NAMESPACE, "name": SCHEDULER, "path": "/webhook", "port": 443}
    entry = {
        "name": "vgpu.hami.io",
        "clientConfig": {"service": service},
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        # No pod of a test has the label.
        "objectSelector": {"matchLabels": {"hami.io/no-test": "true"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    return {"metadata": {"name": "hami-webhook"}, "webhooks": [entry]}


def deployment(version: str = "v2.10.0") -> Json:
    labels = {"app.kubernetes.io/component": "hami-scheduler"}
    containers = [
        {"name": "kube-scheduler", "image": "registry.k8s.io/kube-scheduler:v1.37.2"},
        {"name": "vgpu-scheduler-extender", "image": f"docker.io/projecthami/hami:{version}"},
    ]
    return {
        "metadata": {"name": SCHEDULER, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
        "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1},
    }
