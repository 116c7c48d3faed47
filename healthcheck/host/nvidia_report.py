"""NVIDIA's bug report of a faulty node, the first thing that their support needs: kept on the host, within limits."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog

from gpu_healthcheck.healthcheck.host.command import ChildError, Program
from gpu_healthcheck.healthcheck.model import Shortage

log = structlog.get_logger()

PROGRAM = "nvidia-bug-report.sh"
SECONDS = 300.0
"""Deadline of the report: it queries a driver that may hang."""
MOST_BYTES = 64 << 20
"""Size limit of one report, enforced by the kernel (RLIMIT_FSIZE); usual are a few MB."""
MOST_REPORTS = 3
_GRACE_SECONDS = 5.0
_BEGINNING = "nvidia-bug-report-"
_IN_THE_HOST = "usr/bin"
_PASSED_ON = ("LD_LIBRARY_PATH",)


@dataclass
class BugReport:
    """Writer of the report.

    `root` is the host's `/`, `directory` the folder of the reports. Another thread calls `stop`.
    """

    root: Path
    directory: Path
    seconds: float = SECONDS
    _program: Program = field(init=False)

    def __post_init__(self) -> None:
        path = f"{os.environ.get('PATH', os.defpath)}:{self.root / _IN_THE_HOST}"
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        self._program = Program({"LC_ALL": "C", **passed_on, "PATH": path}, _GRACE_SECONDS)

    def collect(self, at: datetime) -> str:
        """Run the program if the image or the host has it. Returns the report's path; '' without a report."""
        program = shutil.which(PROGRAM, path=self._program.env["PATH"])
        limited = shutil.which("prlimit")
        if program is None or limited is None:
            return ""
        log.info("bug report: started", program=program)
        target = self.directory / f"{_BEGINNING}{at:%Y%m%dT%H%M%SZ}.log"
        argv = (limited, f"--fsize={MOST_BYTES}", "--", program, "--output-file", str(target))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            _free_space(self.directory)
            self._program.run(argv, self.seconds, self.directory)
        except (ChildError, Shortage, OSError) as error:
            log.warning("bug report: not complete", error=str(error))
        # NVIDIA's program compresses the report if gzip is installed.
        kept = next((file for file in (target.with_name(f"{target.name}.gz"), target) if file.is_file()), None)
        return str(kept) if kept else ""

    def stop(self) -> None:
        """End the report, and start no other."""
        self._program.stop()


def _free_space(directory: Path) -> None:
    """Delete the oldest reports to make room for a new report. Names sort by time."""
    reports = sorted(directory.glob(f"{_BEGINNING}*"))
    for old in reports[: max(len(reports) - MOST_REPORTS + 1, 0)]:
        old.unlink(missing_ok=True)
