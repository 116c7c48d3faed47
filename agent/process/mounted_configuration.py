"""Settings in force: changes are read before each cycle. If a value is invalid, the last valid one of its key stays."""

from __future__ import annotations

import structlog

from agent.node.reporter import Reporter
from agent.process import last_settings
from agent.process.settings import AgentSettings
from agent.state.agent_state import AgentState
from agent.state.ledger import Ledger
from agent.telemetry import Telemetry
from healthcheck.model import Shortage
from healthcheck.settings.reading import BadValue, Seen, Settings, UnknownKeys, read_settings, seen_in, unknown_keys
from healthcheck.text.printable import printable

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
            return
        if self._settings.values.kernel_log_lines and not self._ignored_logged:
            self._ignored_logged = True
            log.warning("KERNEL_LOG_LINES has no effect: the agent remembers its position in the log")
        self._ledger.configure(self._settings)

    def _read(self) -> None:
        """Read the configuration. Raises Shortage: the last values stay, and the next call tries again."""
        self._seen = None
        settings = read_settings(self._directory, last_settings.load(self._last_values))
        unknown = unknown_keys(self._directory)
        self._report_bad(settings.bad)
        self._report_unknown(unknown)
        in_force = self._state.settings
        self._settings = settings.keeping(in_force) if in_force.profiles else settings
        self._seen = settings.seen
        if settings.seen is not None and (folder := self._ledger.folder) is not None:
            try:
                last_settings.save(folder, settings.texts)
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
