"""Whether this machine lets us make device files: only then can a simulated node have real ones."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.sim.scenarios import Scenario


@cache
def may_be_made() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.mknod(Path(folder) / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            return False
    return True


NEEDS_THEM = pytest.mark.skipif(not may_be_made(), reason="only root can make device files")


def buildable(several: Iterable[Scenario]) -> list[Any]:
    """Return the scenarios as parameters; those that only root can build are skipped otherwise."""
    return [pytest.param(scenario, marks=NEEDS_THEM if scenario.needs_device_files else ()) for scenario in several]
