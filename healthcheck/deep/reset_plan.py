"""Plan of a reset: its GPUs, its steps as the record names them, and reasons against it. Pure functions, no I/O.

GPUs that must be reset together, and platforms on which resets are known to fail, are data with sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from gpu_healthcheck.healthcheck.checks.driver import being_changed
from gpu_healthcheck.healthcheck.deep.claim import claim_on
from gpu_healthcheck.healthcheck.memory.findings import gpu_address
from gpu_healthcheck.healthcheck.memory.reason_names import OF_THE_NETWORK
from gpu_healthcheck.healthcheck.memory.rows import FindingRow
from gpu_healthcheck.healthcheck.model import Severity, Status
from gpu_healthcheck.healthcheck.node.gpu_resources import listed
from gpu_healthcheck.healthcheck.node.state import RESET_COMMAND, RESET_RESULT, RESULTS, UNHEALTHY, NodeState, is_tested
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.node_events import NodeEvent, cut, event_name
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord, RunRecord


class ResetScope(StrEnum):
    """GPUs of one reset."""

    ONE = "one"
    """The GPU alone."""
    LINKED = "linked"
    """All GPUs with NVLinks."""
    ALL = "all"
    """All GPUs of the node, with the fabric manager stopped."""


class ScopeRow(Struct, frozen=True):
    """Scope for GPUs from an NVLink version on (nvmlNvlinkVersion_t; 0: no NVLink).

    `with_nvswitch` None: the row applies with and without NVSwitches.
    """

    least_version: int
    with_nvswitch: bool | None
    scope: ResetScope
    source: str


_MANUAL = "nvidia-smi manual, --gpu-reset"
SCOPES = (
    ScopeRow(6, None, ResetScope.ONE, f"{_MANUAL}: Hopper and later need no fabric manager to be reset one by one"),
    ScopeRow(4, True, ResetScope.ALL, f"{_MANUAL}: Ampere without a fabric manager: all linked GPUs in one command"),
    ScopeRow(4, False, ResetScope.ONE, f"{_MANUAL}: from Ampere on, GPUs with NVLinks are reset one by one"),
    ScopeRow(1, None, ResetScope.LINKED, f"{_MANUAL}: before Ampere, all linked GPUs in one command"),
    ScopeRow(0, None, ResetScope.ONE, f"{_MANUAL}: no NVLink"),
)
"""First matching row applies. On Ampere with NVSwitches, a single GPU is reset only through a running fabric manager;
this system stops it and resets all. NVLink 2.2 (3) is Volta's and Turing's, 3.0 (4) Ampere's, 4.0 (6) Hopper's."""
UNKNOWN_LINKS = ScopeRow(0, None, ResetScope.ALL, "the NVLink version is unknown, so no GPU counts as independent")


class KnownFailure(Struct, frozen=True):
    """Platform on which a GPU reset is known to fail, by the beginning of the Node's `spec.providerID`."""

    provider: str
    why: str
    source: str


KNOWN_FAILURES = (
    KnownFailure(
        "aws://",
        "EC2's hypervisor refuses the function-level reset of a GPU, also for metal instances; a reboot ends the fault",
        "NVIDIA/ai-cloud-validation PR 603, awslabs/awsome-distributed-ai PR 1190",
    ),
)


def scope_of(versions: Iterable[int | None], *, has_nvswitch: bool) -> ScopeRow:
    """Return the scope for GPUs with these NVLinks; a version is None if NVML does not report it."""
    listed = list(versions)
    known = [version for version in listed if version is not None]
    if listed and not known:
        return UNKNOWN_LINKS
    version = min(known, default=0)
    return next(row for row in SCOPES if version >= row.least_version and row.with_nvswitch in (None, has_nvswitch))


def known_failure(provider_id: str) -> KnownFailure | None:
    """Return the row of the platform; None if resets are not known to fail there."""
    return next((row for row in KNOWN_FAILURES if provider_id.startswith(row.provider)), None)


class Step(StrEnum):
    """A step of a reset. The command runs the first and the last ones, the Job the others."""

    CLAIM = "claim"
    PLAN = "plan"
    FREE = "free the GPUs"
    OPERANDS = "operands"
    RESET = "reset"
    DRAIN = "drain the node"
    REBOOT = "reboot"
    VERIFY = "verify"
    LEVEL_2 = "level 2"
    LOAD = "load"


