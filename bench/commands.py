"""Cost of commands without a cluster: CPU time of the whole process, including Python and its children."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from bench.large_fleet import node, pod
from bench.outcome import Outcome, Row, percentile, summary
from bench.program import ignore, run_once
from bench.stage import INSTANCE_TYPE, Stage

AIM_SECONDS = 0.3
_LOG = (
    "[  100.000000] usb 1-1: new high-speed USB device number 2 using xhci_hcd",
    "[  200.123456] NVRM: Xid (PCI:0000:53:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
)
_NODES = 8
_FAULT = 1
"""Exit code of the verdict `fail`."""
_NOTES = (
    "commands: user and system time of the process and its children, bytecode cached; no ConfigMap, so nothing is set",
)


def measure(stage: Stage) -> Outcome:
    environment = stage.bare_environment | {"CONFIG_DIR": str(stage.folder / "none")}
    commands = _commands(stage, environment)
    seconds = {what: _seconds(words, environment, stage.length.commands) for what, words in commands.items()}
    rows = tuple(_row(stage, what, samples) for what, samples in seconds.items())
    return Outcome(rows, {what: summary(samples) for what, samples in seconds.items()}, _NOTES)


def _commands(stage: Stage, environment: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """Return some commands of each kind; the last three read a saved cycle, log and cluster."""
    tree, (log, evidence, state) = str(stage.make_node().root), _files(stage.folder)
    check = ("check", "--root", tree, "--instance-type", INSTANCE_TYPE)
    _cpu_seconds((*check, "--save-evidence", str(evidence)), environment)
    return {
        "-h": ("-h",),
        "version": ("version",),
        "completion bash": ("completion", "bash"),
        "words for a shell": ("__complete", "explain", "Xid7"),
        "explain 79": ("explain", "79"),
        "explain": ("explain",),
        "replay of a log": ("replay", str(log)),
        "replay of a check cycle": ("replay", str(evidence)),
        "check --root": check,
        f"diagnose --from {_NODES} nodes": ("diagnose", "--from", str(state)),
    }


def _files(folder: Path) -> tuple[Path, Path, Path]:
    """Create a log, a path for a saved check cycle, and a cluster's state."""
    log, evidence, state = (folder / name for name in ("commands.log", "commands-evidence.json", "commands-state.json"))
    log.write_text("\n".join(_LOG) + "\n")
    now = datetime.now(UTC)
    names = [f"node-{number}" for number in range(_NODES)]
    items = [{"apiVersion": "v1", "kind": "Node", **node(name, number, now)} for number, name in enumerate(names)]
    items += [pod(name, number, 0) for number, name in enumerate(names)]
    state.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return log, evidence, state


def _seconds(words: tuple[str, ...], environment: Mapping[str, str], times: int) -> list[float]:
    """Return the CPU time of each run except the first, which may compile modules."""
    return [_cpu_seconds(words, environment) for _ in range(times + 1)][1:]


def _cpu_seconds(words: tuple[str, ...], environment: Mapping[str, str]) -> float:
    """Run a command once; only the replay of a log ends with a fault."""
    return run_once(("cli", *words), environment, (_FAULT,) if words[-1].endswith(".log") else (0,), ignore).cpu_seconds


def _row(stage: Stage, what: str, samples: list[float]) -> Row:
    middle = percentile(samples, 0.5)
    figure = f"p50 {middle:.2f}, min {min(samples):.2f} s ({len(samples)} times)"
    return stage.at_most(f"CPU of `{what}`", AIM_SECONDS, "s", middle, figure)
