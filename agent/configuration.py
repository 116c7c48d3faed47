"""The settings in force: read anew before each look; of what is wrong with them the last good ones stay."""

from __future__ import annotations

from pathlib import Path

import structlog
from msgspec.structs import replace

from agent.ledger import Ledger
from agent.reporter import Reporter
from agent.state import State
from healthcheck import settings as config
from healthcheck.model import Shortage
from healthcheck.settings import BadValue, Settings, SettingsError, UnknownKeys
from healthcheck.telemetry import Telemetry

log = structlog.get_logger()


class Configuration:
    """The mounted ConfigMap."""

    def __init__(self, directory: Path, state: State, ledger: Ledger, reporter: Reporter, telemetry: Telemetry) -> None:
        self._directory = directory
        self._state = state
        self._ledger = ledger
        self._reporter = reporter
        self._telemetry = telemetry
        self._bad: tuple[BadValue, ...] = ()
        self._unknown: UnknownKeys | None = None
        self._ignored_logged = False

    def reload(self) -> None:
        """Take over the configuration as it is now; what is wrong with it is reported once."""
        try:
            settings = self._read()
            unknown = config.unknown_keys(self._directory)
        except Shortage as error:
            log.warning("the configuration can't be read now", error=str(error))
            return
        self._report_bad(settings.bad)
        self._report_unknown(unknown)
        if settings.values.kernel_log_lines and not self._ignored_logged:
            self._ignored_logged = True
            log.warning("KERNEL_LOG_LINES has no effect: a cursor took its place")
        self._ledger.configure(settings)

    def _read(self) -> Settings:
        try:
            return config.read_settings(self._directory)
        except SettingsError as error:
            if self._state.settings.profiles:
                return replace(self._state.settings, bad=error.bad)
            return config.settings_despite(error.bad, self._directory)

    def _report_bad(self, bad: tuple[BadValue, ...]) -> None:
        if bad == self._bad:
            return
        for one in (*self._bad, *bad):
            self._telemetry.bad_settings.labels(one.key).set(one in bad)
        self._bad = bad
        for one in bad:
            log.error("a setting is not allowed; the last good configuration stays", setting=str(one))
            self._reporter.warn("BadSetting", str(one))

    def _report_unknown(self, unknown: UnknownKeys | None) -> None:
        self._telemetry.unknown_settings.set(len(unknown.keys) if unknown else 0)
        if unknown is not None and unknown != self._unknown:
            log.warning("a key of the configuration is no setting", unknown=str(unknown))
            self._reporter.warn("UnknownSetting", str(unknown))
        self._unknown = unknown
