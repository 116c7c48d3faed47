"""`gpu-healthcheck evict`: evict the pods that use a faulty GPU, after an announcement (docs/evict.md)."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path

import structlog
from msgspec import Struct, field
from rich.text import Text

from gpu_healthcheck.evict.evictor import Evictor, targets_on
from gpu_healthcheck.evict.metrics import Metrics
from gpu_healthcheck.evict.select import SELECTOR, fault_on, marks_of, plan_evictions, stands_back
from gpu_healthcheck.evict.work import NodeWork
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.host import clock
from gpu_healthcheck.healthcheck.host.console import Cell, Screen, TableColumn, fitted_table
from gpu_healthcheck.healthcheck.host.http_server import HttpServer, Page, Request
from gpu_healthcheck.healthcheck.host.log import log_as_json
from gpu_healthcheck.healthcheck.host.metrics_page import metrics_page
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, FAULT, USAGE, Options, exit_code, stop_at_signals
from gpu_healthcheck.healthcheck.host.streams import complain, end_with_whoever_reads, take_any_text
from gpu_healthcheck.healthcheck.model import Shortage
from gpu_healthcheck.healthcheck.node.evictions import EvictionState, evictions_on
from gpu_healthcheck.healthcheck.node.state import SEVERITY
from gpu_healthcheck.healthcheck.settings.declaration import Folder, LogLevel, NodeSettings, Port
from gpu_healthcheck.healthcheck.settings.reading import (
    Settings,
    SettingsError,
    as_folder,
    complain_of_environment,
    read_settings,
    read_variables,
    seen_in,
)
from gpu_healthcheck.healthcheck.text.durations import timeout
from gpu_healthcheck.healthcheck.text.moments import timestamp

log = structlog.get_logger()

_SETTINGS_SECONDS, _WATCH_AGAIN_SECONDS = 5.0, 1.0
_COLUMNS = (
    TableColumn("node", is_name=True),
    TableColumn("pod", is_name=True),
    TableColumn("fault", least=30, is_repeated=True),
    TableColumn("evicted", least=20),
)


class EvictSettings(Struct, frozen=True, kw_only=True):
    """Settings of the program; `name` is the environment variable of a field."""

    config_dir: Folder = field(default=Path("/etc/gpu-healthcheck"), name="CONFIG_DIR")
    """The mounted ConfigMap."""
    metrics_port: Port = field(default=10634, name="METRICS_PORT")
    """Port of /metrics and /healthz; 0 chooses a free port and logs it."""
    log_level: LogLevel = field(default="info", name="LOG_LEVEL")


class ClusterPolicy:
    """The mounted ConfigMap. The last valid value of an invalid setting stays."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings = Settings()
        self.reload()

    def values(self) -> NodeSettings:
        return self._settings.values

    def reload(self) -> bool:
        """Read the ConfigMap if it changed, and return whether it did."""
        before = self._settings
        try:
            if before.seen is not None and before.seen == seen_in(self._folder):
                return False
            settings = read_settings(self._folder, before.texts)
        except Shortage as error:
            log.warning("the configuration can't be read now", error=str(error))
            return False
        for value in settings.bad if settings.bad != before.bad else ():
            log.error("a setting is invalid; its last valid value stays", setting=str(value))
        self._settings = settings.keeping(before)
        return self._settings.values != before.values


def main(arguments: list[str] | None = None) -> int:
    take_any_text()
    end_with_whoever_reads()
    options = _options(arguments)
    try:
        settings = read_variables(EvictSettings)
    except SettingsError as error:
        return complain_of_environment("evict", error)
    log_as_json(settings.log_level)
    policy = ClusterPolicy(settings.config_dir)
    try:
        asked = options.dry_run or options.context or options.kubeconfig
        access = Access(options.kubeconfig, options.context) if asked else None
        cluster = Cluster(partial(connect, access), _pass_over, options.request_timeout)
        if options.dry_run:
            return _show(cluster, policy.values() if settings.config_dir.exists() else _values_of(cluster))
    except ClusterError as error:
        complain("evict", str(error))
        return COULD_NOT
    metrics = Metrics()
    try:
        _serve(metrics, settings.metrics_port)
    except OSError as error:
        complain("evict", f"METRICS_PORT {settings.metrics_port}: {error.strerror}")
        return USAGE
    _run(cluster, policy, metrics, stop_at_signals())
    # Threads may be inside a request; a restarted process continues from the annotations.
    sys.stderr.flush()
    os._exit(0)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = Options("evict", __doc__)
    parser.add_argument("--dry-run", action="store_true", help="show the pods that would be evicted, why and when")
    parser.add_argument(
        "--context", default="", metavar="NAME", help="context of the kubeconfig; default: its current one"
    )
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="default: KUBECONFIG, else the pod's service account"
    )
    parser.add_argument("--request-timeout", type=timeout, metavar="TIME", help="limit of each request, as 5s; 0: none")
    return parser.parse_args(arguments)


