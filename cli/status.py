"""`gpu-healthcheck status`: the fleet as its nodes tell it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.words import SEVERITY_STYLES, STATUS_STYLES
from healthcheck.change import INSTANCE_TYPE, LAST_CHECK, SEVERITY, STATUS, NodeState
from healthcheck.cluster import Cluster, ClusterError, Forbidden, Heartbeat
from healthcheck.model import PREFIX, Status

COULD_NOT_LOOK = 2
_REFRESH_SECONDS = 5.0
GPU_NODES = (
    STATUS,
    f"{PREFIX}/enabled=true",
    "nvidia.com/gpu.present=true",
    "feature.node.kubernetes.io/pci-10de.present=true",
    "karpenter.k8s.aws/instance-gpu-manufacturer=nvidia",
)
"""Selectors of the nodes that the DaemonSet wants, and of those that an agent has spoken for."""
_STATUS_STYLES = {status.value: style for status, style in STATUS_STYLES.items()}
_SEVERITY_STYLES = {severity.name: style for severity, style in SEVERITY_STYLES.items()}
_WORST_FIRST = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS)


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Row:
    """One node. `status` is '' where no agent has said anything; `heartbeat_age_seconds` None where there is none."""

    node: str
    status: str
    severity: str
    instance_type: str
    reason: str
    message: str
    last_check: str
    tainted: bool
    heartbeat_age_seconds: float | None
    silent: bool
    """The agent has not looked for longer than its heartbeat is good."""


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it live until Ctrl-C.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="table or json.")] = Output.TABLE,
) -> None:
    """Show every GPU node, worst first. Exit code: 0, or 2 when the cluster could not be read."""
    try:
        cluster = Cluster()
        if watch:
            _watch(cluster)
        elif output is Output.JSON:
            sys.stdout.write(json.dumps([asdict(row) for row in read_rows(cluster)], indent=2) + "\n")
        else:
            Console(highlight=False).print(_table(read_rows(cluster)))
    except ClusterError as error:
        sys.stderr.write(f"gpu-healthcheck status: {error}\n")
        raise typer.Exit(COULD_NOT_LOOK) from None


def read_rows(cluster: Cluster) -> list[Row]:
    """The fleet, worst first."""
    nodes = {node.name: node for selector in GPU_NODES for node in cluster.list_nodes(selector)}
    try:
        beats = cluster.list_heartbeats()
    except Forbidden:
        beats = {}
    now = datetime.now(UTC)
    rows = [_row(node, beats.get(node.name), now) for node in nodes.values()]
    order = {word.value: place for place, word in enumerate(_WORST_FIRST)}
    return sorted(rows, key=lambda row: (order.get(row.status, len(order)), row.node))


def _row(node: NodeState, beat: Heartbeat | None, now: datetime) -> Row:
    condition = node.condition() or {}
    age = (now - beat.renewed).total_seconds() if beat else None
    return Row(
        node.name,
        node.labels.get(STATUS, ""),
        node.labels.get(SEVERITY, ""),
        node.labels.get(INSTANCE_TYPE, ""),
        str(condition.get("reason", "")),
        str(condition.get("message", "")),
        node.labels.get(LAST_CHECK, ""),
        node.tainted(),
        None if age is None else round(age, 1),
        beat is not None and age is not None and age > beat.seconds,
    )


def _watch(cluster: Cluster) -> None:
    with Live(_table(read_rows(cluster)), console=Console(highlight=False), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(_REFRESH_SECONDS)
                try:
                    live.update(_table(read_rows(cluster)), refresh=True)
                except ClusterError as error:
                    live.console.print(f"[yellow]{datetime.now(UTC):%H:%M:%S} {error}[/yellow]")
        except KeyboardInterrupt:
            return


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("node", "status", "severity", "taint", "type", "looked", "reason"):
        table.add_column(name, no_wrap=name in ("status", "severity", "taint", "looked"), overflow="fold")
    table.add_column("message", overflow="fold")
    for row in rows:
        table.add_row(
            row.node,
            Text(row.status or "-", _STATUS_STYLES.get(row.status, "")),
            Text(row.severity or "-", _SEVERITY_STYLES.get(row.severity, "")),
            "yes" if row.tainted else "",
            row.instance_type,
            _looked(row),
            row.reason if row.status != Status.PASS else "",
            row.message if row.status != Status.PASS else "",
        )
    return table


def _looked(row: Row) -> Text:
    if row.heartbeat_age_seconds is None:
        return Text("never" if not row.status else "?", "magenta")
    age = row.heartbeat_age_seconds
    word = f"{age:.0f}s ago" if age < 120 else f"{age / 60:.0f}m ago" if age < 7200 else f"{age / 3600:.0f}h ago"
    return Text(f"{word}, silent" if row.silent else word, "magenta" if row.silent else "")
