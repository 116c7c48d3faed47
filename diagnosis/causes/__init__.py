"""List of all causes of a diagnosis: one family per file, in the order a workload meets them."""

from __future__ import annotations

from gpu_healthcheck.diagnosis.causes import (
    admission,
    components,
    compute_domains,
    copied_logs,
    crashing,
    device_plugins,
    efa_devices,
    efa_jobs,
    ended_jobs,
    faulty_gpus,
    idle_gpus,
    node_labels,
    nodes,
    other_monitors,
    pod_startup,
    rejected,
    running,
    runtime_handlers,
    stalled_jobs,
    unscheduled,
    upkeep,
    verdicts,
)
from gpu_healthcheck.diagnosis.causes.hami import allocating, control_plane, filtering, hami_nodes, scheduling, webhook
from gpu_healthcheck.diagnosis.facts.components import Role
from gpu_healthcheck.diagnosis.model import Cause, Search

_HAMI_FAMILIES = (webhook, control_plane, hami_nodes, filtering, scheduling, allocating)
_FAMILIES = (
    *(admission, unscheduled, rejected, runtime_handlers, pod_startup, compute_domains, crashing, faulty_gpus),
    *(running, idle_gpus, stalled_jobs),
    *(nodes, components, device_plugins),
    *_HAMI_FAMILIES,
    *(node_labels, upkeep, other_monitors, efa_devices, efa_jobs, verdicts, copied_logs),
)
"""In the order in which a workload meets them."""
SEARCHES: tuple[Search, ...] = tuple(search for family in _FAMILIES for search in family.SEARCHES)
OF_WORKLOADS = (*SEARCHES, *ended_jobs.SEARCHES)
"""Searches about a workload or pod: that an old Job has ended is no problem of a whole cluster."""
HAMI_CAUSES = frozenset(
    (
        *(cause for family in _HAMI_FAMILIES for search in family.SEARCHES for cause in search.causes),
        *(components.NOT_READY[role] for role in (Role.HAMI_SCHEDULER, Role.HAMI_PLUGIN)),
    )
)
"""Causes of HAMi: its parts, its cards, and its pods."""
CAUSES: tuple[Cause, ...] = tuple(dict.fromkeys(cause for search in OF_WORKLOADS for cause in search.causes))
