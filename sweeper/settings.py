"""What the programs of a sweep are told by their manifests. Cluster policy is the ConfigMap's."""

from __future__ import annotations

from pathlib import Path

import structlog
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from healthcheck.settings import (
    Folder,
    LogLevel,
    NodeName,
    NodeSettings,
    SettingsError,
    read_settings,
    settings_despite,
    unknown_keys,
)

log = structlog.get_logger()

_THE_IMAGE = "a sweep's image is that of the CronJob gpu-healthcheck-sweep-node, and of the policy beside it"


class SweeperSettings(BaseSettings):
    model_config = SettingsConfigDict(extra="ignore", case_sensitive=True, populate_by_name=True)

    config_dir: Folder = Field(Path("/etc/gpu-healthcheck"), alias="CONFIG_DIR")
    """The mounted ConfigMap."""
    log_level: LogLevel = Field("info", alias="LOG_LEVEL")


class NodeTestSettings(SweeperSettings):
    """Of the program in a Job's pod."""

    node_name: NodeName = Field(alias="NODE_NAME")
    """The Node that it tests; the manifest takes it from the pod's own spec."""
    host_root: Folder = Field(Path("/"), alias="HOST_ROOT")
    """Where the driver's library and /proc are: in the pod itself, to which the GPUs were given."""


def cluster_values(directory: Path) -> NodeSettings:
    """A wrong word in the ConfigMap must not leave a fleet untested: the default stands in its place."""
    if unknown := unknown_keys(directory):
        log.warning("a key of the configuration is no setting", unknown=str(unknown))
    try:
        settings = read_settings(directory)
    except SettingsError as error:
        settings = settings_despite(error.bad, directory)
    for one in settings.bad:
        log.error("a setting is not allowed; the default stands in its place", setting=str(one))
    if settings.values.sweep_image:
        log.warning("SWEEP_IMAGE has no effect", value=settings.values.sweep_image, instead=_THE_IMAGE)
    return settings.values
