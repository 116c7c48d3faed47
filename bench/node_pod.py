"""Our image and manifests on a real kubelet, containerd and runc: time until a fresh node passes, memory of the pod.

It needs Debian and root (`python -m sim.real_node deps`), and no other running node.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.length import Length
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.stage import INSTANCE_TYPE, Stage
from sim.node import SimulatedNode
from sim.real_node import RealNode, images, needs
from sim.real_node.agent_pod import AgentPod, memory_mib

AIM_SECONDS = 3.0
AIM_MIB = 72.0
FLAT_MIB = 2.0
"""Allowed change of the pod's memory by a flood, in MiB."""
LINES_PER_SECOND = 10_000
_PULSES_PER_SECOND = 100
_P = "gpu-healthcheck.aws-samples.io"
_MEMORY = "/var/lib/gpu-healthcheck"
_EVERY_SECONDS = 1.0
_NOTES = (
    "node-pod: the image is already in containerd, with a stand-in base (Debian's Python); target slim",
    "          usage is the control group of the pod, pause container and page cache included",
)

Sizes = dict[str, float]


def measure(stage: Stage) -> Outcome:
    if reason := needs.missing():
        raise CouldNotMeasure(reason)
    image = images.ours()
    length = stage.length
    with SimulatedNode.create(stage.folder / "gpu-node-1", INSTANCE_TYPE) as host, RealNode(host.root) as node:
        node.load(image)
        pod = AgentPod(node)
        starts = [_seconds_to_pass(node, pod) for _ in range(length.node_starts)]
        group = pod.memory_group()
        quiet = _watch(group, length.window_seconds)
        flood, rate = _flood(host, group, length.flood_seconds)
        after = memory_mib(group)
        if pod.memory_group() != group:
            raise CouldNotMeasure(f"the pod was replaced during the measurement\n{pod.logs()}")
    rows = (_start_row(length, starts), _quiet_row(length, quiet), _flood_row(length, quiet[-1], flood, rate))
    raw = {"seconds": summary(starts), "quiet_mib": quiet, "flood_mib": flood, "after_mib": after, "lines_per_s": rate}
    return Outcome(rows, raw, _NOTES)


def _seconds_to_pass(node: RealNode, pod: AgentPod) -> float:
    """Return the seconds until a Node without a record and without a memory file passes."""
    node.kubectl("delete", "-f", node.manifests, "--ignore-not-found", "--timeout=90s")
    node.run("rm", "-rf", _MEMORY)
    node.kubectl("label", "node", node.name, *(f"{_P}/{key}-" for key in ("status", "severity", "last-check")))
    node.kubectl("annotate", "node", node.name, f"{_P}/results-")
    node.kubectl("apply", "-f", node.manifests)
    pod.ready()
    status = node.get(f"/api/v1/nodes/{node.name}")["metadata"]["labels"].get(f"{_P}/status")
    if status != "pass":
        raise CouldNotMeasure(f"the node's status is {status}\n{pod.logs()}")
    return pod.seconds_to_first_write()


def _watch(group: Path, seconds: float) -> list[Sizes]:
    """Sample the pod's memory from the agent's recent start until this time has passed."""
    sizes = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(_EVERY_SECONDS)
        sizes.append(memory_mib(group))
    return sizes


def _flood(host: SimulatedNode, group: Path, seconds: float) -> tuple[list[Sizes], float]:
    """Return the pod's memory during the flood, and the lines per second that were written."""
    sizes, written, begin = [], 0, time.monotonic()
    next_look = begin + _EVERY_SECONDS
    while (now := time.monotonic()) < begin + seconds:
        due = int((now - begin) * LINES_PER_SECOND) - written
        for _ in range(due):
            host.kernel_log.write(f"nfs: server 10.0.0.{written % 250} not responding, still trying")
            written += 1
        if now >= next_look:
            sizes.append(memory_mib(group))
            next_look += _EVERY_SECONDS
        time.sleep(1 / _PULSES_PER_SECOND)
    return sizes, written / (time.monotonic() - begin)


def _start_row(length: Length, starts: list[float]) -> Row:
    figure = f"p50 {percentile(starts, 0.5):.2f}, max {max(starts):.2f} s ({len(starts)} times)"
    met = length.met(max(starts) <= AIM_SECONDS)
    return Row("container start → `pass` on a fresh real node", f"≤ {AIM_SECONDS:g} s", figure, met)


def _quiet_row(length: Length, quiet: list[Sizes]) -> Row:
    figure = f"{_words(quiet[-1])}; most {max(entry['usage'] for entry in quiet):.1f} MiB"
    what = f"the pod's control group after {length.window_seconds / 60:g} min"
    return Row(what, f"≤ {AIM_MIB:g} MiB", figure, length.met(quiet[-1]["usage"] <= AIM_MIB))


def _flood_row(length: Length, before: Sizes, flood: list[Sizes], rate: float) -> Row:
    most = max(flood, key=lambda entry: entry["usage"])
    grown = most["usage"] - before["usage"]
    figure = f"{_words(most)} at most, {grown:+.1f} MiB, {rate:,.0f} lines/s"
    what = f"the same under {LINES_PER_SECOND:,} kernel lines/s for {length.flood_seconds:g} s"
    return Row(what, f"within {FLAT_MIB:g} MiB", figure, length.met(grown <= FLAT_MIB))


def _words(sizes: Sizes) -> str:
    return ", ".join(f"{name} {size:.1f}" for name, size in sizes.items()) + " MiB"
