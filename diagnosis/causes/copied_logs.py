"""Find causes in logs of which neither pod nor node is known, as a person copied them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpu_healthcheck.diagnosis.causes import (
    compute_domains,
    crashing,
    efa_jobs,
    pod_startup,
    rejected,
    running,
    runtime_handlers,
)
from gpu_healthcheck.diagnosis.causes.components import NOT_READY, hint
from gpu_healthcheck.diagnosis.causes.device_plugins import failures_in
from gpu_healthcheck.diagnosis.causes.pod_startup_table import COMMAND_MISSING, CONFIG_MISSING, NOT_INJECTED
from gpu_healthcheck.diagnosis.causes.unscheduled import refusals_in
from gpu_healthcheck.diagnosis.facts.commands import command, explain
from gpu_healthcheck.diagnosis.facts.components import Role, role_of
from gpu_healthcheck.diagnosis.facts.log_lines import failed_run, telling_lines
from gpu_healthcheck.diagnosis.facts.symptoms import Recognised, Symptom, recognised, shortened, texts_in
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, Certainty, Family, FoundCause, Search, TextSource
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import RecordFinding
from gpu_healthcheck.healthcheck.catalog.policy import step_for
from gpu_healthcheck.healthcheck.model import Severity

_fault = Family(None)
KERNEL_FAULT = _fault(
    "KernelLogReportsFault",
    "The kernel log reports a fault of a GPU, its driver or its links.",
    "Keep new pods off the node, and follow the action for the finding.",
    source="The rules of `gpu-healthcheck replay`",
)
KERNEL_NOTICE = _fault(
    "KernelLogReportsNotice",
    "The kernel log reports an event of a GPU or its driver that needs no repair of the hardware.",
    "Follow the action for the finding.",
    severity=CauseSeverity.MEDIUM,
    source="The rules of `gpu-healthcheck replay`",
)
_FAMILIES = (crashing, running, rejected, runtime_handlers, compute_domains, pod_startup, efa_jobs)
_CAUSES = tuple(dict.fromkeys(cause for family in _FAMILIES for one in family.SEARCHES for cause in one.causes))
_OF_EFA = frozenset(cause for one in efa_jobs.SEARCHES for cause in one.causes)
_GENERAL = (COMMAND_MISSING, CONFIG_MISSING)
"""Causes whose texts occur also in logs that have nothing to do with GPUs."""
_ROWS = {place: texts_in(place, (cause for cause in _CAUSES if cause not in _GENERAL)) for place in TextSource}
_ROWS[TextSource.LOG] += (crashing.ANY_ERROR,)
_ABOUT_GPUS = re.compile(
    r"nvidia|gpu|cu(?:da|blas|dnn)|nccl|nixl|nvml|NVRM|imex|torch|vllm|sglang|KV cache|c10d|gloo|triton|tensorflow|jax"
    r"|kserve|vulkan|NET/OFI|system not yet initialized|No devices were found|containerd config version"
    r"|root config version",
    re.IGNORECASE,
)
_ABOUT_EFA = re.compile(r"NET/OFI|libfabric|\befa", re.IGNORECASE)
_REJECTION = re.compile(r"which is unexpected|Pod was rejected: Allocate failed")
"""Words of the kubelet about a pod that it rejected; only then the texts about such pods count."""
_MOST_FINDINGS = 6
_OPERANDS = {
    Role.DRIVER: r"NVIDIA Software Installer|(?:Stopping NVIDIA persistence daemon|Unmounting NVIDIA driver rootfs"
    r"|(?:Installing|Resolving|Generating) Linux kernel (?:headers|module files|version)[\w ]{0,10})\.\.\.",
    Role.VALIDATOR: r"chroot with args \[/run/nvidia/driver|(?:validat\w{1,5} (?:the|a) |pre-installed )driver",
    Role.TOOLKIT: r"Starting (?:'?nvidia-toolkit|nvidia-ctk-installer)|Completed nvidia-(?:toolkit|ctk-installer)"
    r"|error running nvidia-(?:toolkit|ctk-installer)",
    Role.EFA_PLUGIN: r"Fetching EFA devices",
    Role.DOMAIN_DAEMON: r"IMEX (?:version|Log initializing)",
    Role.DRA_DRIVER: r"NVIDIA_DRIVER_ROOT \(currently|error creating driver: failed to",
    Role.EXPORTER: r"Starting dcgm-exporter",
    Role.MIG_MANAGER: r"nvidia-mig-parted|Updating to MIG config",
    Role.SANDBOX: r"Updating to vGPU config",
}
"""Lines that only the log of one component has."""
_WORKS, _END = re.compile(r"waiting for signal|successfully (?:updated|completed)", re.IGNORECASE), 300
"""Words of a component that works by now, and the last characters of its log."""


def known_in(log: str) -> Recognised | None:
    """Return the first cause whose text is in the log, texts of programs before those of the container runtime.

    A device plugin's log has its own search.
    """
    if failures_in(log) or not _ABOUT_GPUS.search(log):
        return None
    places = (*((TextSource.POD,) if _REJECTION.search(log) else ()), TextSource.LOG, TextSource.ENDED)
    of_efa = bool(_ABOUT_EFA.search(log))
    for place in places:
        rows = (row for row in _ROWS[place] if of_efa or row[0] not in _OF_EFA)
        if known := recognised(rows, (Symptom(place, "", log),)):
            return known
    return None


def failed_operand(log: str) -> tuple[Role, str] | None:
    """Return the component that wrote the log, and the fix of its failure; None if either is unknown."""
    role = next((role for role, words in _OPERANDS.items() if re.search(words, log)), None)
    fix = hint("\n".join(failed_run(log))) if role is not None and not _WORKS.search(log[-_END:]) else ""
    return (role, fix) if role is not None and fix else None


def is_known(log: str) -> bool:
    """Whether the log has the text of a cause."""
    return known_in(log) is not None or bool(failures_in(log) or refusals_in(log) or failed_operand(log))


def find_in_logs(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the cause that each log shows, and one result for each host with findings in its kernel log."""
    for subject, log in snapshot.other_logs.items():
        known, operand = known_in(log), failed_operand(log)
        # The log of a component says of the component itself what another program's log says of a GPU pod.
        if known is not None and not (operand and known.cause is NOT_INJECTED):
            fix = crashing.fix_in(known) or known.cause.remedy
            yield FoundCause(known.cause, subject, (f"log: {known.quote}",), (fix,), certainty=Certainty.LIKELY)
        elif operand is not None and not failures_in(log):
            role, fix = operand
            # The log of a visible pod belongs to that pod's own result.
            if not any(role_of(pod.meta, {}, pod.spec) is role for pod in snapshot.pods):
                lines = tuple(f"log: {line}" for line in telling_lines(log, ended=True))
                yield FoundCause(NOT_READY[role], subject, lines, (fix,), certainty=Certainty.LIKELY)
    for subject, findings in snapshot.kernel_findings.items():
        faults = [finding for finding in findings if finding.severity != Severity.MONITOR.name]
        yield _of_kernel(KERNEL_FAULT if faults else KERNEL_NOTICE, subject, faults or list(findings))


def _of_kernel(cause: Cause, subject: str, findings: list[RecordFinding]) -> FoundCause:
    evidence = (f"{one.reason} on {one.subject}, {one.severity}: {shortened(one.detail)}" for one in findings)
    reasons = dict.fromkeys(one.reason for one in findings[:_MOST_FINDINGS])
    steps = [f"See the action for {reason}: {explain(reason)}" for reason in reasons]
    if cause is KERNEL_FAULT:
        worst = max(Severity[one.severity] for one in findings)
        cordon = command("kubectl", "cordon", subject.partition("/")[2])
        then = step_for(worst, [one.subject for one in findings])
        steps = [f"Keep new pods off the node: {cordon}", f"Then {then}.", *steps]
    return FoundCause(cause, subject, tuple(evidence), tuple(steps), certainty=Certainty.LIKELY)


SEARCHES = (Search((KERNEL_FAULT, KERNEL_NOTICE), (), find_in_logs),)
