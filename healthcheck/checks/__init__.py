"""The health checks, one file per check. Their list is in `listed`, which is loaded on first use.

Code that needs only some checks, or only the shared parts, does not load the others: a saved kernel log needs three.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_healthcheck.healthcheck.checks.listed import (
        CAUSES,
        CHECKS,
        DEEP_CHECKS,
        GROUPS,
        KERNEL_LINES,
        MEANINGS,
        SHORT_NAMES,
        checks_named,
        groups_in,
        select_checks,
    )

__all__ = (
    "CAUSES",
    "CHECKS",
    "DEEP_CHECKS",
    "GROUPS",
    "KERNEL_LINES",
    "MEANINGS",
    "SHORT_NAMES",
    "checks_named",
    "groups_in",
    "select_checks",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("gpu_healthcheck.healthcheck.checks.listed"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
