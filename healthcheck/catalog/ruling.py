"""Ruling of the catalogue for one error on this cluster."""

from __future__ import annotations

from msgspec import Struct

from healthcheck.model import Severity


class Ruling(Struct, frozen=True):
    """A severity, and the row or setting that gave it. PASS: no fault."""

    severity: Severity
    rule: str
    """`xid.csv:79`, `severity-overrides`, `NVLINK_DEFAULT`."""
    reading: str = ""
    """What a decoded line says beyond its code, for people."""


def worst(rulings: list[Ruling]) -> Ruling:
    """The first of the worst."""
    return max(rulings, key=lambda ruling: ruling.severity)
