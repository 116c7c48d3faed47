"""Application of a check cycle to the memory.

A level (a finding that check cycles observe) remains active while cycles show it. The devices that were once present
are remembered.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.severities import ESCALATED
from gpu_healthcheck.healthcheck.memory.exits import (
    ended_by_reset,
    escalated,
    every_gpu_initialised,
    expired,
    gpus_answered,
)
from gpu_healthcheck.healthcheck.memory.findings import (
    MOST_GPUS,
    ActiveFinding,
    Key,
    Memory,
    Suspect,
    gpu_address,
    gpu_identity,
    worst_first,
)
from gpu_healthcheck.healthcheck.memory.rdma_ports import after_ports, settled
from gpu_healthcheck.healthcheck.memory.reason_names import GPU_UNBOUND
from gpu_healthcheck.healthcheck.model import Evidence, Finding, Nature, Now, Outcome
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware, GpuPosition
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.efa import infiniband
from gpu_healthcheck.healthcheck.probes.nvml.gpus import SUCCESS, Gpu

CYCLES_TO_CONFIRM = 4
"""Check cycles that must observe a finding that can flicker before it counts (docs/rules.md 3)."""
MOST_UNOBSERVED_CYCLES = 4
"""Cycles in a row without a check of a suspect after which it is dropped, and the other findings are reported."""
_NOWHERE = GpuPosition(-1, "")


class MemoryRules(Struct, frozen=True):
    """Settings that control how findings begin, escalate and end."""

    escalate_after: int = 0
    """Number of resets or reboots that ended the same fault after which its recurrence is ISOLATE; 0: never."""
    monitor_ttl_seconds: float = math.inf
    cycles_to_confirm: int = CYCLES_TO_CONFIRM


_RULES = MemoryRules()


class JudgedCycle(Struct, frozen=True):
    """One check cycle, with the outcomes of the checks for levels."""

    outcomes: Sequence[Outcome]
    gpus: Sequence[Gpu] = ()
    """GPUs as NVML listed them; empty if it did not answer."""
    began: float = 0.0
    """Start of the cycle, in seconds of CLOCK_MONOTONIC."""
    evidence: Evidence = field(default_factory=lambda: Evidence({}))
    instance_type: str = ""


def after_cycle(memory: Memory, cycle: JudgedCycle, now: Now, rules: MemoryRules = _RULES) -> Memory:
    """Return the memory after a check cycle.

    Findings that could not be checked, or not yet confirmed, stay. The GPUs are processed first, so that a GPU that
    replaced a faulty GPU, or was reset, does not inherit findings. Findings of GPUs that answered before and do not
    answer now are not ended.
    """
    if cycle.gpus:
        memory = gpus_answered(memory, cycle.gpus, cycle.began, now)
        if _shows_every_gpu(cycle):
            memory = every_gpu_initialised(memory, cycle.began)
    known = EarlierHardware() if _is_resized(memory, cycle) else memory.first
    memory = replace(memory, first=first_seen(known, cycle.evidence), instance_type=cycle.instance_type)
    memory = settled(memory, cycle.evidence)
    silent = memory.gpus.keys() - {gpu.address for gpu in cycle.gpus if gpu.error == SUCCESS}
    for outcome in cycle.outcomes:
        memory = _after_outcome(memory, outcome, silent, now, rules)
    return expired(replace(memory, active=worst_first(memory.active)), now, rules.monitor_ttl_seconds)


def _after_outcome(memory: Memory, outcome: Outcome, silent: Container[str], now: Now, rules: MemoryRules) -> Memory:
    active = {level.key: level for level in memory.active}
    suspects = dict(memory.suspects)
    shown = {(finding.reason, finding.subject): finding for finding in outcome.findings}
    gone = [level for level in active.values() if _is_gone(level, outcome, shown) and not _is_of(silent, level, memory)]
    for level in gone:
        del active[level.key]
        memory = _gone(memory, level, now)
    for check, key in list(suspects):
        if check == outcome.check and key not in shown:
            _after_missing(suspects, (check, key), outcome)
    for key, finding in shown.items():
        known = active.get(key)
        before = suspects.pop((outcome.check, key), Suspect(0))
        if known is not None and known.nature is Nature.EVENT and known.finding.severity >= finding.severity:
            continue  # the log reported the same fault, which ends by the event's exit
        if known is None and finding.flickers and before.cycles + 1 < rules.cycles_to_confirm:
            suspects[outcome.check, key] = Suspect(before.cycles + 1)
            continue
        named = replace(finding, about=finding.about or memory.gpus.get(gpu_address(finding.subject), {}))
        worse = _as_worse(memory, known, escalated(memory, named, now, rules.escalate_after))
        active[key] = _recurred_level(known, worse, outcome.check, memory.boot_id, now)
    return replace(memory, active=tuple(active.values()), suspects=suspects)


def without_checks(memory: Memory, selected: Iterable[str]) -> Memory:
    """Return the memory without the levels of checks that are not selected any more."""
    names = set(selected)
    kept = tuple(finding for finding in memory.active if finding.nature is Nature.EVENT or finding.check in names)
    suspects = {key: suspect for key, suspect in memory.suspects.items() if key[0] in names}
    if (len(kept), len(suspects)) == (len(memory.active), len(memory.suspects)):
        return memory
    return replace(memory, active=kept, suspects=suspects)


def first_seen(known: EarlierHardware, evidence: Evidence) -> EarlierHardware:
    """Return the devices that this machine once had, after one more check cycle.

    A cycle that could not count its devices changes nothing. The counts only increase, and a GPU keeps the PCI location
    where it was first observed. A check reports a lower count or a changed location.
    """
    if evidence.unread(pci.FUNCTIONS):
        return known
    has_efa = bool(known.efa) or any(function.is_efa for function in evidence[pci.FUNCTIONS])
    known = replace(known, rdma=after_ports(known.rdma, evidence, has_efa=has_efa))
    gpus = sum(function.is_gpu for function in evidence[pci.FUNCTIONS])
    known = replace(known, gpus=min(max(known.gpus or 0, gpus), MOST_GPUS))
    if evidence.unread(infiniband.RDMA):
        return known
    places = {
        function.address: GpuPosition(function.numa_node, function.switch)
        for function in evidence[pci.FUNCTIONS]
        if function.is_gpu
    }
    # A later cycle may add a location that the kernel does not report now.
    new = [(gpu, place) for gpu, place in places.items() if place != _NOWHERE and gpu not in known.places]
    return replace(
        known,
        efa=max(known.efa or 0, len(evidence[infiniband.RDMA].efa)),
        places=dict([*known.places.items(), *new][:MOST_GPUS]),
    )


def _shows_every_gpu(cycle: JudgedCycle) -> bool:
    """Whether each GPU on PCI answers NVML, except GPUs bound to another driver."""
    if cycle.evidence.unread(pci.FUNCTIONS):
        return False
    answering = {gpu.address for gpu in cycle.gpus if gpu.error == SUCCESS}
    return {function.address for function in cycle.evidence[pci.FUNCTIONS] if function.is_gpu_here} <= answering


def _is_resized(memory: Memory, cycle: JudgedCycle) -> bool:
    """Whether the machine now has another instance type, which has other devices.

    The prefix of HyperPod's type names is ignored.
    """
    before, now = memory.instance_type.removeprefix("ml."), cycle.instance_type.removeprefix("ml.")
    return bool(before and now) and before != now


def _after_missing(suspects: dict[tuple[str, Key], Suspect], key: tuple[str, Key], outcome: Outcome) -> None:
    """Handle a cycle that did not observe the suspect: the fault is gone, or could not be checked.

    A suspect that cannot be checked is dropped after a limited number of cycles.
    """
    suspect = suspects[key]
    if outcome.shows(*key[1]) or suspect.unobserved_cycles + 1 >= MOST_UNOBSERVED_CYCLES:
        del suspects[key]
    else:
        suspects[key] = replace(suspect, unobserved_cycles=suspect.unobserved_cycles + 1)


def _is_gone(finding: ActiveFinding, outcome: Outcome, shown: Mapping[Key, Finding]) -> bool:
    is_its_own = finding.nature is Nature.LEVEL and finding.check == outcome.check
    return is_its_own and finding.key not in shown and outcome.shows(*finding.key)


def _is_of(silent: Container[str], finding: ActiveFinding, memory: Memory) -> bool:
    """Whether a finding belongs to a GPU that answered before in this boot and is now silent.

    A silent GPU keeps its findings. After a reboot, the count check reports it as missing. A finding that only PCI
    shows, for a GPU that NVML never listed, is excluded.
    """
    if finding.finding.reason == GPU_UNBOUND:
        return False
    return gpu_address(finding.finding.subject) in silent and finding.boot_id == memory.boot_id


def _gone(memory: Memory, finding: ActiveFinding, now: Now) -> Memory:
    """Record the end of a level. If a reset or a reboot ended it, count this in case the level recurs."""
    loaded = memory.driver_loaded_at
    by_reset = finding.boot_id != memory.boot_id or (loaded is not None and finding.last_at < loaded)
    return ended_by_reset(memory, finding, now.wall) if by_reset else memory


def _as_worse(memory: Memory, known: ActiveFinding | None, finding: Finding) -> Finding:
    """Return the finding, with ISOLATE if it recurred too often.

    ISOLATE stays as long as the finding is active, even when the counts expire. This does not apply if a person's
    release has cleared the count.
    """
    if known is None or known.finding.base[1] != ESCALATED:
        return finding
    is_counted = (finding.reason, gpu_identity(known.finding.about)) in memory.ended
    return known.finding if is_counted else finding


def _recurred_level(known: ActiveFinding | None, finding: Finding, check: str, boot_id: str, now: Now) -> ActiveFinding:
    first = known.first_seen if known else now.wall
    return ActiveFinding(finding, check, Nature.LEVEL, first, now.wall, 1, boot_id, now.monotonic)
