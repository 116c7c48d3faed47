"""Our manifests onto a control plane, and the wait until its RBAC and admission policies act on them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.control_plane.build import ControlPlaneError
from sim.control_plane.objects import NAMESPACE

if TYPE_CHECKING:
    from sim.control_plane.plane import ControlPlane

MANIFESTS = Path(__file__).parents[2] / "kubernetes" / "manifests"
ACTING_SECONDS = 30

_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_EVENTS = "/api/v1/namespaces/default/events"
_ABOUT = {"kind": "Node", "name": "nobody"}


def install(plane: ControlPlane, manifests: Path = MANIFESTS) -> str:
    """What kubectl printed. The API server learns of roles and policies a moment after it took them."""
    printed = plane.kubectl("apply", "-f", str(manifests))
    token = unbound_token(plane)
    plane.request("POST", "/api/v1/nodes", {"metadata": {"name": "policy-probe"}})
    probes: list[tuple[str, str, dict[str, Any]]] = [
        ("PATCH", "/api/v1/nodes/policy-probe?dryRun=All", {"metadata": {"labels": {"probe": "true"}}}),
        ("POST", f"{_LEASES}?dryRun=All", {"metadata": {"name": "policy-probe"}}),
        ("POST", f"{_EVENTS}?dryRun=All", {"metadata": {"name": "policy-probe"}, "involvedObject": _ABOUT}),
    ]
    deadline = time.monotonic() + ACTING_SECONDS
    for method, path, body in probes:
        while "bound to no node" not in (said := plane.request(method, path, body, token=token)).message:
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"no policy refused {method} {path}: {said.status} {said.message}")
            time.sleep(0.1)
    plane.request("DELETE", "/api/v1/nodes/policy-probe")
    return printed


def unbound_token(plane: ControlPlane) -> str:
    """A token of the agent's account that no kubelet handed out, as `kubectl create token` makes it."""
    return plane.kubectl("create", "token", NAMESPACE, f"--namespace={NAMESPACE}").strip()
