"""`gpu-healthcheck status`: the fleet as its nodes tell it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import Annotated, TypeVar

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.access import Context, Kubeconfig, cluster_of
from cli.allocation import page, read_allocation
from cli.utilization import Prometheus
from cli.words import SEVERITY_STYLES, STATUS_STYLES
from diagnosis.report.document import cluster_document
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError, Forbidden, NotFound
from healthcheck.cluster.kubeconfig import Access
from healthcheck.cluster.leases import Heartbeat
from healthcheck.deep.due import is_overdue, last_attempt, last_deep_test, obstacle
from healthcheck.host.console import Screen
from healthcheck.host.streams import complain, write_json
from healthcheck.memory.rows import ReleaseRow
from healthcheck.model import PREFIX, Status
from healthcheck.node.state import INSTANCE_TYPE, LAST_CHECK, RESULTS, SEVERITY, STATUS, NodeState
from healthcheck.settings import NodeSettings
from healthcheck.text.moments import moment, timestamp
from healthcheck.verdict import budget
from healthcheck.verdict import record as records
from healthcheck.verdict.record import AgentRecord

T = TypeVar("T")
COULD_NOT_LOOK = 2
_REFRESH_SECONDS = 5.0
_MOST = 10**9
"""More than any setting that is read here allows."""
_NOT_YET = "nobody found it idle, or its turn has not come; `gpu-healthcheck sweep --dry-run` says which"
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
    tested_at: str
    """When DCGM last tested it, whoever ran that; '' where nobody did."""
    tested_by: str
    test_result: str
    overdue: str
    """Why it was not tested for three intervals; '' where it was."""


@dataclass(frozen=True, slots=True)
class Fleet:
    budget: Budget
    nodes: list[Row]
    passed_over: list[str]
    """The objects that nobody can read, and why."""


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it live until Ctrl-C.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="table or json.")] = Output.TABLE,
    by_node: Annotated[bool, typer.Option("--allocation", help="Show who has which GPUs, node by node.")] = False,
    prometheus: Prometheus = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show every GPU node, worst first. Exit code: 0, or 2 when the cluster could not be read."""
    if prometheus and not by_node:
        raise typer.BadParameter("--prometheus goes with --allocation")
    try:
        if by_node:
            _show_allocation(Access(kubeconfig, context), output, prometheus)
            return
        unread: list[str] = []
        read = partial(read_fleet, cluster_of(Access(kubeconfig, context), unread.append), unread)
        if watch:
            _watch(read)
        elif output is Output.JSON:
            write_json(asdict(read()), indent=2)
        else:
            Screen.of_rows().print(_page(read()))
    except ClusterError as error:
        complain("status", str(error))
        raise typer.Exit(COULD_NOT_LOOK) from None


def _show_allocation(access: Access, output: Output, prometheus: str) -> None:
    told = read_allocation(access, prometheus)
    if output is Output.JSON:
        write_json(cluster_document(told), indent=2)
    else:
        screen = Screen.of_rows()
        for part in page(told, screen):
            screen.print(part, soft_wrap=isinstance(part, Text))
    if told.use_missing:
        raise ClusterError(told.use_missing)


def read_fleet(cluster: Cluster, unread: list[str]) -> Fleet:
    """Every GPU node, worst first, and the places that may be tainted. `unread`: what the cluster passes over."""
    unread.clear()
    nodes = {node.name: node for selector in GPU_NODES for node in cluster.list_nodes(selector)}
    now, config = datetime.now(UTC), _allowed(cluster.read_config)
    beats = _allowed(partial(cluster.list_heartbeats, now))
    interval = timedelta(seconds=_number(config, "DCGM_L2_INTERVAL", "dcgm_l2_interval_seconds") or 0)
    rows = [row_of_node(node, (beats or {}).get(node.name), interval, now) for node in nodes.values()]
    order = {word.value: place for place, word in enumerate(_WORST_FIRST)}
    rows.sort(key=lambda row: (order.get(row.status, len(order)), row.node))
    places = _budget(cluster, config, None if beats is None else len(beats))
    return Fleet(places, rows, list(dict.fromkeys(unread)))


def _budget(cluster: Cluster, config: Mapping[str, str] | None, fleet: int | None) -> Budget:
    holders = _allowed(lambda: {slot.holder for slot in cluster.list_slots()})
    percent = _number(config, "MAX_UNHEALTHY_PERCENT", "max_unhealthy_percent")
    places = None if fleet is None or percent is None else budget.allowed(fleet, percent)
    return Budget(None if holders is None else len(holders), places, fleet)


