"""From the start of `python -m agent` to its first verdict on the Node, as somebody else's watch sees it."""

from __future__ import annotations

from bench.node_watch import status
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.stage import Stage
from sim.node import SimulatedNode

AIM_SECONDS = 2.0
_NOTES = ("start: the files are in the page cache but for the first time; what a node adds by pulling an image is not in it",)


def measure(stage: Stage) -> Outcome:
    node = stage.make_node()
    samples = [_once(stage, node) for _ in range(stage.length.starts)]
    worst = max(samples)
    figure = f"p50 {percentile(samples, 0.5):.2f}, max {worst:.2f} s ({len(samples)} times)"
    row = Row("start → first verdict on the node", f"≤ {AIM_SECONDS:g} s", figure, stage.length.met(worst <= AIM_SECONDS))
    return Outcome((row,), {"seconds": summary(samples)}, _NOTES)


def _once(stage: Stage, node: SimulatedNode) -> float:
    """A node that nobody has looked at and that remembers nothing. Returns seconds."""
    node.kernel_log.replay()
    seat = stage.seat(node)
    with stage.watch(seat) as watch, seat.run("-m", "agent") as program:
        try:
            sighting = watch.wait_for(lambda node: bool(status(node)), "a first verdict")
        except CouldNotMeasure as error:
            raise CouldNotMeasure(f"{error}\n{program.tail()}") from error
        if status(sighting.node) != "pass":
            raise CouldNotMeasure(f"the first verdict was {status(sighting.node)!r}\n{program.tail()}")
        seconds = (sighting.at_ns - program.started_ns) / 1e9
    stage.leave(seat)
    return seconds
