"""Judging, a file for each check. Their list is `listed`, loaded once somebody asks for it.

Whoever needs one check, or what all of them share, need not wait for the others: a saved kernel log wants three.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from healthcheck.checks.listed import (
        CAUSES,
        CHECKS,
        DEEP_CHECKS,
        GROUPS,
        KERNEL_LINES,
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
    "SHORT_NAMES",
    "checks_named",
    "groups_in",
    "select_checks",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("healthcheck.checks.listed"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
