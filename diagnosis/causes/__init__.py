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

SEARCHES: tuple[Search, ...] = (
    *admission.SEARCHES,
    *unscheduled.SEARCHES,
    *rejected.SEARCHES,
    *runtime_handlers.SEARCHES,
    *not_started.SEARCHES,
    *crashing.SEARCHES,
    *faulty_gpus.SEARCHES,
    *running.SEARCHES,
    *idle_gpus.SEARCHES,
    *unready_nodes.SEARCHES,
    *unready_components.SEARCHES,
    *device_plugins.SEARCHES,
    *webhook.SEARCHES,
    *control_plane.SEARCHES,
    *hami_configuration.SEARCHES,
    *hami_nodes.SEARCHES,
    *filtering.SEARCHES,
    *scheduling.SEARCHES,
    *allocating.SEARCHES,
    *node_labels.SEARCHES,
    *upkeep.SEARCHES,
    *other_devices.SEARCHES,
    *verdicts.SEARCHES,
)

CAUSES: tuple[Cause, ...] = tuple(dict.fromkeys(cause for search in SEARCHES for cause in search.causes))
