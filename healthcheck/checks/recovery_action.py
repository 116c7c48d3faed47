"""What the driver itself wants done with a GPU: NVML's recovery action."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.catalog.recovery import recovery_actions, severity_of_recovery
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.per_gpu import placed, shown_functions, silent
from healthcheck.model import Check, Evidence, Finding, Judgement, Reason, Seen, Severity, Unobserved, counted
from healthcheck.probes.nvml import gpus as nvml

_SOURCE = "nvml.h, field 230"

# Not one that flickers: it is a state that the driver announces (Xid 154) when it enters and when it leaves it, so one
# look that shows it is enough, and the look after the recovery shows it gone.
WANTED = Reason(
    "GpuRecoveryAction",
    Severity.RESET,
    "The driver wants a GPU recovered, by a reset or a reboot.",
    "Do what the finding's detail names: drain the node and reset the GPU, or reboot.",
    threshold="any action but None",
    source=f"{_SOURCE}; drivers from R565 on",
)


def judge(seen: Evidence, _: Expectation) -> Iterator[Judgement]:
    answer = seen[nvml.NVML].answer
    if isinstance(answer, Unobserved):
        yield answer
        return
    # Asked of a GPU with a fault of its own too: what the driver wants done with it is what matters then.
    for gpu in placed(answer, shown_functions(seen)):
        if gpu.recovery_action:
            yield _wanted(gpu, gpu.recovery_action)
        elif gpu.recovery_action is None and gpu.error:
            yield silent(gpu, gpu.error)
        elif gpu.recovery_action is None and gpu.recovery_error:
            yield silent(gpu, gpu.recovery_error, "recovery action")
    told = [gpu.recovery_action for gpu in answer.gpus if gpu.recovery_action is not None]
    wanting = sum(action != 0 for action in told)
    if told:
        yield Seen(f"a recovery is wanted for {wanting} of {counted(len(told), 'GPU')}", "none", _SOURCE)
    elif answer.gpus:
        yield Seen("no GPU tells whether it wants to be recovered", "none", _SOURCE)


def _wanted(gpu: nvml.Gpu, action: int) -> Finding:
    row = recovery_actions().get(action)
    name = row.name if row else "one that nvml.h has no name for"
    severity = severity_of_recovery(action)
    return Finding(WANTED.name, severity, gpu.subject, f"recovery action {action} ({name})", gpu.about)


CHECK = Check("recovery-action", "0-nvidia-smi", (nvml.NVML,), judge, (WANTED,))
