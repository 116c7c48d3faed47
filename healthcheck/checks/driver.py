"""Check: the driver answers, and its libraries on the node match its kernel module.

Some dead GPUs show no other sign than a call that never returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_healthcheck.healthcheck.checks import driver_reasons
from gpu_healthcheck.healthcheck.checks.driver_reasons import LIBRARY_MISMATCH
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Evidence, Judgement, Observation, Reason, Severity, Unobserved
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

APART_SECONDS = 30.0
"""Least time between two missed deadlines that count as a fault (docs/rules.md 10)."""

UNRESPONSIVE = Reason(
    "DriverUnresponsive",
    Severity.REBOOT,
    "The driver does not answer: NVML missed its deadline twice, because a call hangs in the driver.",
    "Drain and reboot the node: a process that hangs in the driver can't be killed.",
    threshold=f"two deadlines missed, at least {APART_SECONDS:.0f} s apart",
)
# This fault has three stages. For the first 180 s, or if NVML can be opened in spite of it, the node's files show it
# (MONITOR). Then NVML's error 18 confirms it (RESET). A container with its own library fails alone: this appears as a
# line of the kernel log (the MONITOR event of the same name), or as could-not-check if the container is the agent's.
VERSION_MISMATCH = Reason(
    "DriverVersionMismatch",
    Severity.MONITOR,
    "No driver library of the node matches the loaded kernel module: new programs can't use the GPUs.",
    "After a driver upgrade, reboot or reload the module. Otherwise install the library of the module's version.",
    flickers=True,
    threshold="the versions differ",
    source="nvml.h, error 18: NVML requires the same version",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    reading = evidence[nvml.NVML]
    yield from _answer(reading)
    yield from _versions(reading)


def _answer(reading: nvml.DriverReading) -> Iterator[Judgement]:
    if reading.missed and reading.missed[-1] - reading.missed[0] >= APART_SECONDS:
        # The detail has no running counter: the same fault must give the same text in the next check cycle.
        detail = f"no answer within {reading.deadline_seconds:g} s, since {reading.missed[0]:.0f} s after boot"
        if reading.stuck_pid:
            detail += f"; process {reading.stuck_pid} can't be killed"
        yield UNRESPONSIVE.on("driver", detail)
    elif isinstance(reading.answer, Unobserved):
        yield reading.answer


def _versions(reading: nvml.DriverReading) -> Iterator[Judgement]:
    if not reading.module_version:
        return
    libraries = ", ".join(reading.library_versions)
    versions = f"kernel module {reading.module_version}, library {libraries or 'not found'}"
    yield Observation(versions, "the same version", "NVML's rule")
    if libraries and reading.module_version not in reading.library_versions:
        seconds = reading.mismatch_seconds
        is_confirmed = seconds is not None and seconds >= driver_reasons.MISMATCH_SECONDS
        reason = LIBRARY_MISMATCH if is_confirmed else VERSION_MISMATCH
        yield reason.on("driver", versions)


def being_changed(labels: Mapping[str, str]) -> str:
    """Return the Node label that shows a change of the driver in progress, or an empty string.

    The GPU operator pauses its operands during a driver upgrade (`nvidia.com/gpu.deploy.*=paused-...`). MIG manager
    marks a change of the geometry (`nvidia.com/mig.config.state=pending`). Reading NVML would disturb such a change.
    """
    deployed = (key for key in labels if key.startswith("nvidia.com/gpu.deploy."))
    if paused := min((key for key in deployed if labels[key].startswith("paused")), default=""):
        return f"label {paused}={labels[paused]}"
    if labels.get("nvidia.com/mig.config.state") == "pending":
        return "label nvidia.com/mig.config.state=pending"
    return ""


CHECK = Check("driver", "0-nvidia-smi", (nvml.NVML,), judge, (UNRESPONSIVE, LIBRARY_MISMATCH, VERSION_MISMATCH))
