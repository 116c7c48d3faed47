"""List of all causes of a diagnosis: one family per file, in the order a workload meets them."""

from __future__ import annotations

from diagnosis.cause import Cause, Search
from diagnosis.causes import (
    admission,
    components,
    crashing,
    device_plugins,
    faulty_gpus,
    idle,
    node_labels,
    nodes,
    not_started,
    other_devices,
    rejected,
    running,
    runtime_handlers,
    unscheduled,
    upkeep,
    verdicts,
)
from diagnosis.causes.hami import searches as hami

SEARCHES: tuple[Search, ...] = (
    *admission.SEARCHES,
    *unscheduled.SEARCHES,
    *rejected.SEARCHES,
    *runtime_handlers.SEARCHES,
    *not_started.SEARCHES,
    *crashing.SEARCHES,
    *faulty_gpus.SEARCHES,
    *running.SEARCHES,
    *idle.SEARCHES,
    *nodes.SEARCHES,
    *components.SEARCHES,
    *device_plugins.SEARCHES,
    *hami.SEARCHES,
    *node_labels.SEARCHES,
    *upkeep.SEARCHES,
    *other_devices.SEARCHES,
    *verdicts.SEARCHES,
)

CAUSES: tuple[Cause, ...] = tuple(dict.fromkeys(cause for search in SEARCHES for cause in search.causes))
