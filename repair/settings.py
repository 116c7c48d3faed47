"""Settings of a reset from its manifest. Cluster policy is in the ConfigMap."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

from healthcheck.settings.declaration import Folder, LogLevel, NodeName


class ResetSettings(Struct, frozen=True, kw_only=True):
    """Settings of the run; `name` is the environment variable of a field."""

    node_name: NodeName = field(name="NODE_NAME")
    """Node whose GPUs are reset; the manifest takes it from the pod's spec."""
    host_root: Folder = field(default=Path("/"), name="HOST_ROOT")
    """Mount of the host's `/`."""
    config_dir: Folder = field(default=Path("/etc/gpu-healthcheck"), name="CONFIG_DIR")
    """The mounted ConfigMap."""
    state_dir: Folder = field(default=Path("/var/lib/gpu-healthcheck"), name="STATE_DIR")
    """Folder of the agent's memory, for the request to close NVML and for the lock, which a running reset holds."""
    report_dir: Folder = field(default=Path("/var/log/gpu-healthcheck"), name="REPORT_DIR")
    """Folder on the host for NVIDIA's bug reports."""
    log_level: LogLevel = field(default="info", name="LOG_LEVEL")
