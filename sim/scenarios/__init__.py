"""Scenarios: what is different from a healthy node, and what `gpu-healthcheck check` must say of it.

A scenario is a folder with a `scenario.toml`: `stands_for` (the reason it shows, "" for a healthy one),
`instance_type`, `faults` (methods of SimulatedNode with their arguments), `kernel_log` (lines), `[write]` (files below
the node's root) and `[expect]` (status, severity, findings as "Reason subject", causes of what could not be seen).
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sim.node import SimulatedNode

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Expected:
    status: str
    severity: str
    findings: list[str]
    unobserved: list[str]


@dataclass(frozen=True)
class Scenario:
    name: str
    stands_for: str
    instance_type: str
    faults: list[list[Any]]
    kernel_log: list[str]
    write: dict[str, str]
    expect: Expected

    @classmethod
    def load(cls, folder: Path) -> Self:
        told = tomllib.loads((folder / "scenario.toml").read_text())
        return cls(
            name=folder.name,
            stands_for=told["stands_for"],
            instance_type=told["instance_type"],
            faults=told.get("faults", []),
            kernel_log=told.get("kernel_log", []),
            write=told.get("write", {}),
            expect=Expected(**told["expect"]),
        )

    def build(self, path: Path) -> SimulatedNode:
        """The node with its faults."""
        node = SimulatedNode.create(path, self.instance_type)
        for name, *arguments in self.faults:
            getattr(node, name)(*arguments)
        for file, value in self.write.items():
            node.write_value(file, value)
        for line in self.kernel_log:
            node.kernel_log.write(line)
        return node


def scenarios() -> list[Scenario]:
    return [Scenario.load(file.parent) for file in sorted(FOLDER.glob("*/scenario.toml"))]
