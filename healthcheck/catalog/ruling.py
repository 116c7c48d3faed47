"""Severity of one error by the catalogue and by this cluster's overrides, with the rule that gives it."""

from __future__ import annotations

from msgspec import Struct

from healthcheck.model import Severity


class Ruling(Struct, frozen=True):
    """A severity, and the row or setting that gives it. PASS means that there is no fault."""

    severity: Severity
    rule: str
    """Source of the severity: `xid.csv:79`, `severity-overrides`, `NVLINK_DEFAULT`."""
    reading: str = ""
    """Meaning of a decoded line in addition to its code, as text for people."""


def worst(rulings: list[Ruling]) -> Ruling:
    """Return the ruling with the worst severity; the first if there are several."""
    return max(rulings, key=lambda ruling: ruling.severity)
