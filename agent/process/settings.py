"""Settings of the agent from its manifest: its environment and permissions. Cluster policy is in the ConfigMap."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

from healthcheck.settings.declared import IMDS, Folder, LogLevel, NodeName, Port


class AgentSettings(Struct, frozen=True, kw_only=True):
    """`name` is the variable."""

    node_name: NodeName = field(name="NODE_NAME")
    """The Node that this agent speaks for; the manifest takes it from the pod's own spec."""
    host_root: Folder = field(default=Path("/"), name="HOST_ROOT")
    """Where the machine's own `/` is seen."""
    config_dir: Folder = field(default=Path("/etc/gpu-healthcheck"), name="CONFIG_DIR")
    """The mounted ConfigMap."""
    state_dir: Folder = field(default=Path("/var/lib/gpu-healthcheck"), name="STATE_DIR")
    """The node-local memory; survives the pod."""
    metrics_port: Port = field(default=10633, name="METRICS_PORT")
    """/metrics, /healthz and /readyz; 0 takes a free port and logs it."""
    imds_endpoint: str = field(default=IMDS, name="AWS_EC2_METADATA_SERVICE_ENDPOINT")
    """The instance metadata service, under the name that the AWS SDKs use."""
    log_level: LogLevel = field(default="info", name="LOG_LEVEL")
