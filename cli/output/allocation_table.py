"""`gpu-healthcheck status --allocation`: pods that hold GPUs, and free CPU and memory on nodes with free GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from gpu_healthcheck.diagnosis.answers.allocation import Allocation, NodeAllocation, Pool, totals
from gpu_healthcheck.diagnosis.facts.quantity import shown
from gpu_healthcheck.diagnosis.hami.cards import card_row
from gpu_healthcheck.healthcheck.host.console import Cell, FittedTable, TableColumn, fitted_table
from gpu_healthcheck.healthcheck.text.naming import named

_MOST_HOLDERS = 4
_POOLS = (
    TableColumn("Node", is_name=True),
    TableColumn("GPUs", leaves=1),
    TableColumn("Offered", least=24),
    TableColumn("Held", least=10),
    TableColumn("Free"),
    TableColumn("Held by", least=20, is_repeated=True),
    TableColumn("CPU left", leaves=3),
    TableColumn("Memory left", leaves=2),
)
_USED = TableColumn("Used", leaves=4)
_CLOSED = TableColumn("No new pods", least=12, leaves=5, is_repeated=True)
_CARDS = (
    TableColumn("Node", is_name=True),
    TableColumn("Card", least=20),
    TableColumn("Slots free"),
    TableColumn("Memory free"),
    TableColumn("Cores free", leaves=1),
    TableColumn("Pods", least=12, is_repeated=True),
)


def page(allocation: Allocation, width: int | None) -> Iterator[Text]:
    """Yield the lines: a line for each resource of a node, one for each card that HAMi shares, and the totals.

    `width` None: nothing is shortened.
    """
    if not allocation.pods_seen:
        yield Text("Pods can't be listed, so it is unknown which GPUs are in use.", "bold yellow")
    for table in (_pools(allocation, width), _cards(allocation, width)):
        yield from (*table.lines, *table.notes)
    for total in totals(allocation):
        free = f"{total.free} of {total.total} free" if allocation.pods_seen else f"{total.total} in total"
        yield Text(f"{total.kind} {total.resource}: {free}")


def _pools(allocation: Allocation, width: int | None) -> FittedTable:
    has_loads = any(node.loads for node in allocation.nodes)
    is_closed = any(node.closed for node in allocation.nodes)
    columns = [*_POOLS, *([_USED] if has_loads else []), *([_CLOSED] if is_closed else [])]
    rows = [
        [
            *_cells(node, pool, allocation.pods_seen),
            *([("" if place or node.percent is None else f"{node.percent:.0f} %", "")] if has_loads else []),
            *([(node.closed, "dim")] if is_closed else []),
        ]
        for node in allocation.nodes
        for place, pool in enumerate(node.pools or (None,))
    ]
    return fitted_table(columns, rows, width)


def _cards(allocation: Allocation, width: int | None) -> FittedTable:
    """Return the table of cards that HAMi shares: a pod needs its request free on single cards."""
    rows = []
    for node in allocation.nodes:
        for card in node.cards:
            row = card_row(card, allocation.pods_seen, node.used)
            rows.append([(text, "" if row.usable and node.usable else "dim") for text in (node.node, *row)])
    return fitted_table(_CARDS, rows, width) if rows else FittedTable([], [])


def _cells(node: NodeAllocation, pool: Pool | None, pods_seen: bool) -> Iterable[Cell]:
    yield node.node, "" if node.usable else "dim"
    yield "?" if node.gpus is None else str(node.gpus), ""
    if pool is None:
        yield from ((text, "") for text in ("none", "", "", "", "", ""))
        return
    yield f"{pool.total} {pool.kind} {pool.resource}", "yellow" if pool.total < pool.capacity else ""
    if not pods_seen:
        yield from ((text, "") for text in ("?", "?", "", "?", "?"))
        return
    yield f"{pool.held}{_shares(pool)}", ""
    yield str(pool.free), "green" if pool.free else ""
    yield named((f"{holder.pod.partition('/')[2]} {holder.amount}" for holder in pool.holders), _MOST_HOLDERS), ""
    yield shown("cpu", node.cpu_free), ""
    yield shown("memory", node.memory_free), ""


def _shares(pool: Pool) -> str:
    """Return memory and cores of GPUs that HAMi shares; '' for others."""
    if not pool.memory:
        return ""
    memory, cores = (sum(getattr(holder, name) for holder in pool.holders) for name in ("memory", "cores"))
    return f" ({memory / 1024:.0f} of {pool.memory / 1024:.0f} GiB, {cores} of {pool.cores} % cores)"
