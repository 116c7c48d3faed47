"""`gpu-healthcheck reset-run`: reset GPUs of this node from a pod on it; the result is written to the Node."""

from __future__ import annotations

import argparse
import sys
import threading
from functools import partial

import structlog

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.deep.reset_command import LOCK
from gpu_healthcheck.healthcheck.deep.reset_plan import boot_name, gpu_name
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, FAULT, Options, RunRefused, exit_code, lock_machine
from gpu_healthcheck.healthcheck.model import Status
from gpu_healthcheck.healthcheck.operations.reset_job import job_name
from gpu_healthcheck.healthcheck.settings.job_program import run_program
from gpu_healthcheck.healthcheck.settings.reading import Settings
from gpu_healthcheck.repair.marks import ResetMarks
from gpu_healthcheck.repair.steps import ResetRun, ResetSettings

log = structlog.get_logger()

_REFUSALS = {
    RunRefused: "refused: nothing was reset",
    ClusterError: "the cluster refuses a required request",
}
_CODES = {Status.PASS: 0, Status.FAIL: FAULT}


def main(arguments: list[str] | None = None) -> int:
    reset = partial(_reset, _options(arguments))
    return run_program("reset-run", ResetSettings, reset, _REFUSALS)


def _reset(options: argparse.Namespace, own: ResetSettings, settings: Settings, stopping: threading.Event) -> int:
    holder = job_name(own.node_name)
    lock_machine(own.state_dir / LOCK, "reset")
    marks = ResetMarks(Cluster(), own.node_name, holder)
    progress = ResetRun(own, settings, marks, holder, options.gpu, options.wait, stopping, options.reboot or "").run()
    if progress.running is not None:
        log.info("the node is to be rebooted: the same Job continues after it", running=progress.running.value)
        return 0
    log.info("done", status=progress.status.value, reasons=list(progress.reasons))
    return _CODES.get(progress.status, COULD_NOT)


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


if __name__ == "__main__":
    sys.exit(exit_code(main))
