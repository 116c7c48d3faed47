"""List of all causes of a diagnosis: one family per file, in the order a workload meets them."""

from __future__ import annotations

from diagnosis.causes import (
    admission,
    crashing,
    device_plugins,
    faulty_gpus,
    idle_gpus,
    node_labels,
    not_started,
    other_devices,
    rejected,
    running,
    runtime_handlers,
    unready_components,
    unready_nodes,
    unscheduled,
    upkeep,
    verdicts,
)
from diagnosis.causes.hami import (
    allocating,
    control_plane,
    filtering,
    hami_configuration,
    hami_nodes,
    scheduling,
    webhook,
)
from diagnosis.model import Cause, Search

_FAMILIES = (
    *(admission, unscheduled, rejected, runtime_handlers, not_started, crashing, faulty_gpus, running, idle_gpus),
    *(unready_nodes, unready_components, device_plugins),
    *(webhook, control_plane, hami_configuration, hami_nodes, filtering, scheduling, allocating),
    *(node_labels, upkeep, other_devices, verdicts),
)
"""In the order in which a workload meets them."""
SEARCHES: tuple[Search, ...] = tuple(search for family in _FAMILIES for search in family.SEARCHES)
CAUSES: tuple[Cause, ...] = tuple(dict.fromkeys(cause for search in SEARCHES for cause in search.causes))
