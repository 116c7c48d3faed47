"""How a program ends that is told wrong things by its environment."""

from __future__ import annotations

from healthcheck.host.program import USAGE
from healthcheck.host.streams import complain
from healthcheck.settings.values import SettingsError


def complain_of_environment(program: str, error: SettingsError) -> int:
    """Name each variable that is wrong, with what it is. Returns the exit code."""
    for one in error.bad:
        complain(program, one.words)
    return USAGE
