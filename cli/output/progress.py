"""Progress of a command: a bar, or a line per step, and on a terminal also the current stage of each node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Self

from msgspec import Struct
from rich.console import ConsoleRenderable, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from gpu_healthcheck.cli.output.lines import COMMAND, print_line
from gpu_healthcheck.healthcheck.host.console import Screen, shortened
from gpu_healthcheck.healthcheck.text.printable import printable

_REFRESHES_PER_SECOND = 2


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Yield a function that advances a bar on standard error by one step; without a terminal, no bar."""
    screen = Screen(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn()
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda *_: bar.advance(task)


class NodeProgress(Struct, frozen=True):
    """Output for one node: `say` prints a line, `stage` sets the current stage."""

    say: Callable[..., None]
    stage: Callable[[str], None]


class ProgressDisplay:
    """Progress as a context manager, `with ProgressDisplay(console, nodes) as progress:`. Thread-safe.

    Without a terminal, it prints plain lines.
    """

    def __init__(self, console: Screen, nodes: Sequence[str]) -> None:
        self._console = console
        self._several = len(nodes) > 1
        self._stages: dict[str, tuple[str, float]] = {}
        self._live = Live(
            console=console,
            get_renderable=self._now,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def of_node(self, node: str) -> NodeProgress:
        return NodeProgress(partial(self.say, node), partial(self.stage, node))

    def say(self, node: str, text: str, style: str = "") -> None:
        """Print one line with the time, and with the node's name if there are several nodes."""
        time_of_day = Text(f"{datetime.now().astimezone():%H:%M:%S}", "dim")
        owner = f"{node} | " if self._several else ""
        line = Text.assemble((owner, "dim"), (printable(text), style))
        print_line(self._console, time_of_day, line, whole=text.lstrip().startswith(COMMAND))

    def stage(self, node: str, text: str) -> None:
        """Set the present stage of the node; '' ends it."""
        if self._stages.get(node, ("", 0.0))[0] != text:
            self._stages[node] = (text, time.monotonic())

    def _now(self) -> ConsoleRenderable:
        return Group(*(self._line(node, *stage) for node, stage in sorted(self._stages.items()) if stage[0]))

    def _line(self, node: str, text: str, since: float) -> Text:
        minutes, seconds = divmod(int(time.monotonic() - since), 60)
        age = (f" {minutes}:{seconds:02} ", "dim")
        (name,) = shortened([node], self._console.width // 2)
        return Text.assemble((name, "bold"), age, printable(text), no_wrap=True, overflow="ellipsis")
