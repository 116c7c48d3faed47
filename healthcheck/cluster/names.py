"""Names of this project in the cluster: namespaces, component, DaemonSet and admission policies."""

from __future__ import annotations

NAMESPACE, BUDGET_NAMESPACE = "gpu-healthcheck", "gpu-healthcheck-budget"
COMPONENT = "gpu-healthcheck"
AGENT = "gpu-healthcheck-agent"
"""DaemonSet of the agent."""
EVICT = "gpu-healthcheck-evict"
"""Deployment and account of evict."""
POLICIES = tuple(
    f"{COMPONENT}-{name}"
    for name in (
        "agent-nodes",
        "agent-leases",
        "agent-events",
        "sweeper-nodes",
        "sweep-nodes",
        "sweeper-jobs",
        "sweeper-deletions",
        "sweeper-leases",
        "quarantine-nodes",
        "reset-nodes",
        "reset-automation-jobs",
        "device-taints",
        "evict-nodes",
        "evict-pods",
        "evict-events",
    )
)
"""Admission policies that restrict our service accounts (docs/security.md)."""
