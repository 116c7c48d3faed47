"""Loopback test of each EFA device: libfabric's fi_pingpong as server and client on one device.

The data passes through the NIC.

Programs on one machine reach each other through its memory, unless libfabric is configured otherwise. Without
FI_EFA_ENABLE_SHM_TRANSFER=0, such a test never uses the device.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import tenacity

from healthcheck.host.command import ChildError, MissedDeadline, Program, ProgramEnd, StoppedOnRequest
from healthcheck.host.opening import want_folder
from healthcheck.model import Shortage, Unobserved
from healthcheck.probes.efa.fi_pingpong import NOT_RUN, REFUSED, Broken, Measured, PingResult, read_side, together
from healthcheck.probes.efa.infiniband import openable_efa
from healthcheck.probes.efa.loopback import Loopback, LoopbackReading

_INSTALLED_IN = "/opt/amazon/efa/bin"
PATIENCE_SECONDS = 5.0
_ENVIRONMENT = {"LC_ALL": "C", "FI_HMEM": "system", "FI_EFA_ENABLE_SHM_TRANSFER": "0"}
"""Environment without libfabric variables of this process. FI_HMEM restricts it to host memory, without GPUs."""
_ADDRESS = "127.0.0.1"
"""Address for the control connection of the two sides. The data does not use it."""
_ROUNDS = ("-I", "100")
"""Rounds of each message size from 64 bytes to 1 MiB. The default differs between versions.

Both sides wait by polling, so a pod with less than two CPUs takes up to 10 ms for a round. In a test there, 1000 rounds
of each size did not complete in 30 s.
"""
_COMPARED = "-c"
"""Option that compares the data, used in a separate run: it reduced the speed to an eighth in a test."""
_LISTENS_WITHIN_SECONDS = 30.0
_ASKED_AGAIN_SECONDS = 0.2
_STOPPED = "stopped before its end"


@dataclass
class EfaLoopback:
    """Tests the devices one after the other. `tell` is called with each result, in the thread of the caller."""

    root: Path
    deadline_seconds: float
    """Deadline of each side of each run. A device gets two runs, or only one if the first fails."""
    tell: Callable[[Loopback], None] = lambda _: None
    path: str = field(default_factory=lambda: f"{os.environ.get('PATH', os.defpath)}:{_INSTALLED_IN}")
    patience_seconds: float = PATIENCE_SECONDS
    """Time for a side to end after the other, and then the delay between SIGTERM and SIGKILL."""
    _sides: tuple[Program, ...] = field(default=(), init=False)
    """Server and client of the current or last run."""
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)

    def run(self) -> LoopbackReading:
        """Test every device that programs can open. Raises ProbeError if it is unknown whether there is one."""
        program = shutil.which("fi_pingpong", path=self.path)
        if program is None:
            return LoopbackReading(absent="fi_pingpong is not installed here")
        want_folder(self.root / "sys/class")
        devices = openable_efa(self.root)
        if not devices:
            return LoopbackReading(absent="no EFA device that programs can open")
        return LoopbackReading(tuple(self._tested(program, devices)))

    def stop(self) -> None:
        """Stop the run of another thread. Nothing is started after it."""
        self._stopping.set()
        for side in self._sides:
            side.stop()

    def _tested(self, program: str, devices: tuple[str, ...]) -> Iterator[Loopback]:
        for device in devices:
            loopback = Loopback(device, self._test(program, device))
            self.tell(loopback)
            yield loopback

    def _test(self, program: str, device: str) -> PingResult:
        speed = self._run(program, device, *_ROUNDS)
        if not isinstance(speed, Measured):
            return speed
        integrity = self._run(program, device, *_ROUNDS, _COMPARED)
        return speed if isinstance(integrity, Measured) else integrity

    def _run(self, program: str, device: str, *options: str) -> PingResult:
        """Run both sides at the same time, and stop both at the end."""
        stuck = next((pid for side in self._sides if (pid := side.stuck_pid) is not None), None)
        if stuck is not None:
            return Unobserved(NOT_RUN, f"process {stuck} of an earlier run can't be killed")
        environment = {**_ENVIRONMENT, "PATH": self.path}
        server, client = self._sides = tuple(Program(environment, self.patience_seconds) for _ in range(2))
        if self._stopping.is_set():  # checked after `_sides` is set, so that a concurrent `stop` is never missed
            return Unobserved(NOT_RUN, _STOPPED)
        port = str(_free_port())
        test = (program, "-p", "efa", "-e", "rdm", "-d", f"{device}-rdm", *options)
        with ThreadPoolExecutor(2, "efa-loopback") as threads:
            serving = threads.submit(server.run, (*test, "-B", port), self.deadline_seconds)
            asking = threads.submit(self._connect, client, (*test, "-P", port, _ADDRESS), serving)
            wait((serving, asking), return_when=FIRST_COMPLETED)
            # The remaining side has no peer and would wait forever.
            if wait((serving, asking), self.patience_seconds).not_done:
                server.stop()
                client.stop()
        why = _STOPPED if self._stopping.is_set() else "fi_pingpong: both sides were killed"
        return together(self._result_of(serving), self._result_of(asking)) or Unobserved(NOT_RUN, why)

    def _connect(self, client: Program, argv: tuple[str, ...], serving: Future[ProgramEnd]) -> ProgramEnd:
        """Run the client. If it starts before the server listens, run it again."""
        again = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda ended: ended.code == REFUSED and not serving.done()),
            wait=tenacity.wait_fixed(_ASKED_AGAIN_SECONDS),
            stop=tenacity.stop_after_delay(_LISTENS_WITHIN_SECONDS),
            retry_error_callback=_last_result,
        )
        return again(client.run, argv, self.deadline_seconds)

    def _result_of(self, side: Future[ProgramEnd]) -> PingResult | None:
        try:
            return read_side(side.result())
        except StoppedOnRequest:
            return None
        except MissedDeadline:
            return Broken(f"fi_pingpong: no end within {self.deadline_seconds:g} s")
        except (ChildError, Shortage) as error:
            return Unobserved(NOT_RUN, f"fi_pingpong: {error}")


def _last_result(state: tenacity.RetryCallState) -> ProgramEnd:
    assert state.outcome is not None
    ended: ProgramEnd = state.outcome.result()
    return ended


def _free_port() -> int:
    """Return a port that has no listener now. Another program may use fi_pingpong's default port."""
    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port
