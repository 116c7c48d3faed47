"""A stand-in of the API and the command line on it, as a person types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client import ApiClient

from sim.api_stand_in import ApiStandIn

P = "gpu-healthcheck.aws-samples.io"
SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
Json = dict[str, Any]


def client(kubeconfig: Path) -> ApiClient:
    made: ApiClient = config.new_client_from_config(config_file=str(kubeconfig))
    return made


def run(kubeconfig: Path, *words: str, says: str = "", columns: int = 200) -> subprocess.CompletedProcess[str]:
    """`gpu-healthcheck WORDS`; `says`: what is typed then."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "cli", *words]
    return subprocess.run(command, env=environment, input=says, capture_output=True, text=True, check=False)


def mark(api: ApiStandIn, name: str, **keys: str) -> None:
    """Annotations of ours: `cordoned_by` for `cordoned-by`."""
    api.edit_node(
        name, {"metadata": {"annotations": {f"{P}/{key.replace('_', '-')}": value for key, value in keys.items()}}}
    )


def cordon(api: ApiStandIn, name: str, by: str = "", manager: str = "gpu-healthcheck") -> None:
    """As `manager` would do it, and what the API server notes of that."""
    fields: Json = {"f:spec": {"f:unschedulable": {}}, "f:metadata": {"f:annotations": {f"f:{P}/cordoned-by": {}}}}
    noted = {"manager": manager, "operation": "Update", "fieldsV1": fields}
    metadata: Json = {"managedFields": [noted], "annotations": {f"{P}/cordoned-by": by or None}}
    api.edit_node(name, {"metadata": metadata, "spec": {"unschedulable": True}})
