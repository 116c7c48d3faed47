"""`gpu-healthcheck agent`: connect the parts, wait for SIGTERM, and exit without changes."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import threading
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import structlog
import tenacity
from msgspec.structs import asdict

from gpu_healthcheck.agent.node.gate import PATH as GATE
from gpu_healthcheck.agent.node.gate import SOCKET
from gpu_healthcheck.agent.process.settings import AgentSettings
from gpu_healthcheck.agent.process.wiring import Agent
from gpu_healthcheck.agent.telemetry import Telemetry, serve
from gpu_healthcheck.healthcheck.catalog.tables import read_all
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.host import http_server
from gpu_healthcheck.healthcheck.host.http_server import HttpServer, Page, Request
from gpu_healthcheck.healthcheck.host.log import log_as_json
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, USAGE, Options, stop_at_signals
from gpu_healthcheck.healthcheck.host.streams import complain
from gpu_healthcheck.healthcheck.memory.file import MemoryFile, MemoryFileError
from gpu_healthcheck.healthcheck.model import Shortage
from gpu_healthcheck.healthcheck.settings.reading import SettingsError, complain_of_environment, read_variables

log = structlog.get_logger()

FAILED = 1
_STANDBY_SECONDS = 2.0
_OURS = (
    "kernel-log",
    "judge",
    "node-watch",
    "node-writer",
    "reporter",
    "slot-requests",
    "deep-processes",
)
_ONCE_SECONDS = 0.2
_PORT_SECONDS = 1.0


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        settings = read_variables(AgentSettings)
    except SettingsError as error:
        return complain_of_environment("agent", error)
    log_as_json(settings.log_level)
    log.info("settings", **{key: str(value) for key, value in asdict(settings).items()})
    try:
        cluster = Cluster()
    except ClusterError as error:
        complain("agent", str(error))
        return COULD_NOT
    threading.excepthook = _thread_failed
    read_all()
    return _run(settings, cluster, stop_at_signals(), options)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = Options("agent", __doc__)
    parser.add_argument(
        "--once", action="store_true", help="run check cycles until the verdict is final, write it, and exit"
    )
    parser.add_argument("--dry-run", action="store_true", help="log the writes instead of sending them")
    return parser.parse_args(arguments)


def _run(settings: AgentSettings, cluster: Cluster, stop: threading.Event, options: argparse.Namespace) -> int:
    telemetry = Telemetry()
    serving = _Serving()
    try:
        _serve(telemetry, settings.metrics_port, serving)
    except OSError as error:
        complain("agent", f"METRICS_PORT {settings.metrics_port}: {error.strerror}")
        return USAGE
    file = None if options.dry_run else MemoryFile(settings.state_dir)
    if file is not None and not _hold(file, telemetry):
        if options.once:
            complain("agent", "--once: another agent of this node is running")
            return COULD_NOT
        log.warning("another agent of this node holds the lock of the memory; checking without writes until it exits")
        serving.agent = Agent(settings, cluster, None, telemetry, write=False)
        _stand_by(serving.agent, file, telemetry, stop)
    if not stop.is_set():
        serving.agent = Agent(settings, cluster, file, telemetry, write=not options.dry_run)
        if file is not None:
            _serve_root(settings.state_dir, serving)
        _work(serving.agent, stop, once=options.once)
    # Threads may be inside a request or a hung check; none of their remaining work is needed.
    sys.stderr.flush()
    os._exit(0)


def _stand_by(agent: Agent, file: MemoryFile, telemetry: Telemetry, stop: threading.Event) -> None:
    """Wait until this process holds the lock of the memory."""
    agent.start()
    while not stop.is_set() and not _hold(file, telemetry):
        stop.wait(_STANDBY_SECONDS)
    agent.end()


def _work(agent: Agent, stop: threading.Event, *, once: bool) -> None:
    agent.start()
    while once and not stop.is_set() and not agent.cluster.node_writer.is_done:
        stop.wait(_ONCE_SECONDS)
    if not once:
        stop.wait()
    agent.end()


@dataclass
class _Serving:
    """Sources of /healthz and /readyz: the current agent."""

    agent: Agent | None = None

    def healthy(self) -> bool:
        return self.agent is None or self.agent.healthy()

    def ready(self) -> bool:
        return self.agent is not None and self.agent.ready()

    async def verdict(self, _: Request) -> Page:
        """Return the node's verdict, for this machine's root: no pod's, which belongs to the other server's loop."""
        return await self.gate(Request())

    async def gate(self, request: Request) -> Page:
        if self.agent is None:
            return Page(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"the agent starts\n")
        return await self.agent.gate.page(request.query)


def _serve(telemetry: Telemetry, port: int, serving: _Serving) -> None:
    """Serve now or when the port becomes free. Raises OSError if waiting would not help.

    On the host network, a pod that was just deleted may still hold the port; the node is watched meanwhile.
    """

    def try_once() -> None:
        bound_port = serve(telemetry, port, serving.healthy, serving.ready, {GATE: serving.gate})
        log.info("serving /metrics, /healthz and /readyz", port=bound_port)

    try:
        try_once()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        log.warning("the port is in use; /metrics, /healthz and /readyz wait for it", port=port)
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(OSError), wait=tenacity.wait_fixed(_PORT_SECONDS)
        )
        threading.Thread(target=again, args=(try_once,), name="port", daemon=True).start()


def _serve_root(folder: Path, serving: _Serving) -> None:
    """Serve the node's verdict to root's `gate --local`, which without it checks the machine itself."""
    try:
        HttpServer({GATE: serving.verdict}, http_server.listen_for_root(folder / SOCKET)).start()
    except OSError as error:
        log.warning("gate --local can't ask this agent", socket=str(folder / SOCKET), error=str(error))


def _thread_failed(ended: threading.ExceptHookArgs) -> None:
    """End the process after a thread failed, because the agent would miss faults without it.

    The kubelet starts a new process. Each thread reports errors and continues, so this should not happen.
    """
    name = ended.thread.name if ended.thread else ""
    exception = (ended.exc_type, ended.exc_value, ended.exc_traceback)
    log.error("a thread failed", thread=name, exc_info=exception)
    # The scheduler's thread may fail during shutdown; /healthz shows its other failures.
    if name in _OURS:
        sys.stderr.flush()
        os._exit(FAILED)


def _hold(file: MemoryFile, telemetry: Telemetry) -> bool:
    """Whether this process is the agent that writes; true if there is no disk for the lock."""
    try:
        held = file.acquire()
    except Shortage as error:
        log.warning("it is unknown whether another agent holds the lock of the memory", error=str(error))
        return False
    except MemoryFileError as error:
        telemetry.memory_errors.inc()
        log.warning("no node-local memory; continuing without it", error=str(error))
        return True
    telemetry.standby.set(not held)
    return held
