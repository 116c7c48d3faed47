"""`gpu-healthcheck quarantine-run`: test this node from a pod on it; the result is written to the Node."""

from __future__ import annotations

import argparse
import socket
import sys
import threading
from functools import partial

import structlog

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, FAULT, Options, RunRefused, exit_code, lock_machine
from gpu_healthcheck.healthcheck.model import Status
from gpu_healthcheck.healthcheck.settings.job_program import JobSettings, run_program
from gpu_healthcheck.healthcheck.settings.reading import Settings
from gpu_healthcheck.healthcheck.text.boundary import as_json
from gpu_healthcheck.quarantine.node_marks import QuarantineMarks
from gpu_healthcheck.quarantine.recommendation import Recommendation
from gpu_healthcheck.quarantine.run import QuarantineRun

log = structlog.get_logger()

PASSED, AT_FAULT, UNKNOWN = 0, FAULT, COULD_NOT
"""Exit codes as in `check`: the Job fails if the node failed or could not be tested."""
_REFUSALS = {
    RunRefused: "refused: nothing was tested",
    ClusterError: "the cluster refuses a required request",
}


def main(arguments: list[str] | None = None) -> int:
    test = partial(_test, force=_options(arguments).force)
    return run_program("quarantine-run", JobSettings, test, _REFUSALS)


def _test(own: JobSettings, settings: Settings, stopping: threading.Event, *, force: bool) -> int:
    holder = socket.gethostname()
    lock_machine(own.report_dir / "quarantine.lock", "quarantine run")
    marks = QuarantineMarks(Cluster(), own.node_name, holder)
    record = QuarantineRun(own, settings, marks, holder, stopping).run(force=force)
    fields = as_json(record)
    keys = ("status", "severity", "recommendation", "reasons", "bug_report")
    log.info("done", **{key: fields[key] for key in keys if key in fields})
    return _exit_code(str(record.status), str(record.recommendation))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = Options("quarantine-run", __doc__)
    parser.add_argument("--force", action="store_true", help="test even if pods on the node hold GPUs")
    return parser.parse_args(arguments)


def _exit_code(status: str, recommendation: str) -> int:
    if recommendation == Recommendation.RETURN_TO_SERVICE.value:
        return PASSED
    return AT_FAULT if status == Status.FAIL.value or recommendation != Recommendation.RERUN.value else UNKNOWN


if __name__ == "__main__":
    sys.exit(exit_code(main))
