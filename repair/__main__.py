"""`gpu-healthcheck reset-run`: reset GPUs of this node from a pod on it; the result is written to the Node."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

import structlog

from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError
from healthcheck.deep.reset_plan import boot_name, gpu_name
from healthcheck.host.log import log_as_json
from healthcheck.host.program import COULD_NOT, FAULT, Options, exit_code
from healthcheck.model import Status
from healthcheck.operations.reset_job import job_name
from healthcheck.settings.reading import (
    Settings,
    SettingsError,
    complain_of_environment,
    read_settings,
    read_variables,
)
from repair.marks import NodeNotResettable, ResetMarks, lock
from repair.settings import ResetSettings
from repair.steps import ResetRun

log = structlog.get_logger()

_CODES = {Status.PASS: 0, Status.FAIL: FAULT}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        own = read_variables(ResetSettings)
    except SettingsError as error:
        return complain_of_environment("reset-run", error)
    log_as_json(own.log_level)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    holder = job_name(own.node_name)
    try:
        lock(own.state_dir)
        marks = ResetMarks(Cluster(), own.node_name, holder)
        run = ResetRun(
            own, _settings(own.config_dir), marks, holder, options.gpu, options.wait, stopping, options.reboot or ""
        )
        progress = run.run()
    except NodeNotResettable as refusal:
        return _say("refused: nothing was reset", refusal)
    except ClusterError as error:
        return _say("the cluster refuses a required request", error)
    if progress.running is not None:
        log.info("the node is to be rebooted: the same Job continues after it", running=progress.running.value)
        return 0
    log.info("done", status=progress.status.value, reasons=list(progress.reasons))
    return _CODES.get(progress.status, COULD_NOT)


def _say(event: str, why: Exception) -> int:
    """Log the last line, which the kubelet shows as the pod's termination message."""
    log.error(event, why=str(why))
    return COULD_NOT


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = Options("reset-run", __doc__)
    parser.add_argument(
        "--gpu", action="append", default=[], type=gpu_name, help="UUID, PCI address or index of a GPU; repeatable"
    )
    parser.add_argument(
        "--reboot",
        type=boot_name,
        help="boot to end, with the node drained, if the reset fails or without --gpu; another boot is verified",
    )
    parser.add_argument("--wait", type=float, default=900.0, help="seconds to wait until the GPUs are free")
    options = parser.parse_args(arguments)
    if not (options.gpu or options.reboot):
        parser.error("--gpu or --reboot is required")
    return options


def _settings(directory: Path) -> Settings:
    """Read the policy. An invalid value is replaced by its default, so that it does not prevent the reset."""
    settings = read_settings(directory)
    for value in settings.bad:
        log.error("a setting is invalid; its default is used", setting=str(value))
    return settings


if __name__ == "__main__":
    sys.exit(exit_code(main))
