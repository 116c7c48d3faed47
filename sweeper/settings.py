"""Settings of a sweep's programs from their manifests. Cluster policy is in the ConfigMap."""

from __future__ import annotations

from pathlib import Path

import structlog
from msgspec import Struct, field

from gpu_healthcheck.healthcheck.settings.declaration import Folder, LogLevel, NodeName, NodeSettings
from gpu_healthcheck.healthcheck.settings.reading import read_settings, unknown_keys

log = structlog.get_logger()

_THE_IMAGE = "the image of a sweep is set in the CronJob gpu-healthcheck-sweep-node and in its policy"


class SweeperSettings(Struct, frozen=True, kw_only=True):
    """Settings of all sweep programs; `name` is the environment variable of a field."""

    config_dir: Folder = field(default=Path("/etc/gpu-healthcheck"), name="CONFIG_DIR")
    """The mounted ConfigMap."""
    log_level: LogLevel = field(default="info", name="LOG_LEVEL")


class SweepRunSettings(SweeperSettings, frozen=True, kw_only=True):
    """Settings of the program in a Job's pod."""

    node_name: NodeName = field(name="NODE_NAME")
    """Node that is tested; the manifest takes it from the pod's spec."""
    host_root: Folder = field(default=Path("/"), name="HOST_ROOT")
    """Root of the driver's library and /proc: the pod itself, which has the GPUs."""


def cluster_values(directory: Path) -> NodeSettings:
    """Read the policy. An invalid value is replaced by its default, so that it does not prevent the tests."""
    if unknown := unknown_keys(directory):
        log.warning("a key of the configuration is not a known setting", unknown=str(unknown))
    settings = read_settings(directory)
    for value in settings.bad:
        log.error("a setting is invalid; its default is used", setting=str(value))
    if settings.values.sweep_image:
        log.warning("SWEEP_IMAGE has no effect", value=settings.values.sweep_image, instead=_THE_IMAGE)
    return settings.values
