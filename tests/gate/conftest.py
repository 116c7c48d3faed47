"""A control plane with a scheduler."""

from __future__ import annotations

from tests.scheduling import scheduled

__all__ = ["scheduled"]
