"""Check: each GPU is registered with a healthy NVLink fabric (NVML, Hopper and later)."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.catalog.hardware import fabric_of
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import (
    FABRIC_COMING_UP,
    answering,
    found,
    is_fabric_coming_up,
    silent,
    takes_part_in_fabric,
)
from gpu_healthcheck.healthcheck.checks.per_gpu import FABRIC_GRACE as GRACE
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
    Unobserved,
    UnobservedCause,
    counted,
)
from gpu_healthcheck.healthcheck.probes import services
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)
"""nvmlGpuFabricState_t (nvml.h)."""
_STATES = {NOT_STARTED: "not started", IN_PROGRESS: "in progress"}
_STATUSES = {3: "not supported", 10: "timeout", 23: "insufficient resources", 27: "not ready", 29: "invalid state"}
"""Values of nvmlReturn_t that a registration can end with."""
UNHEALTHY_SUMMARY, LIMITED_SUMMARY = 2, 3
"""NVML_GPU_FABRIC_HEALTH_SUMMARY_… (nvml.h, nvmlGpuFabricInfo_v3_t)."""
_YES = 1
"""Value "yes" of a field of the health mask; 0 means not supported, 2 means no. A healthy mask is therefore not 0."""
_FIELDS = {"degraded bandwidth": 0, "route recovery": 2, "unhealthy route": 4, "access timeout recovery": 6}
"""Positions of the two-bit fields (NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_…)."""
_CONFIGURATION_SHIFT, _NO_PARTITION = 8, 4
_CONFIGURATION_FAULT = 2
"""Lowest value of the four-bit configuration field that is a fault; 0 means not supported, 1 means no fault."""
STATE_UNKNOWN = UnobservedCause(
    "FabricStateUnknown",
    "The driver reports a fabric state that this version does not know.",
    "Upgrade this program.",
)
NOT_READY = Reason(
    "FabricNotReady",
    Severity.RESET,
    "A GPU is not registered with its NVLink fabric: new CUDA programs fail with error 802.",
    "Read the fabric manager's log; drain the node, reset all its GPUs and restart the fabric manager.",
    flickers=True,
    source="docs/rules.md 20; nvml.h, nvmlGpuFabricState_t",
    grace=GRACE,
)
ERROR = Reason(
    "FabricError",
    Severity.RESET,
    "A GPU could not join its NVLink fabric: its registration ended with an error.",
    "Drain the node, reset all its GPUs and restart the fabric manager; replace the node if the error recurs.",
    flickers=True,
    source="nvml.h, nvmlGpuFabricInfo_t; azurehpc-health-checks pull request 506",
)
UNHEALTHY = Reason(
    "FabricUnhealthy",
    Severity.RESET,
    "A GPU has a bad connection to the NVLink fabric: NVML reports it as degraded, unhealthy or misconfigured.",
    "Drain the node and reset all its GPUs; replace the node if the fault recurs.",
    flickers=True,
    threshold=f"a field of the health mask at {_YES}, its configuration at {_CONFIGURATION_FAULT} or more, "
    f"or the summary at {UNHEALTHY_SUMMARY}",
    source="nvml.h, nvmlGpuFabricInfo_v2_t and _v3_t; EKS node monitoring agent, which calls it fatal",
)
PARTITION_MISSING = Reason(
    "FabricPartitionMissing",
    Severity.RESET,
    "A GPU belongs to no partition of its NVLink fabric: its NVLinks reach no other GPU.",
    "Assign the GPU to a partition: with the rack's NVLink controller, or the fabric manager of shared NVSwitches "
    "(`fmpm -l` lists the partitions, `fmpm -a` activates one). A reset assigns none.",
    flickers=True,
    threshold="no partition in the health mask, on a rack or beside a GPU with a partition; or, before R595, "
    f"configuration {_NO_PARTITION}. A machine without partitions reports none for any GPU",
    source="nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_PARTITION_ASSIGNED (NVML change log, v590 to v595); "
    "nvlink_inband_msg.h of the open kernel modules, where configuration 4 is deprecated",
)
LIMITED = Reason(
    "FabricLimitedCapacity",
    Severity.MONITOR,
    "A GPU has less NVLink bandwidth: NVML's fabric health summary is limited capacity.",
    "Compare the all-reduce bandwidth with a healthy node; reset the node's GPUs when the node can be drained.",
    flickers=True,
    threshold=f"the summary at {LIMITED_SUMMARY} and no field of the mask at fault",
    source="nvml.h, nvmlGpuFabricInfo_v3_t",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence)
    unread = [gpu for gpu in gpus if "fabric" in gpu.errors]
    for gpu in unread:
        yield silent(gpu, gpu.errors["fabric"], "fabric")
    joined = [(gpu, gpu.fabric) for gpu in gpus if gpu.fabric is not None and takes_part_in_fabric(gpu)]
    if not joined:
        if gpus and not unread:
            yield NotConfigured("NVML reports no NVLink fabric here")
        return
    wanted = _wanted_by(evidence, expected)
    is_coming_up = is_fabric_coming_up(evidence, expected)
    is_divided = _is_divided(joined, expected)
    for gpu, fabric in joined:
        if fabric.state == COMPLETED:
            yield from _completed(gpu, fabric, is_divided=is_divided)
        elif fabric.state not in _STATES:
            yield Unobserved(STATE_UNKNOWN, f"{gpu.subject}: fabric state {fabric.state}", gpu.subject)
        elif wanted:
            yield _judge_incomplete(gpu, fabric.state, is_coming_up)
    registered = sum(fabric.state == COMPLETED for _, fabric in joined)
    summary = f"{registered} of {counted(len(joined), 'GPU')} registered with the NVLink fabric"
    yield Observation(summary, "all" if wanted else "not required", wanted)


def _wanted_by(evidence: Evidence, expected: Expectation) -> str:
    """Return the source of the requirement that these GPUs join a fabric.

    Return '' if there is no requirement, for instance for a single GPU of a board.
    """
    row = fabric_of(expected.instance_type)
    if row is not None:
        return f"{row.instance_type} in fabrics.csv" if row.fabric_manager or row.imex else ""
    return "a fabric manager runs" if evidence[services.SERVICES].find(services.FABRIC_MANAGER) else ""


def _is_divided(joined: list[tuple[nvml.Gpu, nvml.Fabric]], expected: Expectation) -> bool:
    """Whether this machine's fabric has partitions: a rack always has, another machine if a GPU is in one."""
    row = fabric_of(expected.instance_type)
    return (row is not None and row.imex) or any(fabric.partition_assigned for _, fabric in joined)


