"""What the agent is told by its manifest: where it runs and what it may do. Cluster policy is the ConfigMap's."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from healthcheck.probes.machine import IMDS


class AgentSettings(BaseSettings):
    model_config = SettingsConfigDict(extra="ignore", case_sensitive=True, populate_by_name=True)

    node_name: str = Field(alias="NODE_NAME", min_length=1, max_length=253)
    """The Node that this agent speaks for; the manifest takes it from the pod's own spec."""
    host_root: Path = Field(Path("/"), alias="HOST_ROOT")
    """Where the machine's own `/` is seen."""
    config_dir: Path = Field(Path("/etc/gpu-healthcheck"), alias="CONFIG_DIR")
    """The mounted ConfigMap."""
    state_dir: Path = Field(Path("/var/lib/gpu-healthcheck"), alias="STATE_DIR")
    """The node-local memory; survives the pod."""
    metrics_port: int = Field(10633, alias="METRICS_PORT", ge=0, le=65535)
    """/metrics, /healthz and /readyz; 0 takes a free port and logs it."""
    imds_endpoint: str = Field(IMDS, alias="AWS_EC2_METADATA_SERVICE_ENDPOINT")
    """The instance metadata service, under the name that the AWS SDKs use."""
    log_level: str = Field("info", alias="LOG_LEVEL", pattern="^(debug|info|warning|error)$")
