"""Time from the start of the agent's program to its first verdict in a client's watch of the Node."""

from __future__ import annotations

from bench.node_watch import status
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.stage import Stage
from gpu_healthcheck.sim.node import SimulatedNode

AIM_SECONDS = 2.0
_PROGRAM = ("-m", "agent")
_COMMAND = ("-m", "cli", "agent")
"""Command of the DaemonSet, `gpu-healthcheck agent`: the console script becomes the program."""
_NOTES = ("start: the files are in the page cache except the first time; pulling an image is not included",)


def measure(stage: Stage) -> Outcome:
    node = stage.make_node()
    program = [_once(stage, node, _PROGRAM) for _ in range(stage.length.starts)]
    command = [_once(stage, node, _COMMAND) for _ in range(stage.length.starts)]
    rows = (
        _row(stage, "start of the agent → first verdict on the node", program),
        _row(stage, "the same, through `gpu-healthcheck agent`", command),
    )
    return Outcome(rows, {"seconds": summary(program), "seconds_by_command": summary(command)}, _NOTES)


def _row(stage: Stage, what: str, samples: list[float]) -> Row:
    worst = max(samples)
    figure = f"p50 {percentile(samples, 0.5):.2f}, max {worst:.2f} s ({len(samples)} times)"
    return stage.at_most(what, AIM_SECONDS, "s", worst, figure)


def _once(stage: Stage, node: SimulatedNode, words: tuple[str, ...]) -> float:
    """Start on a node without a record and a memory file. Returns seconds."""
    node.kernel_log.replay()
    seat = stage.seat(node)
    with stage.watch(seat) as watch, seat.run(*words) as program:
        try:
            observation = watch.wait_for(lambda node: bool(status(node)), "a first verdict")
        except CouldNotMeasure as error:
            raise CouldNotMeasure(f"{error}\n{program.tail()}") from error
        if status(observation.node) != "pass":
            raise CouldNotMeasure(f"the first verdict was {status(observation.node)!r}\n{program.tail()}")
        seconds = (observation.at_ns - program.started_ns) / 1e9
    stage.leave(seat)
    return seconds
