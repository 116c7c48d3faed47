"""Check: the recovery action that the driver requests for a GPU, from NVML."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.catalog.xid import RecoveryAction, recovery_action
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import placed, shown_functions, silent
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    Observation,
    Reason,
    Severity,
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

_SOURCE = "nvml.h, field 230"

# The reason has no `flickers`: the driver announces this state (Xid 154) when it begins and when it ends. One check
# cycle is enough to show it, and the cycle after the recovery shows that it is gone.
WANTED = Reason(
    "GpuRecoveryAction",
    Severity.RESET,
    "A GPU needs a reset or a reboot: the driver requests its recovery.",
    "Do the action in the detail: drain the node and reset the GPU, or reboot.",
    threshold="any action except None",
    source=f"{_SOURCE}; drivers from R565 on",
)
# This is a fault of the node: each of its GPUs reports it. The node must stay schedulable for the IMEX daemon's
# pod, whose start ends the fault.
IMEX = Reason(
    "ImexRecoveryRequired",
    Severity.MONITOR,
    "The node's IMEX domain needs a recovery: the driver requests it, because GPU memory of other nodes (over "
    "NVLink) was lost.",
    "Restart the node's IMEX daemon: delete the pod of the DRA driver's ComputeDomain on this node, or restart the "
    "host's nvidia-imex service.",
    threshold="the action Recover IMEX Domain on any GPU",
    source=f"{_SOURCE}; NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN, drivers from R595 on (NVML's change log)",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    answer = evidence[nvml.NVML].answer
    if isinstance(answer, Unobserved):
        yield answer
        return
    of_imex = 0
    # A GPU with another fault counts too, because its recovery action matters then.
    for gpu in placed(answer, shown_functions(evidence)):
        if gpu.recovery_action:
            action = recovery_action(gpu.recovery_action, answer.driver_version)
            if action is not None and action.is_of_imex:
                of_imex += 1
            else:
                yield _wanted(gpu, gpu.recovery_action, action)
        elif gpu.recovery_action is None and gpu.error:
            yield silent(gpu, gpu.error)
        elif gpu.recovery_action is None and gpu.recovery_error:
            yield silent(gpu, gpu.recovery_error, "recovery action")
    if of_imex:
        detail = f"recovery action 5 (Recover IMEX Domain) of {counted(of_imex, 'GPU')}"
        yield IMEX.on("node", detail)
    actions = [gpu.recovery_action for gpu in answer.gpus if gpu.recovery_action is not None]
    wanting = sum(action != 0 for action in actions)
    if actions:
        yield Observation(f"a recovery is requested for {wanting} of {counted(len(actions), 'GPU')}", "none", _SOURCE)
    elif answer.gpus:
        yield Observation("no GPU reports its recovery action", "none", _SOURCE)


def _wanted(gpu: nvml.Gpu, number: int, action: RecoveryAction | None) -> Finding:
    name = action.name if action else "unknown in nvml.h"
    severity = action.severity if action else Severity.MONITOR
    return Finding(WANTED.name, severity, gpu.subject, f"recovery action {number} ({name})", gpu.about)


CHECK = Check("recovery-action", "0-nvidia-smi", (nvml.NVML,), judge, (WANTED, IMEX))
