"""Where in the cluster what is ours lives, and under which name we speak."""

from __future__ import annotations

NAMESPACE, BUDGET_NAMESPACE = "gpu-healthcheck", "gpu-healthcheck-budget"
COMPONENT = "gpu-healthcheck"
AGENT = "gpu-healthcheck-agent"
"""Its DaemonSet."""
