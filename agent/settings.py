"""What the agent is told by its manifest: where it runs and what it may do. Cluster policy is the ConfigMap's."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from healthcheck.probes.machine import IMDS
from healthcheck.settings import Folder, LogLevel, NodeName, Port


class AgentSettings(BaseSettings):
    model_config = SettingsConfigDict(extra="ignore", case_sensitive=True, populate_by_name=True)

    node_name: NodeName = Field(alias="NODE_NAME")
    """The Node that this agent speaks for; the manifest takes it from the pod's own spec."""
    host_root: Folder = Field(Path("/"), alias="HOST_ROOT")
    """Where the machine's own `/` is seen."""
    config_dir: Folder = Field(Path("/etc/gpu-healthcheck"), alias="CONFIG_DIR")
    """The mounted ConfigMap."""
    state_dir: Folder = Field(Path("/var/lib/gpu-healthcheck"), alias="STATE_DIR")
    """The node-local memory; survives the pod."""
    metrics_port: Port = Field(10633, alias="METRICS_PORT")
    """/metrics, /healthz and /readyz; 0 takes a free port and logs it."""
    imds_endpoint: str = Field(IMDS, alias="AWS_EC2_METADATA_SERVICE_ENDPOINT")
    """The instance metadata service, under the name that the AWS SDKs use."""
    log_level: LogLevel = Field("info", alias="LOG_LEVEL")
