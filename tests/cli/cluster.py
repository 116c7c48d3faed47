"""A stand-in of the API, and the command line on it as a person types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client import ApiClient

from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.console import typed

P = "gpu-healthcheck.aws-samples.io"
ROOT = Path(__file__).parents[2]
SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
Json = dict[str, Any]


def client(kubeconfig: Path) -> ApiClient:
    made: ApiClient = config.new_client_from_config(config_file=str(kubeconfig))
    return made


def run(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `gpu-healthcheck WORDS` as a process: threads of the second tier share this process's environment."""
    command = [sys.executable, "-m", "cli", *words]
    return subprocess.run(
        command, env=_environment(kubeconfig), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def run_here(kubeconfig: Path, *words: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    """The same in this process; the answers are typed then."""
    done = typed(words, _environment(kubeconfig), answers)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def start(kubeconfig: Path, *words: str, module: str = "cli", **variables: str) -> subprocess.Popen[str]:
    """Start `gpu-healthcheck WORDS` as a process of this module, with few variables."""
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kubeconfig),
        "COLUMNS": "200",
        "TZ": "UTC",
        **variables,
    }
    command = [sys.executable, "-m", module, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def _environment(kubeconfig: Path) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}


def mark(api: ApiStandIn, name: str, **keys: str) -> None:
    """Annotations of ours: `cordoned_by` for `cordoned-by`."""
    api.edit_node(
        name, {"metadata": {"annotations": {f"{P}/{key.replace('_', '-')}": value for key, value in keys.items()}}}
    )


def cordon(api: ApiStandIn, name: str, by: str = "", manager: str = "gpu-healthcheck") -> None:
    """Cordon as `manager` does, with the API server's record of it."""
    fields: Json = {"f:spec": {"f:unschedulable": {}}, "f:metadata": {"f:annotations": {f"f:{P}/cordoned-by": {}}}}
    noted = {"manager": manager, "operation": "Update", "fieldsV1": fields}
    metadata: Json = {"managedFields": [noted], "annotations": {f"{P}/cordoned-by": by or None}}
    api.edit_node(name, {"metadata": metadata, "spec": {"unschedulable": True}})
