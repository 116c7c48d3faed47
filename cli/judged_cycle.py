"""One check cycle judged on its own, for `check` and the replay of its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.captures.evidence_file import EvidenceCycle
from gpu_healthcheck.healthcheck.checks import DEEP_CHECKS
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_cycle, first_seen
from gpu_healthcheck.healthcheck.memory.deep_tests import after_deep_test, deep_result
from gpu_healthcheck.healthcheck.memory.exits import expired
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.memory.rdma_ports import settled
from gpu_healthcheck.healthcheck.model import Evidence, Nature, Outcome
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, Gpus
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict, decide


class CheckResult(Struct, frozen=True):
    """Outcomes of the checks of one cycle, and the memory after it."""

    cycle: EvidenceCycle
    outcomes: tuple[Outcome, ...]
    memory: Memory

    @property
    def verdict(self) -> Verdict:
        return decide(self.memory, self.outcomes)


def judged(cycle: EvidenceCycle) -> CheckResult:
    """Judge one cycle as the agent does: the log first, then the readings that end earlier findings.

    There is only this cycle, so a finding that can flicker is shown as observed.
    """
    outcomes = judge(cycle.checks, cycle.evidence, cycle.expected)
    pairs = list(zip(outcomes, cycle.checks, strict=True))
    levels = [outcome for outcome, check in pairs if check.nature is Nature.LEVEL]
    tests = [outcome for outcome, check in pairs if check in DEEP_CHECKS]
    before, rules = (
        Memory(cycle.machine, cycle.boot_id, acknowledged=cycle.acknowledged),
        MemoryRules(cycles_to_confirm=1),
    )
    memory = after_kernel_log(before, outcomes, cycle.now)
    memory = after_cycle(memory, JudgedCycle(levels, _gpus(cycle.evidence), cycle.now.monotonic), cycle.now, rules)
    memory = settled(replace(memory, first=first_seen(memory.first, cycle.evidence)), cycle.evidence)
    memory = after_deep_test(memory, deep_result(tests, cycle.now.wall, cycle.now.wall), cycle.now)
    return CheckResult(cycle, outcomes, expired(memory, cycle.now, cycle.monitor_ttl_seconds))


def _gpus(evidence: Evidence) -> Sequence[Gpu]:
    """Return the GPUs that NVML listed; none if it was not read or did not answer."""
    if NVML not in evidence.probes or evidence.unread(NVML):
        return ()
    answer = evidence[NVML].answer
    return answer.gpus if isinstance(answer, Gpus) else ()
