"""Settings of the agent: from its manifest (environment and permissions), and from the ConfigMap (cluster policy).

Changes are read before each cycle. If a value is invalid, the last valid one of its key stays. A file on the node has
the last valid texts, also for a restart. Only the reader of the settings judges them: a text that this version rejects
is not used.

Another file has the last labels of the Node that selectors of `node-overrides` name: an agent that starts without the
API server keeps the checks of its group, and so their findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct, field

from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.state.ledger import Ledger
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.host import node_file
from gpu_healthcheck.healthcheck.model import Shortage
from gpu_healthcheck.healthcheck.settings.declaration import IMDS, Folder, LogLevel, NodeName, Port
from gpu_healthcheck.healthcheck.settings.node_overrides import selected_labels
from gpu_healthcheck.healthcheck.settings.reading import (
    BadValue,
    Seen,
    Settings,
    UnknownKeys,
    read_settings,
    seen_in,
    unknown_keys,
)
from gpu_healthcheck.healthcheck.text.printable import printable

LABELS = "node-labels.json"
_TEXTS = "settings.json"
_LONGEST = 8 << 20
"""A ConfigMap has at most 1 MiB, and a character takes at most six bytes in JSON."""


def load(folder: Path, name: str = _TEXTS) -> dict[str, str]:
    """Return the texts by key; none if the file is missing, too long or damaged."""
    try:
        return msgspec.json.decode(node_file.read_start(folder / name, _LONGEST), type=dict[str, str])
    except (OSError, Shortage, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def save(folder: Path, texts: Mapping[str, str], name: str = _TEXTS) -> None:
    """Write the texts if they changed. Raises OSError; a restart then knows the earlier ones."""
    if texts != load(folder, name):
        node_file.replace_whole(folder / name, msgspec.json.encode(dict(texts)))


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


log = structlog.get_logger()

_LONGEST_ERROR = 200


class MountedConfiguration:
    """The mounted ConfigMap."""

    def __init__(
        self, own: AgentSettings, state: AgentState, ledger: Ledger, reporter: Reporter, telemetry: Telemetry
    ) -> None:
        self._directory, self._last_values = own.config_dir, own.state_dir
        self._state = state
        self._ledger = ledger
        self._reporter = reporter
        self._telemetry = telemetry
        self._settings = Settings()
        """Settings of the cluster."""
        self._seen: Seen | None = None
        """State of the folder at the last read; None: unknown."""
        self._bad: tuple[BadValue, ...] = ()
        self._unknown: UnknownKeys | None = None
        self._ignored_logged = False

    def reload(self) -> None:
        """Read the configuration if it changed; errors in it are reported once."""
        try:
            if self._seen is None or self._seen != seen_in(self._directory):
                self._read()
        except Shortage as error:
            log.warning("the configuration can't be read now", error=str(error))
        if self._settings.values.kernel_log_lines and not self._ignored_logged:
            self._ignored_logged = True
            log.warning("KERNEL_LOG_LINES has no effect: the agent remembers its position in the log")
        self._save(selected_labels(self._settings.values, self._state.known.labels), LABELS)
        self._ledger.configure(self._settings)

    def _read(self) -> None:
        """Read the configuration. Raises Shortage: the last values stay, and the next call tries again."""
        self._seen = None
        # The file lacks texts that were read less than a cycle ago.
        settings = read_settings(self._directory, self._settings.texts or load(self._last_values))
        unknown = unknown_keys(self._directory)
        self._report_bad(settings.bad)
        self._report_unknown(unknown)
        self._settings = settings.keeping(self._settings) if self._settings.profiles else settings
        self._seen = settings.seen
        if settings.seen is not None:
            self._save(settings.texts, _TEXTS)

    def _save(self, texts: Mapping[str, str], name: str) -> None:
        if (folder := self._ledger.folder) is not None:
            try:
                save(folder, texts, name)
            except OSError as error:
                log.warning("the last valid settings can't be saved", error=printable(str(error), _LONGEST_ERROR))

    def _report_bad(self, bad: tuple[BadValue, ...]) -> None:
        if bad == self._bad:
            return
        for setting in (*self._bad, *bad):
            self._telemetry.bad_settings.labels(setting.key).set(setting in bad)
        self._bad = bad
        for setting in bad:
            log.error("a setting is invalid; its last valid value stays", setting=str(setting))
            self._reporter.warn("BadSetting", str(setting))

    def _report_unknown(self, unknown: UnknownKeys | None) -> None:
        self._telemetry.unknown_settings.set(len(unknown.keys) if unknown else 0)
        if unknown is not None and unknown != self._unknown:
            log.warning("a key of the configuration is not a known setting", unknown=str(unknown))
            self._reporter.warn("UnknownSetting", str(unknown))
        self._unknown = unknown
