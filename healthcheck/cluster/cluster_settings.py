"""Cluster-wide settings: this project's ConfigMap, and the RuntimeClasses."""

from __future__ import annotations

from itertools import islice

from healthcheck.cluster.connection import Requests
from healthcheck.cluster.names import NAMESPACE
from healthcheck.node.state import SelectiveClass

CONFIG_MAP = "gpu-healthcheck-config"
_MOST_CLASSES = 1000


class ClusterSettings(Requests):
    """Reads the ConfigMap of this project and the RuntimeClasses of the cluster."""

    def read_config(self) -> dict[str, str]:
        """Return the keys and values of the ConfigMap that the agents read."""
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}"
        return self._json("get", path, "configmaps").get("data") or {}

    def list_runtime_classes(self) -> list[SelectiveClass]:
        """Return all RuntimeClasses, read in pages.

        A cluster has only a few; beyond 1,000 the rest is left out.
        """
        classes = self._pages("/apis/node.k8s.io/v1/runtimeclasses", "runtimeclasses", {})
        return [
            SelectiveClass(
                runtime_class["metadata"]["name"],
                runtime_class["handler"],
                (runtime_class.get("scheduling") or {}).get("nodeSelector") or {},
            )
            for runtime_class in islice(classes, _MOST_CLASSES)
        ]
