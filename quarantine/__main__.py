"""`gpu-healthcheck quarantine-run`: test this node from a pod on it; the result is written to the Node."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import threading
from pathlib import Path

import structlog

from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError
from healthcheck.host.log import log_as_json
from healthcheck.host.program import COULD_NOT, FAULT, Options, exit_code
from healthcheck.model import Status
from healthcheck.settings.reading import (
    Settings,
    SettingsError,
    complain_of_environment,
    read_settings,
    read_variables,
    unknown_keys,
)
from healthcheck.text.json_rows import as_json
from quarantine.node_marks import NodeNotTestable, QuarantineMarks, lock
from quarantine.recommendation import Recommendation
from quarantine.run import QuarantineRun
from quarantine.settings import QuarantineSettings

log = structlog.get_logger()

PASSED, AT_FAULT, UNKNOWN = 0, FAULT, COULD_NOT
"""Exit codes as in `check`: the Job fails if the node failed or could not be tested."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        own = read_variables(QuarantineSettings)
    except SettingsError as error:
        return complain_of_environment("quarantine-run", error)
    log_as_json(own.log_level)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    holder = socket.gethostname()
    try:
        lock(own.report_dir)
        marks = QuarantineMarks(Cluster(), own.node_name, holder)
        record = QuarantineRun(own, _settings(own.config_dir), marks, holder, stopping).run(force=options.force)
    except NodeNotTestable as refusal:
        return _say("refused: nothing was tested", refusal)
    except ClusterError as error:
        return _say("the cluster refuses a required request", error)
    fields = as_json(record)
    keys = ("status", "severity", "recommendation", "reasons", "bug_report")
    log.info("done", **{key: fields[key] for key in keys if key in fields})
    return _exit_code(str(record.status), str(record.recommendation))


def _say(event: str, why: Exception) -> int:
    """Log the last line, which the kubelet shows as the pod's termination message."""
    log.error(event, why=str(why))
    return UNKNOWN


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = Options("quarantine-run", __doc__)
    parser.add_argument("--force", action="store_true", help="test even if pods on the node hold GPUs")
    return parser.parse_args(arguments)


def _settings(directory: Path) -> Settings:
    """Read the policy. An invalid value is replaced by its default, so that it does not prevent the test."""
    if unknown := unknown_keys(directory):
        log.warning("a key of the configuration is not a known setting", unknown=str(unknown))
    settings = read_settings(directory)
    for value in settings.bad:
        log.error("a setting is invalid; its default is used", setting=str(value))
    return settings


def _exit_code(status: str, recommendation: str) -> int:
    if recommendation == Recommendation.RETURN_TO_SERVICE.value:
        return PASSED
    return AT_FAULT if status == Status.FAIL.value or recommendation != Recommendation.RERUN.value else UNKNOWN


if __name__ == "__main__":
    sys.exit(exit_code(main))
