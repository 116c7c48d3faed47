"""Validation of settings: texts that name checks, conditions and severities, and the profile table.

An invalid value is reported with its file, its key, the value and the allowed values. No value is guessed.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from healthcheck.catalog.policy import parse_overrides
from healthcheck.catalog.profiles import PROFILES_FILE, ProfileError, Profiles, parse_profiles, read_packaged
from healthcheck.checks import CHECKS, groups_in, select_checks
from healthcheck.host.opening import is_absent, refuse_shortage
from healthcheck.node.state import REPAIR_CONDITIONS
from healthcheck.probes.dcgm.diag import checked_host
from healthcheck.settings.declared import settings_of
from healthcheck.settings.files import not_allowed
from healthcheck.settings.values import OVERRIDES, BadValue, NodeSettings, Settings, Written, listed
from healthcheck.text.printable import printable

_LEAST_MEGABYTES, _MEGABYTES_A_GIGABIT = 500, 125
_LONGEST_FILE, _LONGEST_WORD = 1 << 20, 64


def understood(written: Written, directory: Path | None) -> Settings:
    """Return the settings, with defaults for invalid values.

    Raises Shortage if a file could not be checked.
    """
    values, bad = written.values, list(written.bad)
    for key, meant in _MEANT.items():
        setting = settings_of(NodeSettings)[key]
        value = getattr(values, setting.name)
        try:
            values = replace(values, **{setting.name: meant(value)})
        except ValueError as error:
            bad.append(not_allowed(key, value, str(error), directory))
            values = replace(values, **{setting.name: setting.default})
    try:
        profiles = _read_profiles(directory)
    except (ProfileError, OSError) as error:
        passing = isinstance(error, OSError)
        if isinstance(error, OSError):
            refuse_shortage(error)
        bad.append(BadValue(PROFILES_FILE, "...", str(error), str(directory), passing))
        profiles = packaged_profiles()
    return Settings(values, profiles, tuple(bad))


@cache
def packaged_profiles() -> Profiles:
    return read_packaged()


def _read_profiles(directory: Path | None) -> Profiles:
    """Return the packaged table of profiles. A row of the ConfigMap replaces the packaged row of its type."""
    path = directory / PROFILES_FILE if directory else None
    try:
        if path is None or not stat.S_ISREG(path.stat().st_mode):
            return packaged_profiles()
        with path.open("rb") as file:
            text = file.read(_LONGEST_FILE + 1).decode("utf-8", "backslashreplace")
    except OSError as error:
        if is_absent(error):
            return packaged_profiles()
        raise
    return {**packaged_profiles(), **parse_profiles(text, str(path))}


def _checks(value: str) -> str:
    if not select_checks(value.split()):
        # A node without any check would be reported as healthy.
        raise ValueError(f"names no check of the light check cycle; groups {groups_in(CHECKS)} have some")
    return value


def _repair_conditions(value: str) -> str:
    if unknown := [text for text in listed(value) if text not in REPAIR_CONDITIONS]:
        allowed = ", ".join(REPAIR_CONDITIONS)
        raise ValueError(
            f"unknown condition {printable(unknown[0], _LONGEST_WORD)!r}; allowed are {allowed}, separated by commas"
        )
    return value


def _overrides(value: str) -> str:
    parse_overrides(value)
    return value


def _megabytes(value: int) -> int:
    """Reject a bandwidth in Gbps, the unit of the bash suite: no EFA device is so slow that the number can be MB/s."""
    if 0 < value < _LEAST_MEGABYTES:
        raise ValueError(
            f"the unit is MB/s, 0 or {_LEAST_MEGABYTES} to 1000000, and the value is probably in Gbps: "
            f"{value} Gbps are {value * _MEGABYTES_A_GIGABIT} MB/s"
        )
    return value


_MEANT: Mapping[str, Callable[[Any], Any]] = {
    "CHECKS_LIGHTWEIGHT": _checks,
    "DCGM_HOST": checked_host,
    "REPAIR_CONDITIONS": _repair_conditions,
    "EFA_MIN_BW": _megabytes,
    OVERRIDES: _overrides,
}
"""Validators beyond type and bounds. Each returns the value to use, or raises ValueError."""
