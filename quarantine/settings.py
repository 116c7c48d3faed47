"""What a quarantine run is told by its manifest. Cluster policy is the ConfigMap's."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from healthcheck.settings import Folder, LogLevel, NodeName


class QuarantineSettings(BaseSettings):
    model_config = SettingsConfigDict(extra="ignore", case_sensitive=True, populate_by_name=True)

    node_name: NodeName = Field(alias="NODE_NAME")
    """The Node that is tested; the manifest takes it from the pod's own spec."""
    host_root: Folder = Field(Path("/"), alias="HOST_ROOT")
    """Where the machine's own `/` is seen."""
    config_dir: Folder = Field(Path("/etc/gpu-healthcheck"), alias="CONFIG_DIR")
    """The mounted ConfigMap."""
    report_dir: Folder = Field(Path("/var/log/gpu-healthcheck"), alias="REPORT_DIR")
    """A folder of the host: NVIDIA's bug reports, and the lock that tells a run that lives from one that died."""
    log_level: LogLevel = Field("info", alias="LOG_LEVEL")
