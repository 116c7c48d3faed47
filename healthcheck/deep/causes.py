"""Causes for which a test of a quarantine run has no result, shared by all its tests."""

from __future__ import annotations

from gpu_healthcheck.healthcheck.model import UnobservedCause

RUN_STOPPED = UnobservedCause(
    "RunStopped",
    "The quarantine run was stopped, or its time was over, before this test had ended.",
    "Quarantine the node again.",
)
NOT_FINISHED = UnobservedCause(
    "NotFinished",
    "The record is of a run that is still active, or that was killed.",
    "Wait for its end, or quarantine the node again.",
)
CAUSES = (RUN_STOPPED, NOT_FINISHED)
