"""Check: each GPU still has the PCI switch and NUMA node at which this machine first had it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Evidence, Judgement, NotConfigured, Observation, Reason, Severity
from gpu_healthcheck.healthcheck.model.node_facts import GpuPosition
from gpu_healthcheck.healthcheck.probes import pci

MOVED = Reason(
    "GpuMoved",
    Severity.MONITOR,
    "A GPU is at another PCI switch or NUMA node: in this machine's first check cycle it was elsewhere.",
    "Compare `nvidia-smi topo -m` with a healthy node of the type; work bound to cores or network cards near its GPU "
    "runs slower until the node is replaced.",
    # If a function disappears during the probe, its position may be unreadable although its name was read.
    flickers=True,
    threshold="another position than in the first check cycle",
    source="this machine's memory",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    positions = {
        function.address: GpuPosition(function.numa_node, function.switch)
        for function in evidence[pci.FUNCTIONS]
        if function.is_gpu
    }
    if not positions:
        yield NotConfigured("no GPU on PCI")
        return
    first = expected.first.places
    moved = {address: position for address, position in positions.items() if first.get(address, position) != position}
    for address, position in moved.items():
        detail = f"{_words(position)}, at first {_words(first[address])}"
        yield MOVED.on(f"gpu/{address}", detail)
    summary = f"GPUs by NUMA node: {_by_node(positions.values())}"
    yield (
        Observation(summary, "the same positions as in the first check cycle", MOVED.source)
        if first
        else Observation(summary)
    )


def _by_node(positions: Iterable[GpuPosition]) -> str:
    count = Counter(position.numa_node for position in positions)
    return ", ".join(f"{count[node]} on {node if node != pci.NO_NODE else 'none'}" for node in sorted(count))


def _words(position: GpuPosition) -> str:
    node = f"on NUMA node {position.numa_node}" if position.numa_node != pci.NO_NODE else "on no NUMA node"
    return f"{node} below {position.switch or 'the root'}"


CHECK = Check("gpu-placement", "3-topology-check", (pci.FUNCTIONS,), judge, (MOVED,))
