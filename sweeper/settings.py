"""What the sweeper is told by its manifest. Cluster policy is the ConfigMap's."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SweeperSettings(BaseSettings):
    model_config = SettingsConfigDict(extra="ignore", case_sensitive=True, populate_by_name=True)

    config_dir: Path = Field(Path("/etc/gpu-healthcheck"), alias="CONFIG_DIR")
    """The mounted ConfigMap."""
    log_level: str = Field("info", alias="LOG_LEVEL", pattern="^(debug|info|warning|error)$")