def _number(config: Mapping[str, str] | None, key: str, setting: str) -> int | None:
    """A setting of the ConfigMap; None where the agents go by what only they know: the last good value."""
    default = NodeSettings.model_fields[setting].default
    try:
        number = None if config is None else int(config.get(key, default))
    except ValueError:
        return None
    return number if number is None or 0 <= number <= _MOST else None


def _allowed(ask: Callable[[], T]) -> T | None:
    """The answer; None where a person may not see it, or it is not there."""
    try:
        return ask()
    except (Forbidden, NotFound):
        return None


def row_of_node(node: NodeState, beat: Heartbeat | None, interval: timedelta, now: datetime) -> Row:
    condition, record = node.condition() or {}, records.on_node(AgentRecord, node, RESULTS)
    age = (now - beat.renewed).total_seconds() if beat else None
    heard = beat.renewed + timedelta(seconds=beat.seconds) if beat else None
    tested = last_deep_test(node, now)
    overdue = is_overdue(node, tested, interval, now)
    return Row(
        node.name,
        node.labels.get(STATUS, ""),
        node.labels.get(SEVERITY, ""),
        node.labels.get(INSTANCE_TYPE, ""),
        str(condition.get("reason", "")),
        str(condition.get("message", "")),
        node.labels.get(LAST_CHECK, ""),
        node.tainted(),
        record.taint or "",
        _released(record.released),
        None if age is None else round(age, 1),
        beat is not None and age is not None and age > beat.seconds,
        timestamp(tested.at) if tested else "",
        tested.by if tested else "",
        tested.status if tested else "",
        (obstacle(node, heard, now) or str(last_attempt(node, now) or _NOT_YET)) if overdue else "",
    )


def _released(told: ReleaseRow | None) -> str:
    if told is None:
        return ""
    return f"by {told.by} at {timestamp(told.at) if told.at else None}: {told.reason}"


def _watch(read: Callable[[], Fleet]) -> None:
    with Live(_page(read()), console=Screen(), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(_REFRESH_SECONDS)
                try:
                    live.update(_page(read()), refresh=True)
                except ClusterError as error:
                    live.console.print(Text(f"{datetime.now(UTC):%H:%M:%S} {error}", "yellow"))
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
    for why, rows in groupby(sorted(fleet.nodes, key=lambda row: row.overdue), key=lambda row: row.overdue):
        if why:
            yield Text(f"\noverdue for a deep test: {', '.join(row.node for row in rows)}: {why}", "magenta")
    for what in fleet.passed_over:
        yield Text(f"\npassed over: {what}", "magenta")


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("node", "status", "severity", "taint", "type", "looked", "tested", "reason"):
        table.add_column(name, no_wrap=name in ("status", "severity", "taint", "looked", "tested"), overflow="fold")
    table.add_column("message", overflow="fold")
    for row in rows:
        table.add_row(
            row.node,
            Text(row.status or "-", _STATUS_STYLES.get(row.status, "")),
            Text(row.severity or "-", _SEVERITY_STYLES.get(row.severity, "")),
            "yes" if row.tainted else Text("withheld", "bold red") if row.taint == "withheld" else "",
            row.instance_type,
            _looked(row),
            _tested(row),
            row.reason if row.status != Status.PASS else "",
            row.message if row.status != Status.PASS else row.released and f"released {row.released}",
        )
    return table


def _looked(row: Row) -> Text:
    if row.heartbeat_age_seconds is None:
        return Text("never" if not row.status else "?", "magenta")
    word = _ago(row.heartbeat_age_seconds)
    return Text(f"{word}, silent" if row.silent else word, "magenta" if row.silent else "")


def _tested(row: Row) -> Text:
    """How long ago DCGM tested it, and what came of it."""
    if not row.tested_at:
        return Text("overdue" if row.overdue else "never", "magenta" if row.overdue else "")
    age = (datetime.now(UTC) - moment(row.tested_at)).total_seconds()
    words = [f"{row.test_result} {_ago(age)}", *(["overdue"] if row.overdue else [])]
    return Text(", ".join(words), "magenta" if row.overdue else _STATUS_STYLES.get(row.test_result, ""))


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f}s ago"
    return f"{seconds / 60:.0f}m ago" if seconds < 7200 else f"{seconds / 3600:.0f}h ago"
