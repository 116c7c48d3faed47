"""Apply our manifests to a control plane, and wait until its RBAC and admission policies are active."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_healthcheck.sim.cluster_objects import DEVICE_TAINT_RULES, NAMESPACE
from gpu_healthcheck.sim.control_plane.build import ControlPlaneError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_healthcheck.sim.control_plane.plane import ControlPlane

MANIFESTS = Path(__file__).resolve().parents[2] / "kubernetes" / "manifests"
DEVICE_TAINTS = MANIFESTS.parent / "overlays" / "device-taints"
ACTING_SECONDS = 300
Probe = tuple[str, str, str, dict[str, Any], str]
"""Token, method, path and body of a request, and the message of its rejection."""

_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_EVENTS = "/api/v1/namespaces/default/events"
_PROBE = {"name": "policy-probe"}
_UNBOUND = "bound to no node"
_ABOUT = {"kind": "Node", "name": "nobody"}


def install(plane: ControlPlane, manifests: Path = MANIFESTS) -> str:
    """Return kubectl's output. The API server applies roles and policies a moment after it stored them."""
    printed = plane.kubectl("apply", "-f", str(manifests))
    accounts = (f"{NAMESPACE}{suffix}" for suffix in ("", "-sweeper", "-sweep", "-quarantine"))
    agent, sweeper, sweep, quarantine = (unbound_token(plane, account) for account in accounts)
    plane.request("POST", "/api/v1/nodes", {"metadata": _PROBE})
    node, marked = "/api/v1/nodes/policy-probe?dryRun=All", {"metadata": {"labels": {"probe": "true"}}}
    probes: list[Probe] = [
        (agent, "PATCH", node, marked, _UNBOUND),
        (agent, "POST", f"{_LEASES}?dryRun=All", {"metadata": _PROBE}, _UNBOUND),
        (agent, "POST", f"{_EVENTS}?dryRun=All", {"metadata": _PROBE, "involvedObject": _ABOUT}, _UNBOUND),
        (sweeper, "PATCH", node, marked, "may change no label"),
        (sweep, "PATCH", node, marked, _UNBOUND),
        (quarantine, "PATCH", node, marked, _UNBOUND),
    ]
    _wait_for_refusals(plane, probes)
    plane.request("DELETE", "/api/v1/nodes/policy-probe")
    return printed


def install_device_taints(plane: ControlPlane) -> None:
    """Grant an agent the taints of its own node's GPUs, and wait until that is effective."""
    plane.kubectl("apply", "-k", str(DEVICE_TAINTS))
    taint = {"key": "example.com/probe", "effect": "None"}
    rule = {"metadata": _PROBE, "spec": {"deviceSelector": {"driver": "example.com"}, "taint": taint}}
    agent = unbound_token(plane)
    _wait_for_refusals(plane, [(agent, "POST", f"{DEVICE_TAINT_RULES}?dryRun=All", rule, _UNBOUND)])


def _wait_for_refusals(plane: ControlPlane, probes: Iterable[Probe]) -> None:
    deadline = time.monotonic() + ACTING_SECONDS
    for token, method, path, body, refusal in probes:
        while refusal not in (answer := plane.request(method, path, body, token=token)).message:
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"no policy rejected {method} {path}: {answer.status} {answer.message}")
            time.sleep(0.1)


def unbound_token(plane: ControlPlane, account: str = NAMESPACE) -> str:
    """Return a token of our account that is bound to no pod, as from `kubectl create token`."""
    return plane.kubectl("create", "token", account, f"--namespace={NAMESPACE}").strip()
