"""List of searches for clusters with HAMi; they are skipped in all other clusters."""

from __future__ import annotations

from diagnosis.causes.hami import (
    allocating,
    control_plane,
    filtering,
    hami_configuration,
    hami_nodes,
    scheduling,
    webhook,
)
from diagnosis.model import Search

SEARCHES: tuple[Search, ...] = (
    *webhook.SEARCHES,
    *control_plane.SEARCHES,
    *hami_configuration.SEARCHES,
    *hami_nodes.SEARCHES,
    *filtering.SEARCHES,
    *scheduling.SEARCHES,
    *allocating.SEARCHES,
)
