"""Program of a Job that tests or resets its node: settings, signals, and the last log line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import structlog
from msgspec import Struct, field

from gpu_healthcheck.healthcheck.host.log import log_as_json
from gpu_healthcheck.healthcheck.host.program import COULD_NOT
from gpu_healthcheck.healthcheck.settings.declaration import Folder, LogLevel, NodeName
from gpu_healthcheck.healthcheck.settings.reading import (
    Settings,
    SettingsError,
    complain_of_environment,
    read_settings,
    read_variables,
    unknown_keys,
)

log = structlog.get_logger()


class JobSettings(Struct, frozen=True, kw_only=True):
    """Settings of the run from its manifest; `name` is the environment variable. Cluster policy is in the ConfigMap."""

    node_name: NodeName = field(name="NODE_NAME")
    """Node of the Job; the manifest takes it from the pod's spec."""
    host_root: Folder = field(default=Path("/"), name="HOST_ROOT")
    """Mount of the host's `/`."""
    config_dir: Folder = field(default=Path("/etc/gpu-healthcheck"), name="CONFIG_DIR")
    """The mounted ConfigMap."""
    report_dir: Folder = field(default=Path("/var/log/gpu-healthcheck"), name="REPORT_DIR")
    """Folder on the host for NVIDIA's bug reports, and for the lock of a quarantine."""
    log_level: LogLevel = field(default="info", name="LOG_LEVEL")


S = TypeVar("S", bound=JobSettings)


def run_program(
    name: str,
    declared: type[S],
    run: Callable[[S, Settings, threading.Event], int],
    refusals: Mapping[type[Exception], str],
) -> int:
    """Run the program, and return its exit code. A signal sets the event.

    `refusals`: the message for each error that ends a run. It is the last log line, which the kubelet shows as the
    pod's termination message.
    """
    try:
        own = read_variables(declared)
    except SettingsError as error:
        return complain_of_environment(name, error)
    log_as_json(own.log_level)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        return run(own, _policy(own.config_dir), stopping)
    except tuple(refusals) as error:
        message = next(text for kind, text in refusals.items() if isinstance(error, kind))
        log.error(message, why=str(error))  # noqa: TRY400 - a refusal is no defect
    return COULD_NOT


def _policy(directory: Path) -> Settings:
    """Read the policy. An invalid value is replaced by its default, so that it does not prevent the run."""
    if unknown := unknown_keys(directory):
        log.warning("a key of the configuration is not a known setting", unknown=str(unknown))
    settings = read_settings(directory)
    for value in settings.bad:
        log.error("a setting is invalid; its default is used", setting=str(value))
    return settings
