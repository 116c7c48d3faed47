"""Plan of a reset: its GPUs, and reasons against it. Pure functions, no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from healthcheck.checks.driver import being_changed
from healthcheck.deep.claim import claim_on
from healthcheck.deep.gpu_resets import known_failure
from healthcheck.memory.findings import gpu_address
from healthcheck.memory.reason_names import OF_THE_NETWORK
from healthcheck.memory.rows import FindingRow
from healthcheck.model import Severity
from healthcheck.node.gpu_resources import listed
from healthcheck.node.state import RESULTS, UNHEALTHY, NodeState, is_tested
from healthcheck.text.moments import timestamp
from healthcheck.verdict import record as records
from healthcheck.verdict.record import AgentRecord

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