_BEFORE = (Step.CLAIM.value, Step.PLAN.value, Step.FREE.value, Step.OPERANDS.value, Step.DRAIN.value)
_RESULTS = (Status.PASS.value, Status.FAIL.value)
_NAMES = frozenset(Step)
_KEPT = timedelta(hours=1)
"""Time for which the API server keeps Events by default: an Event is not created twice within it."""


def may_have_begun(record: RunRecord) -> bool:
    """Whether the GPUs may have been touched: from then on the run must end, and can't be undone."""
    is_at_work = record.running not in (None, *_BEFORE)
    return is_at_work or record.reset_at is not None or record.status in _RESULTS


def awaits_reboot(record: RunRecord, boot_id: str) -> bool:
    """Whether the record requests a reboot of this boot, which has not happened yet."""
    return record.running == Step.REBOOT.value and bool(boot_id) and record.boot_id == boot_id


def drained(record: RunRecord) -> str:
    """Return the detail of the ended drain; '' if it has not ended."""
    return next((row.detail or "" for row in record.steps or () if row.step == Step.DRAIN.value), "")


def step_events(node: NodeState, now: datetime) -> Iterator[NodeEvent]:
    """Yield an Event for each step in the Node's record, and one for its end once the node is returned.

    The same step always has the same name. Steps older than an hour are left out: they have been reported.
    """
    record = records.on_node(RunRecord, node, RESET_RESULT)
    for row in record.steps or ():
        if row.step in _NAMES and row.at is not None and now - row.at < _KEPT:
            message = cut(": ".join(filter(None, (row.step, row.detail))))
            yield NodeEvent(
                event_name(node.name, "reset", row.step or "", timestamp(row.at)), "Normal", "GpuResetStep", message
            )
    ended = records.time_of(record)
    if record.running or RESET_COMMAND in node.annotations or ended is None or now - ended >= _KEPT:
        return
    name, why = event_name(node.name, "reset", "end", timestamp(ended)), "; ".join(record.reasons or ())
    if record.status == Status.PASS and not why:
        yield NodeEvent(name, "Normal", "GpuResetDone", "the GPUs work again")
    else:
        default = "a GPU does not work" if record.status == Status.FAIL else "no GPU was reset"
        yield NodeEvent(name, "Warning", "GpuResetFailed", cut(why or default))


_GPU = re.compile(
    r"(?:GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|[0-9]{1,3})\Z",
    re.ASCII,
)
_BOOT = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.ASCII)
_WORKLOAD, _VIRTUAL = "nvidia.com/gpu.workload.config", ("vm-passthrough", "vm-vgpu")


class ResetTarget(Struct, frozen=True):
    """A GPU to reset. `name` is its UUID, PCI address or index; `reasons` are the findings that a reset ends."""

    name: str
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"GPU {self.name}" + (f" ({', '.join(self.reasons)})" if self.reasons else "")


def gpu_name(text: str) -> str:
    """Return the UUID, PCI address or NVML index of a GPU. Raises ValueError for any other text."""
    if not _GPU.match(text):
        raise ValueError("a GPU is named by its UUID, its PCI address or its index")
    return text


def boot_name(text: str) -> str:
    """Return the id of a boot. Raises ValueError for any other text."""
    if not _BOOT.match(text):
        raise ValueError("a boot is named by its id, a UUID")
    return text


def reset_targets(node: NodeState, asked: Sequence[str]) -> tuple[ResetTarget, ...]:
    """Return the GPUs with a finding that a reset ends, or the requested GPUs."""
    gpus: dict[str, dict[str, str]] = {}
    reasons: dict[str, list[str]] = {}
    for row in records.on_node(AgentRecord, node, RESULTS).findings or ():
        if address := ends_by_reset(row):
            gpus.setdefault(address, dict(row.about or {}))
            reasons.setdefault(address, []).append(row.reason or "")
    if not asked:
        return tuple(ResetTarget(address, tuple(reasons[address])) for address in gpus)
    known = {
        name: address
        for address, about in gpus.items()
        for name in (address, about.get("uuid", ""), about.get("index", ""))
        if name
    }
    named = dict.fromkeys(known.get(name, name) for name in asked)
    return tuple(ResetTarget(name, tuple(reasons.get(name, ()))) for name in named)


