"""Settings of this cluster for commands without cluster access. Without any setting, the reader is not loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.cli import index
from gpu_healthcheck.cli.words import end
from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.catalog.profiles import Profiles, read_packaged
from gpu_healthcheck.healthcheck.host.opening import is_folder
from gpu_healthcheck.healthcheck.model import ProbeError

_NO_SETTINGS = (
    "the default, because {} does not exist here; a cluster's value is in its ConfigMap gpu-healthcheck-config"
)


class LocalSettings(Struct, frozen=True):
    """Settings of this cluster that are present on this machine."""

    directory: Path
    policy: Policy
    profiles: Profiles
    values: Mapping[str, str]
    """Values by key, as written in the ConfigMap."""
    note: str = ""
    """Note after a value; names the missing folder if nothing is set here."""

    def number(self, key: str) -> int:
        return int(self.values[key])


def read_here(program: str) -> LocalSettings:
    """Return the settings of the ConfigMap's directory and the environment. Exits on an invalid one."""
    directory = Path(os.environ.get("CONFIG_DIR", "/etc/gpu-healthcheck"))
    if not _may_hold_settings(directory) and not any(key in os.environ for key in index.defaults()):
        message = f", {_NO_SETTINGS.format(directory)}"
        return LocalSettings(directory, Policy(), read_packaged(), index.defaults(), message)
    # Loading the reader of settings takes as long as loading everything else.
    from gpu_healthcheck.healthcheck.settings.declaration import by_key, written  # noqa: PLC0415
    from gpu_healthcheck.healthcheck.settings.reading import read_settings  # noqa: PLC0415

    settings = read_settings(directory)
    if settings.bad:
        end(program, "\n".join(str(value) for value in settings.bad))
    values = {key: written(entry) for key, entry in by_key(settings.values).items()}
    return LocalSettings(directory, settings.values.policy, settings.profiles, values)


def _may_hold_settings(directory: Path) -> bool:
    try:
        return is_folder(directory)
    except ProbeError:
        return True  # the reader reports the reason
