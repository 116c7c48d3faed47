"""`gpu-healthcheck status --allocation`: pods that hold GPUs, and free CPU and memory on nodes with free GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from rich.table import Table
from rich.text import Text

from diagnosis.answers.allocation import Allocation, NodeAllocation, Pool, totals
from diagnosis.facts.quantity import shown
from diagnosis.hami.card_row import COLUMNS, card_row
from healthcheck.host.console import Screen
from healthcheck.text.naming import named

_MOST_HOLDERS = 4
_WIDEST = 1 << 13
"""Width in columns at which the tables are measured, so that no cell is wrapped."""
_POOL_COLUMNS = ("Node", "GPUs", "Offered", "Held", "Free", "By whom", "CPU left", "Memory left")
_USED = "Used"


def page(allocation: Allocation, screen: Screen) -> Iterator[Text | Table]:
    """Yield the output in order: a table, or on a narrow terminal each node followed by its rows."""
    if not allocation.pods_seen:
        yield Text("Pods can't be listed, so it is unknown which GPUs are in use.", "bold yellow")
    tables = [_table(allocation), *([_cards(allocation)] if any(node.cards for node in allocation.nodes) else [])]
    wide = screen.options.update_width(_WIDEST)
    if all(screen.measure(table, options=wide).maximum <= screen.width for table in tables):
        yield from tables
    else:
        yield from (line for node in allocation.nodes for line in _lines(node, allocation.pods_seen))
    for total in totals(allocation):
        free = f"{total.free} of {total.total} free" if allocation.pods_seen else f"{total.total} in total"
        yield Text(f"{total.kind} {total.resource}: {free}")


def _table(allocation: Allocation) -> Table:
    used = any(node.loads for node in allocation.nodes)
    table = Table(*_POOL_COLUMNS, *([_USED] if used else []), box=None, pad_edge=False, header_style="bold")
    for node in allocation.nodes:
        for place, pool in enumerate(node.pools or (None,)):
            percent = "" if place or node.percent is None else f"{node.percent:.0f} %"
            table.add_row(*_cells(node, pool, allocation.pods_seen), *([percent] if used else []))
    return table


def _lines(node: NodeAllocation, pods_seen: bool) -> Iterator[Text]:
    """Yield the lines of one node for a narrow terminal. Names are complete, and long lines wrap."""
    left = f"{shown('cpu', node.cpu_free)} CPU, {shown('memory', node.memory_free)} left" if pods_seen else ""
    used = f"{node.percent:.0f} % used" if node.percent is not None else ""
    gpus = "? GPUs" if node.gpus is None else f"{node.gpus} GPUs"
    message = ", ".join(filter(None, (node.closed and f"takes no new pods ({node.closed})", gpus, used, left)))
    yield Text.assemble((node.node, "bold" if node.usable else "dim"), f": {message}")
    for pool in node.pools:
        given = f"{pool.held}{_shares(pool)} held, {pool.free} free" if pods_seen else "their owners are not visible"
        yield Text(
            f"  {pool.total} {pool.kind} {pool.resource}: {given}", "yellow" if pool.total < pool.capacity else ""
        )
        for holder in islice(pool.holders, _MOST_HOLDERS):
            yield Text(f"    {holder.pod.partition('/')[2]} {holder.amount}")
        if len(pool.holders) > _MOST_HOLDERS:
            yield Text(f"    and {len(pool.holders) - _MOST_HOLDERS} more")
    for card in node.cards:
        row = card_row(card, pods_seen)
        free = f"free: {row.slots} slots, {row.memory}, {row.cores} cores"
        yield Text(f"  card {row.card}: {free}", "" if row.usable else "dim")
        yield from (Text(f"    {pod}") for pod in row.pods)


def _cards(allocation: Allocation) -> Table:
    """Return the table of cards that HAMi shares: a pod needs its request free on single cards."""
    table = Table("Node", *COLUMNS, box=None, pad_edge=False, header_style="bold")
    for node in allocation.nodes:
        for card in node.cards:
            row = card_row(card, allocation.pods_seen, node.used)
            table.add_row(*map(Text, (node.node, *row)), style="" if row.usable and node.usable else "dim")
    return table


def _cells(node: NodeAllocation, pool: Pool | None, pods_seen: bool) -> Iterable[Text]:
    yield Text(node.node if node.usable else f"{node.node} ({node.closed})", "" if node.usable else "dim")
    yield Text("?" if node.gpus is None else str(node.gpus))
    if pool is None:
        yield from map(Text, ("none", "", "", "", "", ""))
        return
    yield Text(f"{pool.total} {pool.kind} {pool.resource}", "yellow" if pool.total < pool.capacity else "")
    if not pods_seen:
        yield from map(Text, ("?", "?", "", "?", "?"))
        return
    yield Text(f"{pool.held}{_shares(pool)}")
    yield Text(str(pool.free), "green" if pool.free else "")
    yield Text(_holders(pool))
    yield Text(shown("cpu", node.cpu_free))
    yield Text(shown("memory", node.memory_free))


def _shares(pool: Pool) -> str:
    """Return memory and cores of GPUs that HAMi shares; '' for others."""
    if not pool.memory:
        return ""
    memory, cores = (sum(getattr(holder, name) for holder in pool.holders) for name in ("memory", "cores"))
    return f" ({memory / 1024:.0f} of {pool.memory / 1024:.0f} GiB, {cores} of {pool.cores} % cores)"


def _holders(pool: Pool) -> str:
    return named((f"{holder.pod.partition('/')[2]} {holder.amount}" for holder in pool.holders), _MOST_HOLDERS)
