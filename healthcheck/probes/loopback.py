"""Loopback test of a network device: a test program as server and client on one device, both with deadlines."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from gpu_healthcheck.healthcheck.host.command import ChildError, MissedDeadline, Program, ProgramEnd, StoppedOnRequest
from gpu_healthcheck.healthcheck.host.opening import want_folder
from gpu_healthcheck.healthcheck.model import Shortage, Unobserved, UnobservedCause

if TYPE_CHECKING:
    from tenacity import RetryCallState


class Measured(Struct, frozen=True, tag=True):
    """Result in which all data arrived. `bandwidth` is in MB/s (10^6 bytes), with messages of `size` bytes."""

    bandwidth: float
    size: int


class Broken(Struct, frozen=True, tag=True):
    """Result if data was lost or changed, or the device refused to move it. `says` is the program's message."""

    says: str
    corrupt: bool = False


LoopbackResult = Measured | Broken | Unobserved


class Loopback(Struct, frozen=True):
    """Result of one device. `device` is its name in /sys/class/infiniband: `rdmap16s0`."""

    device: str
    answer: LoopbackResult


class LoopbackReading(Struct, frozen=True):
    """Results of all devices. `absent` is the reason if no test ran."""

    loopbacks: tuple[Loopback, ...] = ()
    absent: str = ""


def together(server: LoopbackResult | None, client: LoopbackResult | None) -> LoopbackResult | None:
    """Return the worse result of both sides; None if neither has one.

    At equal weight, the server's counts: if the server could not start, the client knows only that there is no
    listener.
    """
    answers = [measured for measured in (server, client) if measured is not None]
    return max(answers, key=_weight, default=None)


def _weight(answer: LoopbackResult) -> int:
    match answer:
        case Broken(corrupt=True):
            return 3
        case Broken():
            return 2
        case Unobserved():
            return 1
        case _:
            return 0


ADDRESS = "127.0.0.1"
"""Address for the control connection of the two sides. The data does not use it."""
PATIENCE_SECONDS = 5.0
_INSTALLED_IN = "/opt/amazon/efa/bin"
_LISTENS_WITHIN_SECONDS = 30.0
_ASKED_AGAIN_SECONDS = 0.2
_STOPPED = "stopped before its end"


@dataclass
class DeviceLoopback(ABC):
    """Tests the devices one after the other. `tell` is called with each result, in the thread of the caller."""

    PROGRAM: ClassVar[str]
    ENVIRONMENT: ClassVar[Mapping[str, str]]
    """Environment of the program, in addition to its PATH."""
    NOT_RUN: ClassVar[UnobservedCause]

    root: Path
    deadline_seconds: float
    """Deadline of each side of each run."""
    tell: Callable[[Loopback], None] = lambda _: None
    path: str = field(default_factory=lambda: f"{os.environ.get('PATH', os.defpath)}:{_INSTALLED_IN}")
    patience_seconds: float = PATIENCE_SECONDS
    """Time for a side to end after the other, and then the delay between SIGTERM and SIGKILL."""
    _sides: tuple[Program, ...] = field(default=(), init=False)
    """Server and client of the current or last run."""
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)

    @abstractmethod
    def devices(self) -> tuple[str, ...] | str:
        """Return the devices to test, or the reason why there are none. Raises ProbeError if they are unknown."""

    @abstractmethod
    def test(self, program: str, device: str) -> LoopbackResult:
        """Test one device with the program at this path."""

    @abstractmethod
    def refused(self, client: ProgramEnd) -> bool:
        """Whether the client ended because the server did not listen yet."""

    @abstractmethod
    def read_side(self, side: ProgramEnd) -> LoopbackResult | None:
        """Return the result of one side; None if it ended because the other side ended or it was stopped."""

    def run(self) -> LoopbackReading:
        """Test every device. Raises ProbeError if it is unknown whether there is one."""
        program = shutil.which(self.PROGRAM, path=self.path)
        if program is None:
            return LoopbackReading(absent=f"{self.PROGRAM} is not installed here")
        want_folder(self.root / "sys/class")
        devices = self.devices()
        if isinstance(devices, str):
            return LoopbackReading(absent=devices)
        return LoopbackReading(tuple(self._tested(program, devices)))

    def stop(self) -> None:
        """Stop the run of another thread. Nothing is started after it."""
        self._stopping.set()
        for side in self._sides:
            side.stop()

    def run_pair(self, server_argv: Sequence[str], client_argv: Sequence[str]) -> LoopbackResult:
        """Run both sides at the same time, and stop both at the end."""
        stuck = next((pid for side in self._sides if (pid := side.stuck_pid) is not None), None)
        if stuck is not None:
            return Unobserved(self.NOT_RUN, f"process {stuck} of an earlier run can't be killed")
        environment = {**self.ENVIRONMENT, "PATH": self.path}
        server, client = self._sides = tuple(Program(environment, self.patience_seconds) for _ in range(2))
        if self._stopping.is_set():  # checked after `_sides` is set, so that a concurrent `stop` is never missed
            return Unobserved(self.NOT_RUN, _STOPPED)
        with ThreadPoolExecutor(2, "loopback") as threads:
            serving = threads.submit(server.run, server_argv, self.deadline_seconds)
            asking = threads.submit(self._connect, client, client_argv, serving)
            wait((serving, asking), return_when=FIRST_COMPLETED)
            # The remaining side has no peer and would wait forever.
            if wait((serving, asking), self.patience_seconds).not_done:
                server.stop()
                client.stop()
        why = _STOPPED if self._stopping.is_set() else f"{self.PROGRAM}: both sides were killed"
        return together(self._result_of(serving), self._result_of(asking)) or Unobserved(self.NOT_RUN, why)

    def _tested(self, program: str, devices: tuple[str, ...]) -> Iterator[Loopback]:
        for device in devices:
            loopback = Loopback(device, self.test(program, device))
            self.tell(loopback)
            yield loopback

    def _connect(self, client: Program, argv: Sequence[str], serving: Future[ProgramEnd]) -> ProgramEnd:
        """Run the client. If it starts before the server listens, run it again."""
        import tenacity  # noqa: PLC0415 - a check without a loopback run does not need it

        again = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda ended: self.refused(ended) and not serving.done()),
            wait=tenacity.wait_fixed(_ASKED_AGAIN_SECONDS),
            stop=tenacity.stop_after_delay(_LISTENS_WITHIN_SECONDS),
            retry_error_callback=_last_result,
        )
        return again(client.run, argv, self.deadline_seconds)

    def _result_of(self, side: Future[ProgramEnd]) -> LoopbackResult | None:
        try:
            return self.read_side(side.result())
        except StoppedOnRequest:
            return None
        except MissedDeadline:
            return Broken(f"{self.PROGRAM}: no end within {self.deadline_seconds:g} s")
        except (ChildError, Shortage) as error:
            return Unobserved(self.NOT_RUN, f"{self.PROGRAM}: {error}")


def free_port() -> int:
    """Return a port that has no listener now. Another program may use the test program's default port."""
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port


def _last_result(state: RetryCallState) -> ProgramEnd:
    assert state.outcome is not None
    ended: ProgramEnd = state.outcome.result()
    return ended
