"""`gpu-healthcheck status`: the fleet as its nodes tell it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.words import SEVERITY_STYLES, STATUS_STYLES
from healthcheck import budget
from healthcheck import record as records
from healthcheck.cluster import Cluster, ClusterError, Forbidden, Heartbeat, NotFound
from healthcheck.model import PREFIX, Status
from healthcheck.node import INSTANCE_TYPE, LAST_CHECK, RESULTS, SEVERITY, STATUS, NodeState
from healthcheck.record import RecordError
from healthcheck.settings import NodeSettings

T = TypeVar("T")
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
class Budget:
    """The fleet's places for tainted nodes. None: the cluster does not let us read it."""

    used: int | None
    allowed: int | None
    fleet: int | None


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
    taint: str
    """What the agent's record says of it: `set`, `withheld`, `off`, or ''."""
    released: str
    """The last release: who, when and why."""
    heartbeat_age_seconds: float | None
    silent: bool
    """The agent has not looked for longer than its heartbeat is good."""


@dataclass(frozen=True, slots=True)
class Fleet:
    budget: Budget
    nodes: list[Row]


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
            sys.stdout.write(json.dumps(asdict(read_fleet(cluster)), indent=2) + "\n")
        else:
            Console(highlight=False).print(_page(read_fleet(cluster)))
    except ClusterError as error:
        sys.stderr.write(f"gpu-healthcheck status: {error}\n")
        raise typer.Exit(COULD_NOT_LOOK) from None


def read_fleet(cluster: Cluster) -> Fleet:
    """Every GPU node, worst first, and the places that may be tainted."""
    nodes = {node.name: node for selector in GPU_NODES for node in cluster.list_nodes(selector)}
    beats = _allowed(cluster.list_heartbeats)
    now = datetime.now(UTC)
    rows = [_row(node, (beats or {}).get(node.name), now) for node in nodes.values()]
    order = {word.value: place for place, word in enumerate(_WORST_FIRST)}
    rows.sort(key=lambda row: (order.get(row.status, len(order)), row.node))
    return Fleet(_budget(cluster, None if beats is None else len(beats)), rows)


def _budget(cluster: Cluster, fleet: int | None) -> Budget:
    slots, config = _allowed(cluster.list_slots), _allowed(cluster.read_config)
    percent = _percent(config)
    places = None if fleet is None or percent is None else budget.allowed(fleet, percent)
    return Budget(None if slots is None else len(slots), places, fleet)


def _percent(config: Mapping[str, str] | None) -> int | None:
    """None where the agents go by what only they know: the last good value."""
    default = NodeSettings.model_fields["max_unhealthy_percent"].default
    try:
        return None if config is None else int(config.get("MAX_UNHEALTHY_PERCENT", default))
    except ValueError:
        return None


def _allowed(ask: Callable[[], T]) -> T | None:
    """The answer; None where a person may not see it, or it is not there."""
    try:
        return ask()
    except (Forbidden, NotFound):
        return None


def _row(node: NodeState, beat: Heartbeat | None, now: datetime) -> Row:
    condition, record = node.condition() or {}, _record(node)
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
        str(record.get("taint", "")),
        _released(record),
        None if age is None else round(age, 1),
        beat is not None and age is not None and age > beat.seconds,
    )


def _record(node: NodeState) -> dict[str, Any]:
    try:
        return records.load(node.annotations.get(RESULTS, "{}"))
    except RecordError:
        return {}


def _released(record: Mapping[str, Any]) -> str:
    told = record.get("released")
    return f"by {told.get('by')} at {told.get('at')}: {told.get('reason')}" if isinstance(told, dict) else ""


def _watch(cluster: Cluster) -> None:
    with Live(_page(read_fleet(cluster)), console=Console(highlight=False), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(_REFRESH_SECONDS)
                try:
                    live.update(_page(read_fleet(cluster)), refresh=True)
                except ClusterError as error:
                    live.console.print(f"[yellow]{datetime.now(UTC):%H:%M:%S} {error}[/yellow]")
        except KeyboardInterrupt:
            return


def _page(fleet: Fleet) -> Group:
    return Group(_table(fleet.nodes), Text.assemble("\n", *_budget_words(fleet)))


def _budget_words(fleet: Fleet) -> Iterator[Text]:
    used, places, size = ("?" if one is None else str(one) for one in astuple(fleet.budget))
    yield Text(f"{used} of {places} places for tainted nodes are taken; {size} nodes have an agent")
    withheld = [row.node for row in fleet.nodes if row.taint == "withheld"]
    if withheld:
        yield Text(f"\nnot tainted though their agents want it: {', '.join(withheld)}", "bold red")


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
            "yes" if row.tainted else Text("withheld", "bold red") if row.taint == "withheld" else "",
            row.instance_type,
            _looked(row),
            row.reason if row.status != Status.PASS else "",
            row.message if row.status != Status.PASS else row.released and f"released {row.released}",
        )
    return table


def _looked(row: Row) -> Text:
    if row.heartbeat_age_seconds is None:
        return Text("never" if not row.status else "?", "magenta")
    age = row.heartbeat_age_seconds
    word = f"{age:.0f}s ago" if age < 120 else f"{age / 60:.0f}m ago" if age < 7200 else f"{age / 3600:.0f}h ago"
    return Text(f"{word}, silent" if row.silent else word, "magenta" if row.silent else "")
