"""Settings of the agent from its manifest: its environment and permissions. Cluster policy is in the ConfigMap."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

from healthcheck.settings.declaration import IMDS, Folder, LogLevel, NodeName, Port


class AgentSettings(Struct, frozen=True, kw_only=True):
    """Settings of the agent; `name` is the environment variable of a field."""

    node_name: NodeName = field(name="NODE_NAME")
    """Node of this agent; the manifest takes it from the pod's spec."""
    host_root: Folder = field(default=Path("/"), name="HOST_ROOT")
    """Mount of the host's `/`."""
    config_dir: Folder = field(default=Path("/etc/gpu-healthcheck"), name="CONFIG_DIR")
    """The mounted ConfigMap."""
    state_dir: Folder = field(default=Path("/var/lib/gpu-healthcheck"), name="STATE_DIR")
    """Folder of the node-local memory; it survives the pod."""
    metrics_port: Port = field(default=10633, name="METRICS_PORT")
    """Port of /metrics, /healthz and /readyz; 0 chooses a free port and logs it."""
    imds_endpoint: str = field(default=IMDS, name="AWS_EC2_METADATA_SERVICE_ENDPOINT")
    """Address of the instance metadata service, named as in the AWS SDKs."""
    log_level: LogLevel = field(default="info", name="LOG_LEVEL")
