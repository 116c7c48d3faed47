"""A simulated day of a node with constant failures, on a clock of its own, through the product's functions and its
file.

`HOURS FOLDER`. Each second adds lines to the kernel log: any code on any GPU and MIG instance with any process. A check
cycle runs every five minutes, sometimes without readings; GPUs are reset, exchanged and released, and the node reboots.
Prints after each hour the memory of the process, the length of the file, and the number of active findings.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from bench.accounting import rss_mib
from healthcheck.catalog.sxid import sxid_table
from healthcheck.catalog.xid import xid_table
from healthcheck.checks import CHECKS
from healthcheck.checks.examine import judge
from healthcheck.checks.expectation import Expectation
from healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_look
from healthcheck.memory.exits import begin, release
from healthcheck.memory.file import MemoryFile
from healthcheck.memory.findings import Memory
from healthcheck.memory.kernel_events import after_kernel_log
from healthcheck.model import Evidence, Finding, Nature, Now, Outcome, Severity, Unobserved
from healthcheck.node.state import RESULTS, NodeState
from healthcheck.probes.kernel_log import RING, Record
from healthcheck.probes.nvml.error_causes import DRIVER_NOT_LOADED
from healthcheck.probes.nvml.gpus import Gpu
from healthcheck.verdict.acknowledgement import release_of
from healthcheck.verdict.record import Identity, dump, render
from healthcheck.verdict.verdict import decide

_EVENT_CHECKS = tuple(check for check in CHECKS if check.nature is Nature.EVENT)
_ADDRESSES = tuple(f"0000:{bus:02x}:00" for bus in range(0x10, 0x90, 0x10))
_MOST_LINES = 4
_SAVE_SECONDS, _LOOK_SECONDS, _RESET_SECONDS, _CHANGE_SECONDS = 20, 300, 900, 3600
_REBOOT_SECONDS, _RELEASE_SECONDS = 4 * 3600, 6 * 3600
_ESCALATE_AFTER, _MONITOR_TTL_SECONDS = 2, 86400.0


@dataclass
class _Day:
    """Day of the node, simulated second by second."""

    memory: Memory
    now: Now
    chance: random.Random
    seq: int = 0
    boot: int = 0

    def tick(self, second: int) -> None:
        self.now = Now(self.now.wall + timedelta(seconds=1), self.now.monotonic + 1)
        self._read()
        if second % _LOOK_SECONDS == 0:
            self._look()
        if second % _RELEASE_SECONDS == 0:
            self._release()
        if second % _REBOOT_SECONDS == 0:
            self._reboot()

    def _read(self) -> None:
        lines = tuple(self._line() for _ in range(self.chance.randrange(_MOST_LINES)))
        outcomes = judge(_EVENT_CHECKS, Evidence({RING: lines}), Expectation())
        after = after_kernel_log(self.memory, outcomes, self.now, _ESCALATE_AFTER)
        self.memory = replace(after, cursor=self.seq - 1 if self.seq else None)

    def _line(self) -> Record:
        self.seq += 1
        return Record(self.seq - 1, self.now.monotonic, 0, self._text())

    def _text(self) -> str:
        chance, address = self.chance, self.chance.choice(_ADDRESSES)
        if chance.random() < 0.1:
            return f"nvidia-nvswitch{chance.randrange(4)}: SXid (PCI:{address}): {chance.choice(list(sxid_table()))}, x"
        if chance.random() < 1 / _RESET_SECONDS:
            action = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
            return f"NVRM: Xid (PCI:{address}): 154, {action}"
        instance = f" GPU-I:{chance.randrange(7):02d}" if chance.random() < 0.2 else ""
        process = f"pid={chance.randrange(99999)}, name=job{chance.randrange(999)}, "
        text = f"Graphics SM Warp Exception on (GPC {chance.randrange(8)}, TPC {chance.randrange(8)}, SM 0): x"
        return f"NVRM: Xid (PCI:{address}{instance}): {chance.choice(list(xid_table()))}, {process}{text}"

    def _look(self) -> None:
        lost = [
            Finding("GpuLost", Severity.REBOOT, f"gpu/{address}.0", "x") for address in _ADDRESSES if self._rarely()
        ]
        blind = (Unobserved(DRIVER_NOT_LOADED, "x"),) if self._rarely() else ()
        outcome = Outcome("gpu-count", "0-nvidia-smi", findings=() if blind else tuple(lost), unobserved=blind)
        look = JudgedCycle([outcome], self._gpus(), self.now.monotonic)
        self.memory = after_look(self.memory, look, self.now, MemoryRules(_ESCALATE_AFTER, _MONITOR_TTL_SECONDS))

    def _gpus(self) -> list[Gpu]:
        """Exchange a GPU about every hour; sometimes the driver requests a reset."""
        generation = int(self.now.wall.timestamp()) // _CHANGE_SECONDS
        return [
            Gpu(
                index, 0, f"{text}.0", f"GPU-{text}", f"{text}-{generation}", recovery_action=1 if self._rarely() else 0
            )
            for index, text in enumerate(_ADDRESSES)
        ]

    def _rarely(self) -> bool:
        return self.chance.random() < 0.1

    def _release(self) -> None:
        record = render(decide(self.memory, ()), self.memory, Identity("bench"), self.now.wall)
        node = NodeState("bench", annotations={RESULTS: dump(record)})
        self.memory = release(self.memory, release_of(node, "a person", "seen to", self.now.wall), self.now)

    def _reboot(self) -> None:
        self.boot += 1
        self.now = Now(self.now.wall + timedelta(seconds=90), 60.0)
        self.memory = begin(self.memory, self.memory.machine, f"boot {self.boot}", self.now)
        self.seq = 0


def main() -> None:
    hours, file = int(sys.argv[1]), MemoryFile(Path(sys.argv[2]))
    sys.stdin.readline()
    file.acquire()
    day = _Day(Memory("bench", "boot 0"), Now(datetime(2026, 11, 21, tzinfo=UTC), 60.0), random.Random(24))
    for hour in range(hours):
        most_standing = longest = 0
        for second in range(1, 3601):
            day.tick(hour * 3600 + second)
            if second % _SAVE_SECONDS == 0:
                file.write(day.memory)
                longest = max(longest, file.path.stat().st_size)
            most_standing = max(most_standing, len(day.memory.standing))
        gc.collect()
        row = {"rss_mib": rss_mib(os.getpid()), "file_bytes": longest, "standing": most_standing}
        print(json.dumps(row), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
