"""Exit of a program whose environment variables are invalid."""

from __future__ import annotations

from healthcheck.host.program import USAGE
from healthcheck.host.streams import complain
from healthcheck.settings.values import SettingsError


def complain_of_environment(program: str, error: SettingsError) -> int:
    """Report each invalid variable with its value. Return the exit code."""
    for value in error.bad:
        complain(program, value.words)
    return USAGE
