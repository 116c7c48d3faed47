"""Settings of a quarantine run from its manifest. Cluster policy is in the ConfigMap."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

from healthcheck.settings.declaration import Folder, LogLevel, NodeName


class QuarantineSettings(Struct, frozen=True, kw_only=True):
    """Settings of the run; `name` is the environment variable of a field."""

    node_name: NodeName = field(name="NODE_NAME")
    """Node that is tested; the manifest takes it from the pod's spec."""
    host_root: Folder = field(default=Path("/"), name="HOST_ROOT")
    """Mount of the host's `/`."""
    config_dir: Folder = field(default=Path("/etc/gpu-healthcheck"), name="CONFIG_DIR")
    """The mounted ConfigMap."""
    report_dir: Folder = field(default=Path("/var/log/gpu-healthcheck"), name="REPORT_DIR")
    """Folder on the host for NVIDIA's bug reports and for the lock, which a running run holds."""
    log_level: LogLevel = field(default="info", name="LOG_LEVEL")
