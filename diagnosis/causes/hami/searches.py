"""List of searches for clusters with HAMi; they are skipped in all other clusters."""

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