def ends_by_reset(row: FindingRow) -> str:
    """Return the address of the GPU whose reset ends this finding; '' if no reset does."""
    address = gpu_address(row.subject or "") if row.severity is Severity.RESET else ""
    return address if _GPU.match(address) else ""


def needs_reboot(node: NodeState) -> tuple[str, ...]:
    """Return the findings that a reboot ends and the reset of a GPU does not."""
    return tuple(
        f"{row.reason} on {row.subject}"
        for row in records.on_node(AgentRecord, node, RESULTS).findings or ()
        if row.severity in (Severity.RESET, Severity.REBOOT)
        and not ends_by_reset(row)
        and row.reason not in OF_THE_NETWORK
    )


def obstacles(node: NodeState, holder: str, now: datetime) -> Iterator[str]:
    """Yield what prevents a reset on this node now, whatever its findings. `holder` is the caller's claim."""
    run = claim_on(node, now)
    if run is not None and run.holder != holder:
        yield f"{run.kind.value} {run.holder} uses it until {timestamp(run.until)} at the latest; try again then"
    if is_tested(node):
        yield "HyperPod tests it now (deep-health-check-status=InProgress); try again when it has ended"
    if changed := being_changed(node.labels):
        yield f"its driver or MIG configuration is being changed: {changed}"
    if node.labels.get(_WORKLOAD) in _VIRTUAL:
        yield f"its GPUs belong to virtual machines: label {_WORKLOAD}={node.labels[_WORKLOAD]}"


def why_not_reset(
    node: NodeState, targets: Sequence[ResetTarget], holder: str, now: datetime, *, force: bool
) -> Iterator[str]:
    """Yield the reasons against a reset. With `force`, the absence of a finding and known failures are none."""
    yield from obstacles(node, holder, now)
    if not targets and (rebooted := needs_reboot(node)):
        yield f"no reset of a GPU ends {', '.join(rebooted)}, but a reboot does: add --reboot"
    elif not targets:
        yield "no finding on it ends with the reset of a GPU; name a GPU with --gpu and --force to reset it anyway"
    if idle := [target.name for target in targets if not target.reasons and not force]:
        yield f"no finding on GPU {', '.join(idle)} ends with a reset; --force resets it anyway"
    failure = known_failure(node.provider_id)
    if failure is not None and not force:
        yield f"{failure.why} ({failure.source}); add --reboot to reboot it, or --force to try"


def why_not_reboot(
    node: NodeState, targets: Sequence[ResetTarget], holder: str, now: datetime, *, force: bool
) -> Iterator[str]:
    """Yield the reasons against a reset that may end in a reboot."""
    yield from obstacles(node, holder, now)
    if not _BOOT.match(node.boot_id):
        yield "its kubelet reports no boot id, so a reboot could not be recognised"
    if not (force or needs_reboot(node) or any(target.reasons for target in targets)):
        yield "no finding on it ends with a reset or a reboot; --force reboots it anyway"


def why_not_offered(node: NodeState, before: NodeState, *, is_reset: bool = False) -> str:
    """Return why pods can request no GPU, or fewer than all after a reset; '' if they can.

    `before`: the Node before the run. Without a reset, the device plugin may keep faulty GPUs back.
    """
    # The kubelet forgets the capacity some minutes after the end of a device plugin.
    capacity = {**before.gpu_capacity, **node.gpu_capacity}
    least = capacity if is_reset else dict.fromkeys(capacity, 1)
    if all(node.gpus.get(name, 0) >= count for name, count in least.items()):
        return ""
    offer = f"pods can request {listed(node.gpus) or 'no GPU'} of {listed(capacity)}"
    if node.tainted():
        return (
            f"{offer}: without a toleration, a device plugin starts only when the taint {UNHEALTHY} is gone; "
            f"gpu-healthcheck status {node.name} shows the next step"
        )
    return f"{offer}; gpu-healthcheck reset {node.name} restarts its device plugin"
