"""Entry of the API stand-in: received requests, and injected failures."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_healthcheck.sim.api_requests import Request, logged_refusal
from gpu_healthcheck.sim.api_store import ApiStore


@dataclass
class _Failure:
    status: int
    retry_after: int | None
    path_part: str
    left: float


@dataclass
class _Stop:
    method: str
    path_part: str
    done: bool
    reached: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def hold(self, method: str, path: str, *, done: bool) -> None:
        """Hold the request until `recover`, then cut it off."""
        if (method, done) == (self.method, self.done) and self.path_part in path:
            self.reached.set()
            self.over.wait()
            raise ConnectionAbortedError


class RequestGate:
    """Records requests, and injects failures."""

    def __init__(self) -> None:
        self.store = ApiStore()
        self.requests: list[Request] = []
        self._failure: _Failure | None = None
        self._stop: _Stop | None = None
        self._flowing = threading.Event()
        self._flowing.set()

    @property
    def writes(self) -> list[Request]:
        return [request for request in self.requests if request.method != "GET"]

    def wait_for_request(self, predicate: Callable[[Request], bool], timeout: float) -> Request:
        """Return the first past or future request that matches the predicate. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        with self.store.changed:
            while True:
                for request in self.requests:
                    if predicate(request):
                        return request
                if not self.store.changed.wait(deadline - time.monotonic()):
                    made = [(request.method, request.path, request.status) for request in self.requests]
                    raise TimeoutError(f"no such request within {timeout} s among {made}")

    def fail_with(
        self, status: int, retry_after: int | None = None, *, path_part: str = "", times: float = math.inf
    ) -> None:
        """Answer with this status until `recover`: all requests, those with this part of the path, or the next few."""
        self._failure = _Failure(status, retry_after, path_part, times)

    def stop_at(self, method: str, path_part: str, *, done: bool = False) -> threading.Event:
        """Hold such requests until `recover`, before or after their execution. The event is set when one is held."""
        self._stop = _Stop(method, path_part, done)
        return self._stop.reached

    def hang(self) -> None:
        """Accept requests without an answer; watches send no events."""
        self._flowing.clear()

    def recover(self) -> None:
        """End `fail_with`, `stop_at` and `hang`; hanging requests are cut off and have no effect."""
        self._failure = None
        if self._stop is not None:
            self._stop.over.set()
            self._stop = None
        self._flowing.set()

    def hold(self) -> None:
        """If the stand-in hangs, wait until it recovers, and cut the connection off."""
        if not self._flowing.is_set():
            self._flowing.wait()
            raise ConnectionAbortedError

    def admit(self, method: str, path: str) -> None:
        """Hold or fail the request as injected; otherwise do nothing."""
        self.hold()
        if (stop := self._stop) is not None:
            stop.hold(method, path, done=False)
        with self.store.changed:
            failure = self._failure
            if failure and failure.path_part in path and failure.left > 0:
                failure.left -= 1
                raise logged_refusal(failure.status, failure.retry_after, method, path)

    def record(self, request: Request) -> None:
        with self.store.changed:
            self.requests.append(request)
            self.store.changed.notify_all()
        if (stop := self._stop) is not None:
            stop.hold(request.method, request.path, done=True)
