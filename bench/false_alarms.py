"""False alarms: findings that the product reports for the healthy captures of this repository.

A capture is a saved document, a log, the evidence of one check cycle or two, or a series of reads, of a node
without a fault: healthy by the description of the node, never by the result. Its node-hours are the time between its
first and its last record, line or read; a single check cycle of a simulated node has none. An alarm is a finding of
MONITOR or worse.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from bench.outcome import CouldNotMeasure, Outcome, Row
from bench.stage import Stage
from gpu_healthcheck.cli.judged_cycle import judged as judged_cycle
from gpu_healthcheck.healthcheck.captures import evidence_file
from gpu_healthcheck.healthcheck.captures.capture_files import Captures
from gpu_healthcheck.healthcheck.captures.replay import KERNEL_CHECKS, Replay
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.dcgm_diag import LEVEL_2, LEVEL_4, level_of
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, Severity
from gpu_healthcheck.healthcheck.model import Outcome as CheckOutcome
from gpu_healthcheck.healthcheck.probes.dcgm.diag import DcgmReading
from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import read_answer
from gpu_healthcheck.healthcheck.probes.gpu_pods import GPU_PODS
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict, decide
from gpu_healthcheck.sim.instance_types import MACHINES, SHAPES
from gpu_healthcheck.sim.node import EFA_PROGRAMS, SimulatedNode
from gpu_healthcheck.sim.scenarios import Expected, Scenario, scenarios
from tests.captures.renderings import FORMS, capture, records
from tests.captures.test_driver_errors import BANNER, HARMLESS, LOADED
from tests.captures.test_real_gpu import EVIDENCE
from tests.checks import test_sibling_series
from tests.checks.evidence import P5
from tests.console import typed
from tests.e2e.test_replay import HEALTHY
from tests.e2e.test_scenarios import WINDOW_SECONDS, Cycles, expectation, had
from tests.probes.dcgm.documents import SHAPES as DOCUMENTS
from tests.probes.dcgm.documents import Story, printed

SEVERITIES = (Severity.MONITOR, Severity.RESET, Severity.REBOOT, Severity.ISOLATE)
_FAULTY = ("gpu-answers-nonsense-beside-a-fault", "roce-three-ports-down")
"""Scenarios that stand for no reason of their own, but have a fault."""
_LEVELS = {2: LEVEL_2, 4: LEVEL_4}
_TESTS = {2: ("software", "memory", "pcie"), 4: ("software", "memory", "pcie", "diagnostic", "memtest")}
_MONITOR_TTL = 86400.0
_QUICK_STEP = 10
"""A shortened run judges only one of so many captures."""
_NOTES = (
    "false-alarms: only one capture is of real hardware, on which programs failed on purpose; the others are simulated",
    "              or invented, and were written with the rules: known harmless input, not a sample of a fleet",
)


class Source(StrEnum):
    """Origin of captures, as the table names it."""

    REAL = "check cycle of a real H200"
    NODES = "check cycles of simulated nodes"
    SERIES = "simulated series of reads of 8 GPUs"
    LOGS = "invented kernel logs"
    DOCUMENTS = "invented results of DCGM's diagnostic"


class Judged(NamedTuple):
    """Findings of a capture by severity, and whether a check could not run."""

    alarms: Counter[Severity]
    is_unknown: bool


class Capture(NamedTuple):
    """One healthy capture, and the function that judges it as the product does."""

    source: Source
    name: str
    seconds: float
    judge: Callable[[], Judged]


class Figures(NamedTuple):
    """Sum over captures."""

    captures: int
    hours: float
    alarms: Counter[Severity]
    unknown: int


def measure(stage: Stage) -> Outcome:
    step = _QUICK_STEP if stage.length.quick else 1
    try:
        judged = [(one.source, one.seconds, one.judge()) for one in islice(captures(), 0, None, step)]
    except PermissionError as error:
        raise CouldNotMeasure("only root can create the device files of simulated nodes") from error
    figures = {source: total([(at, one) for origin, at, one in judged if origin is source]) for source in Source}
    rows = tuple(Row(source, "-", _words(sums)) for source, sums in figures.items())
    raw = {source.name.lower(): {**sums._asdict(), "alarms": _named(sums.alarms)} for source, sums in figures.items()}
    return Outcome(rows, raw, _NOTES)


def total(judged: Sequence[tuple[float, Judged]]) -> Figures:
    """Return the sums of these captures, each with its span in seconds."""
    return Figures(
        len(judged),
        round(sum(seconds for seconds, _ in judged) / 3600, 2),
        _sum(one.alarms for _, one in judged),
        sum(one.is_unknown for _, one in judged),
    )


def captures() -> Iterator[Capture]:
    cycle = evidence_file.read(EVIDENCE)
    seconds = cycle.evidence.at - min(record.at for record in cycle.evidence[RING])
    yield Capture(Source.REAL, "h200", seconds, lambda: _of_verdict(judged_cycle(cycle).verdict))
    for scenario in healthy_nodes():
        yield Capture(Source.NODES, scenario.name, _span(scenario), partial(judge_node, scenario))
    for row in test_sibling_series.ROWS:
        if row.is_healthy:
            yield Capture(Source.SERIES, row.what, test_sibling_series.SPAN_SECONDS, partial(_judge_series, row))
    harmless = {name: records((0.0, BANNER), (1.0, LOADED), *log) for name, log in HARMLESS.items()}
    for name, log in {"healthy": HEALTHY, **harmless}.items():
        forms = FORMS if log is HEALTHY else ("dmesg",)
        yield Capture(Source.LOGS, name, log[-1].at - log[0].at, partial(_judge_log, log, forms))
    for version, shape in DOCUMENTS.items():
        for level, tests in _TESTS.items():
            document = printed(shape(Story(8, tests)))
            yield Capture(Source.DOCUMENTS, f"{version}, level {level}", 0.0, partial(_judge_document, document))


def healthy_nodes() -> list[Scenario]:
    """Return the scenarios of healthy nodes, and an unchanged node of every other instance type."""
    found = [one for one in scenarios() if not one.stands_for and one.name not in _FAULTY]
    unchanged = {one.instance_type for one in found if one.name.startswith("healthy-")}
    passes = Expected("pass", "PASS", [], [])
    return found + [Scenario(kind, "", "", kind, passes) for kind in (*SHAPES, *MACHINES) if kind not in unchanged]


def _span(scenario: Scenario) -> float:
    return scenario.healthy_before + (scenario.windows + 1 if scenario.windows else 0) * WINDOW_SECONDS


def judge_node(scenario: Scenario) -> Judged:
    """Build the node and judge its check cycle with `check`, and several cycles as the agent."""
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-bench-") as folder:
        root = Path(folder) / "node"
        if scenario.is_seen_by_check:
            return _judge_by_check(scenario, root)
        with SimulatedNode.create(root, scenario.instance_type) as node:
            return _of_outcomes(_last_cycle(scenario, node))


def _judge_by_check(scenario: Scenario, root: Path) -> Judged:
    words = ["check", "--json", "--instance-type", scenario.instance_type]
    environment = {"CONFIG_DIR": str(root.with_name("none"))}
    with scenario.build(root) as node:
        if scenario.from_within:
            programs = str(node.root / EFA_PROGRAMS)
            environment |= {"HOST_ROOT": str(node.root), "PATH": f"{programs}:{os.environ['PATH']}"}
        else:
            words += ["--root", str(node.root)]
        record = json.loads(typed(words, {**os.environ, **environment}).stdout)
    severities = (Severity[finding["severity"]] for finding in record["findings"])
    return Judged(Counter(severities), bool(record["unobserved"]))


def _last_cycle(scenario: Scenario, node: SimulatedNode) -> Sequence[CheckOutcome]:
    cycles = Cycles(node, scenario)
    before = read_probes(cycles.host, CHECKS)
    before.at -= scenario.healthy_before
    scenario.apply_to(node)
    cycles.pass_windows()
    now = read_probes(cycles.host, CHECKS, before)
    cycles.end()
    return judge(CHECKS, now, expectation(scenario, had(scenario, before, now.at)))


def _judge_series(row: test_sibling_series.Row) -> Judged:
    checks = [check for check in CHECKS if {*check.needs} <= {NVML, GPU_PODS}]
    return _of_outcomes(judge(checks, test_sibling_series.evidence_of(row.story, row.pods), P5))


def _judge_log(log: Sequence[Record], forms: Iterable[str]) -> Judged:
    """Judge the log as `replay` does, saved in each of these forms."""
    in_each = [_judge_saved_log(capture(FORMS[form], log)) for form in forms]
    return Judged(_sum(one.alarms for one in in_each), any(one.is_unknown for one in in_each))


def _judge_saved_log(content: bytes) -> Judged:
    with tempfile.NamedTemporaryFile(prefix="gpu-healthcheck-bench-") as file:
        file.write(content)
        file.flush()
        saved, replay = Captures([file.name]), Replay(KERNEL_CHECKS, Expectation(), _MONITOR_TTL)
        for batch in saved.batches():
            replay.take(batch)
        memory = replay.ended(saved.boot_id, saved.undated_by)
        return _of_verdict(decide(memory, replay.outcomes(saved.unobserved())))


def _judge_document(document: bytes) -> Judged:
    answer = read_answer(document)
    check = _LEVELS[level_of(answer)]
    return _of_outcomes(judge((check,), Evidence({check.needs[0]: DcgmReading(answer)}), Expectation()))


def _sum(alarms: Iterable[Counter[Severity]]) -> Counter[Severity]:
    return sum(alarms, Counter[Severity]())


def _of_verdict(verdict: Verdict) -> Judged:
    return Judged(Counter(active.finding.severity for active in verdict.active), bool(verdict.unobserved))


def _of_outcomes(outcomes: Sequence[CheckOutcome]) -> Judged:
    found = Counter(finding.severity for outcome in outcomes for finding in outcome.findings)
    return Judged(found, any(outcome.unobserved for outcome in outcomes))


def _named(alarms: Counter[Severity]) -> dict[str, int]:
    return {severity.name: alarms[severity] for severity in SEVERITIES}


def _words(sums: Figures) -> str:
    alarms = ", ".join(f"{count} {name}" for name, count in _named(sums.alarms).items())
    return f"{sums.captures} captures, {sums.hours:g} node-hours: {alarms}; {sums.unknown} could not check"
