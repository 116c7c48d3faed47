"""Cost of listing 50,000 nodes: `status` in each of its formats, and the plan of a sweep.

An API server on this machine cannot store that many: a stand-in in the bench's process generates each page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench.large_fleet import BUSY_PERCENT, PODS_PER_NODE
from bench.one_run import OneRun, run_once
from bench.outcome import CouldNotMeasure, Outcome, Row, summary
from bench.paged_fleet import PagedFleet
from bench.stage import Stage

AIM_STATUS_SECONDS, AIM_PLAN_SECONDS, AIM_MIB = 5.0, 60.0, 600.0
_TIMES = 3
_NOTES = (
    "huge-fleet: a stand-in in Python generates the pages on the same machine; a Node is about 14 kB of JSON.",
    "            CPU is user and system time of the process: use that figure on a machine with other work",
)


def measure(stage: Stage) -> Outcome:
    size = stage.length.huge_nodes
    with PagedFleet(size) as endpoint:
        kubeconfig = stage.folder / "huge-fleet.kubeconfig"
        kubeconfig.write_text(json.dumps(_config(endpoint)))
        environment = stage.bare_environment | {"KUBECONFIG": str(kubeconfig), "CONFIG_DIR": str(stage.folder / "none")}
        forms = {form: _status(environment, form, size) for form in ("table", "json", "html")}
        plans = [run_once(("bench.sweep_plan_program",), environment) for _ in range(_TIMES)]
    for fields in (run.figures for run in plans):
        if (fields["nodes"], fields["busy"]) != (size, size * BUSY_PERCENT // 100):
            raise CouldNotMeasure(f"the plan does not match the fleet: {fields}")
    rows = [_row(stage, f"status -o {form} of {size} nodes", AIM_STATUS_SECONDS, runs) for form, runs in forms.items()]
    what = f"plan of a sweep over {size} nodes and {size * PODS_PER_NODE} pods"
    rows.append(_row(stage, what, AIM_PLAN_SECONDS, plans))
    return Outcome(tuple(rows), dict(_raw({**forms, "plan": plans})), _NOTES)


def _status(environment: Mapping[str, str], form: str, size: int) -> list[OneRun]:
    words = ("cli", "status", "-o", form)
    read: Callable[[bytes], Mapping[str, Any]] = lambda raw: {"names": raw.count(b"fleet-node-")}  # noqa: E731
    runs = [run_once(words, environment, read=read) for _ in range(_TIMES)]
    if any(run.figures["names"] < size for run in runs):
        raise CouldNotMeasure(f"status -o {form} does not name every node")
    return runs


def _row(stage: Stage, what: str, aim_seconds: float, runs: list[OneRun]) -> Row:
    wall, cpu, peak = ([getattr(run, key) for run in runs] for key in ("seconds", "cpu_seconds", "peak_mib"))
    figure = f"{min(wall):.1f} to {max(wall):.1f} s, CPU {min(cpu):.1f} to {max(cpu):.1f} s; {max(peak):.0f} MiB"
    is_met = max(wall) <= aim_seconds and max(peak) <= AIM_MIB
    return Row(what, f"≤ {aim_seconds:g} s, ≤ {AIM_MIB:g} MiB", figure, stage.length.met(is_met))


def _raw(runs: Mapping[str, list[OneRun]]) -> Iterator[tuple[str, Any]]:
    for what, some in runs.items():
        keys = ("seconds", "cpu_seconds", "peak_mib")
        yield what, {key: summary([getattr(run, key) for run in some]) for key in keys}


def _config(endpoint: str) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fleet",
        "clusters": [{"name": "fleet", "cluster": {"server": endpoint}}],
        "users": [{"name": "fleet", "user": {"token": "fleet"}}],
        "contexts": [{"name": "fleet", "context": {"cluster": "fleet", "user": "fleet"}}],
    }
