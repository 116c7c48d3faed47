"""Scenarios: differences from a healthy node, and the expected output of `gpu-healthcheck check`.

A scenario is a folder with a `scenario.toml`: `stands_for` (the reason that it shows, "" for a healthy node), `twin_of`
(for a healthy node: the scenario of the fault that differs in one value; the name `FAULT-twin…` implies it),
`instance_type`, `faults` (methods of SimulatedNode with their arguments), `kernel_log` (lines), `[write]` (files below
the node's root) and `[expect]` (status, severity, findings as "Reason subject", causes of unobserved checks, each
once).

With `healthy_before` there are two cycles: the node was healthy that many seconds before its faults and values. Faults
that only a difference shows need this, such as a rate or a moved GPU. A single cycle of `check` does not find them.

With `outages` (device name and seconds ago, each) the memory has these outages of RDMA ports.
With `windows` that many check cycles, 300 s apart, observe the faults and values before the judged one. `[pods]` are
the pods that hold GPUs, each with the GPUs' indices.

With `[runtime]` the container runtime and its loader answer with these values (`RuntimeAnswer`). `runtime_classes` are
the cluster's, as name, handler and whether the nodeSelector selects this node. `check --root` uses neither: these nodes
are judged as by the agent.

With `from_within`, `check` treats the node as its own machine, as in the agent's pod, and finds its programs
(`fi_info`); with `--root` no program runs.
"""

import tomllib
from pathlib import Path
from typing import Any, Self

import msgspec

from gpu_healthcheck.sim.node import SimulatedNode

FOLDER = Path(__file__).parent


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Expected output of `check` for a scenario."""

    status: str
    severity: str
    findings: list[str]
    unobserved: list[str]


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scenario: its differences from a healthy node, and the expected output."""

    name: str
    stands_for: str
    twin_of: str
    instance_type: str
    expect: Expected
    healthy_before: float = 0.0
    """Seconds between the two check cycles; 0: only one cycle."""
    windows: int = 0
    from_within: bool = False
    faults: list[list[Any]] = []
    kernel_log: list[str] = []
    write: dict[str, str] = {}
    pods: dict[str, list[int]] = {}
    runtime: dict[str, Any] = {}
    runtime_classes: list[list[Any]] = []
    outages: list[list[Any]] = []

    @classmethod
    def load(cls, folder: Path) -> Self:
        fields = tomllib.loads((folder / "scenario.toml").read_text())
        return msgspec.convert({"name": folder.name, "twin_of": _named_after(folder.name), **fields}, cls)

    @property
    def needs_device_files(self) -> bool:
        """Whether only root can create the node."""
        return ["make_device_files"] in self.faults

    @property
    def is_seen_by_check(self) -> bool:
        """Whether a single check cycle of the node's files shows the fault."""
        return not (self.healthy_before or self.windows or self.runtime or self.runtime_classes)

    def build(self, path: Path) -> SimulatedNode:
        """Create the node with its faults."""
        node = SimulatedNode.create(path, self.instance_type)
        self.apply_to(node)
        return node

    def apply_to(self, node: SimulatedNode) -> None:
        """Apply the differences to a healthy node."""
        for name, *arguments in self.faults:
            getattr(node, name)(*arguments)
        for file, value in self.write.items():
            node.write_value(file, value)
        for line in self.kernel_log:
            node.kernel_log.write(line)


def _named_after(name: str) -> str:
    """Return the fault of a name such as `gpu-lost-twin` or `gpu-lost-twin-without-…`; '' for other names."""
    fault, twin, _ = name.partition("-twin")
    return fault if twin else ""


def scenarios() -> list[Scenario]:
    return [Scenario.load(file.parent) for file in sorted(FOLDER.glob("*/scenario.toml"))]