def _run(cluster: Cluster, policy: ClusterPolicy, metrics: Metrics, stop: threading.Event) -> None:
    threading.excepthook = _thread_failed
    evictor = Evictor(cluster, policy.values, metrics)
    work = NodeWork(evictor.handle)
    watch = threading.Thread(target=_watch, args=(cluster, evictor, work), name="watch", daemon=True)
    watch.start()
    while not stop.wait(_SETTINGS_SECONDS):
        if policy.reload():
            severity = policy.values().evict_severity
            log.info("the configuration changed", evict_severity=severity.name if severity is not None else "")
            work.ask_all()


def _watch(cluster: Cluster, evictor: Evictor, work: NodeWork) -> None:
    """Handle each change of a faulty Node. First, all Nodes are read for the evictions of an earlier process."""
    is_first = True
    while True:
        try:
            if is_first:
                for node in cluster.nodes.select(SEVERITY):
                    if evictor.resume(node):
                        work.ask(node.name)
                is_first = False
                work.start()
            known = dict[str, object]()
            for name, state in cluster.nodes.watch_selected(SELECTOR):
                before, known[name] = known.get(name), marks_of(state) if state is not None else None
                if known[name] is None or known[name] != before:
                    work.ask(name)
        except ClusterError as error:
            log.warning("the watch of the Nodes was interrupted", error=str(error))
        time.sleep(_WATCH_AGAIN_SECONDS)


def _serve(metrics: Metrics, port: int) -> None:
    """Serve /metrics and /healthz. Raises OSError if the port is in use."""

    async def health(_: Request) -> Page:
        return Page(HTTPStatus.OK, "text/plain", b"ok\n")

    server = HttpServer({"/metrics": metrics_page(metrics.registry), "/healthz": health}, port)
    server.start()
    log.info("serving /metrics and /healthz", port=server.port)


def _values_of(cluster: Cluster) -> NodeSettings:
    """Return the settings of the cluster's ConfigMap, and report invalid ones. Raises ClusterError."""
    with as_folder(cluster.settings.read_config()) as folder:
        settings = read_settings(folder)
    for value in settings.bad:
        complain("evict", value.words)
    return settings.values


def _show(cluster: Cluster, values: NodeSettings) -> int:
    """Print the pods that would be evicted. Return FAULT if there are any, as `diagnose` does."""
    screen = Screen()
    rows = list(_rows(cluster, values))
    if values.evict_severity is None and not values.node_overrides:
        screen.print_words(Text("EVICT_SEVERITY is empty: no pod is evicted."))
    elif not rows:
        screen.print_words(Text("No pod of a tainted node uses a GPU with a finding at or above EVICT_SEVERITY."))
    else:
        table = fitted_table(_COLUMNS, rows, screen.width if screen.is_terminal else None)
        for line in table.lines:
            screen.print(line, soft_wrap=True)
        for note in table.notes:
            screen.print_words(note, indent=2)
    return FAULT if rows else 0


def _rows(cluster: Cluster, values: NodeSettings) -> Iterator[list[Cell]]:
    now = clock.now().wall
    for node in cluster.nodes.select(SELECTOR):
        of_node = values.for_labels(node.labels)
        fault = fault_on(node, of_node.evict_severity)
        if fault is None:
            continue
        before, delay = evictions_on(node, now).pods, timedelta(seconds=of_node.evict_delay_seconds)
        announced = {pod.uid for pod in before}
        for pod in plan_evictions(targets_on(cluster, node, fault), before, delay, now).pods:
            when = f"{of_node.evict_delay_seconds} s after its announcement"
            if pod.uid in announced and pod.due:
                when = f"at {timestamp(pod.due)}"
            if pod.state is EvictionState.REFUSED:
                when = f"refused by {pod.obstacle}"
            elif pod.state is EvictionState.REQUESTED:
                when = "requested, it is ending"
            elif pod.state is EvictionState.SLURM:
                when = "never: Slurm must drain it"
            elif stands_back(node, now):
                when = "after the run that uses the node"
            yield [(text, "") for text in (node.name, pod.title, str(fault), when)]


def _pass_over(what: str) -> None:
    log.warning("skipped: unreadable", what=what)


def _thread_failed(ended: threading.ExceptHookArgs) -> None:
    """End the process after a thread failed; the kubelet starts a new one, which continues."""
    log.error("a thread failed", exc_info=(ended.exc_type, ended.exc_value, ended.exc_traceback))
    sys.stderr.flush()
    os._exit(COULD_NOT)


if __name__ == "__main__":
    sys.exit(exit_code(main))
