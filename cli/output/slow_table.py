"""The slow GPUs as a table with one line per GPU, and sentences below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.text import Text

from cli.fleet import ago
from cli.output.lines import MOST_NAMED, print_table, skipped
from cli.slow_gpus import SlowGpu, SlowGpus, loss_text
from cli.words import STYLES
from healthcheck.host.console import Screen
from healthcheck.host.fitted_table import Cell, TableColumn
from healthcheck.model import counted
from healthcheck.text.moments import moment_or_none
from healthcheck.text.naming import named

_COLUMNS = (
    TableColumn("node", is_name=True),
    TableColumn("gpu"),
    TableColumn("loss"),
    TableColumn("reason", least=21),
    TableColumn("since", leaves=2),
    TableColumn("type", least=12, leaves=1),
    TableColumn("detail", least=16, leaves=3),
)


def print_slow(slow: SlowGpus, *, wide: bool, headers: bool) -> None:
    """Print the table and the totals."""
    screen = Screen()
    if slow.gpus:
        print_table(_COLUMNS, map(_cells, slow.gpus), "gpu-healthcheck status --slow", wide=wide, headers=headers)
    if headers:
        if slow.gpus:
            screen.print()
        for sentence in _totals(slow):
            screen.print_words(Text(" ".join(sentence.plain.split()), sentence.style), indent=2)


def _cells(gpu: SlowGpu) -> Iterator[Cell]:
    yield gpu.node, ""
    yield gpu.gpu, ""
    yield loss_text(gpu), ""
    yield ", ".join(gpu.reasons), STYLES.get(gpu.severity, "")
    since = moment_or_none(gpu.since)
    yield ago(max((datetime.now(UTC) - since).total_seconds(), 0.0)) if since else "", ""
    yield gpu.instance_type, ""
    yield gpu.detail, ""


def _totals(slow: SlowGpus) -> Iterator[Text]:
    """Yield the number of slow GPUs, the nodes with several, and the nodes that could not be compared, by reason."""
    nodes = Counter(gpu.node for gpu in slow.gpus)
    records = f"by the records of {counted(slow.known, 'node')}; idle GPUs are not compared"
    if slow.gpus:
        yield Text(f"{counted(len(slow.gpus), 'slow GPU')} on {counted(len(nodes), 'node')}, {records}")
        several = [f"{node} ({number})" for node, number in nodes.most_common() if number > 1]
        if several:
            yield Text(f"nodes with several: {named(several, MOST_NAMED)}", "yellow")
    elif slow.known:
        yield Text(f"no GPU is slower than others, {records}", "green")
    elif not slow.not_compared:
        yield Text("there is no GPU node", "magenta")
    else:
        yield Text("no node could be compared, so it is unknown whether a GPU is slow", "magenta")
    for reason, _ in Counter(entry.reason for entry in slow.not_compared).most_common(MOST_NAMED):
        unknown = [entry.node for entry in slow.not_compared if entry.reason == reason]
        yield Text(f"not compared: {named(unknown, MOST_NAMED)}: {reason}", "magenta")
    yield from skipped(slow.passed_over)