def _judge_incomplete(gpu: nvml.Gpu, state: int, is_coming_up: bool) -> Judgement:
    detail = f"fabric state {state} ({_STATES[state]})"
    if is_coming_up:
        pending = f"{gpu.subject}: {detail}; judged {GRACE.seconds:g} s after {GRACE.since}"
        return Unobserved(FABRIC_COMING_UP, pending, gpu.subject)
    if state == IN_PROGRESS and gpu.persistence is False:
        # The agent's probe may have initialised the GPU a moment ago, so a registration that hangs cannot be
        # detected.
        return TooEarly(f"{detail}, and with persistence mode off each first use registers again", gpu.subject)
    return found(NOT_READY, gpu, detail)


def _completed(gpu: nvml.Gpu, fabric: nvml.Fabric, *, is_divided: bool) -> Iterator[Judgement]:
    faults = _mask_faults(fabric)
    if fabric.status != nvml.SUCCESS:
        name = _STATUSES.get(fabric.status)
        yield found(ERROR, gpu, f"registration ended with NVML error {fabric.status}" + (f" ({name})" if name else ""))
    if faults:
        yield found(UNHEALTHY, gpu, f"health mask: {', '.join(faults)}")
    elif (is_divided and fabric.partition_assigned is False) or _configuration(fabric) == _NO_PARTITION:
        yield found(PARTITION_MISSING, gpu, "health mask: no partition assigned")
    elif fabric.health_summary == UNHEALTHY_SUMMARY:
        yield found(UNHEALTHY, gpu, "health summary: unhealthy")
    elif fabric.health_summary == LIMITED_SUMMARY:
        yield found(LIMITED, gpu, "health summary: limited capacity")


def _mask_faults(fabric: nvml.Fabric) -> list[str]:
    mask, configuration = fabric.health_mask or 0, _configuration(fabric)
    faults = [name for name, shift in _FIELDS.items() if mask >> shift & 0b11 == _YES]
    if configuration >= _CONFIGURATION_FAULT and configuration != _NO_PARTITION:
        faults.append(f"incorrect configuration {configuration}")
    return faults


def _configuration(fabric: nvml.Fabric) -> int:
    return (fabric.health_mask or 0) >> _CONFIGURATION_SHIFT & 0b1111


CHECK = Check(
    "fabric",
    "3-topology-check",
    (nvml.NVML, services.SERVICES),
    judge,
    (NOT_READY, ERROR, UNHEALTHY, PARTITION_MISSING, LIMITED),
    causes=(FABRIC_COMING_UP, STATE_UNKNOWN),
)
