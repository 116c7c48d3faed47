"""All that is looked for where a cluster has HAMi; elsewhere nothing of it is asked or told."""

from __future__ import annotations

from diagnosis.cause import Search
from diagnosis.causes.hami import allocating, configuration, control_plane, filtering, nodes, scheduling, webhook

SEARCHES: tuple[Search, ...] = (
    *webhook.SEARCHES,
    *control_plane.SEARCHES,
    *configuration.SEARCHES,
    *nodes.SEARCHES,
    *filtering.SEARCHES,
    *scheduling.SEARCHES,
    *allocating.SEARCHES,
)
