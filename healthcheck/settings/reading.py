"""Reads the settings in the current process, as all programs except the agent do."""

from __future__ import annotations

import os
from pathlib import Path

from healthcheck.settings.declared import settings_of
from healthcheck.settings.files import seen_in
from healthcheck.settings.meaning import understood
from healthcheck.settings.values import NodeSettings, Settings, Written


def read_settings(directory: Path | None) -> Settings:
    """Read the ConfigMap's directory and the environment.

    Raises Shortage if a file could not be checked. `bad` names every invalid value; their defaults are used.
    """
    return understood(_written(directory), directory)


def _written(directory: Path | None) -> Written:
    if not seen_in(directory) and os.environ.keys().isdisjoint(settings_of(NodeSettings)):
        return Written()
    from healthcheck.settings.sources import read_files  # noqa: PLC0415 - slower than a whole check cycle

    return read_files(directory)
