"""Check: each GPU keeps its driver state between processes (persistence mode)."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import DRIVER_GRACE, all_lack, answering, found, settled
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    counted,
)
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

OFF = Reason(
    "PersistenceModeOff",
    Severity.MONITOR,
    "A GPU's persistence mode is off: when the last process on it ends, its driver state is lost and must be "
    "rebuilt, which takes seconds.",
    "Run nvidia-persistenced on the node; until then run `nvidia-smi -pm 1`.",
    # Persistence mode is off while the node boots: nvidia-persistenced starts after the driver.
    flickers=True,
    source="DCGM 29, DCGM_FR_PERSISTENCE_MODE",
    grace=DRIVER_GRACE,
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence, "persistence")
    able = [gpu for gpu in gpus if gpu.persistence is not None]
    if all_lack(gpus, "persistence"):
        yield NotConfigured("no GPU here has a persistence mode")
    elif able:
        yield Observation(
            f"on for {sum(gpu.persistence is True for gpu in able)} of {counted(len(able), 'GPU')}", "all"
        )
    for gpu in able:
        if not gpu.persistence:
            yield settled(found(OFF, gpu, "persistence mode is off"), expected)


CHECK = Check("persistence-mode", "0-nvidia-smi", (nvml.NVML,), judge, (OFF,))
