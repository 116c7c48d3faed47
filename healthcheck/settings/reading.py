"""Reading the settings in one's own process, as every program but the agent does."""

from __future__ import annotations

from pathlib import Path

from healthcheck.settings.meaning import understood
from healthcheck.settings.sources import read_files
from healthcheck.settings.values import Settings


def read_settings(directory: Path | None) -> Settings:
    """Read the ConfigMap's directory and the environment anew. Raises Shortage where nobody could look.

    `bad` names every value that is not allowed; the defaults stand in their places.
    """
    return understood(read_files(directory), directory)
