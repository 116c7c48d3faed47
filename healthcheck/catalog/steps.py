"""Steps of the operator that end a finding, by its severity and the kind of its subject."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from healthcheck.model import Severity

STEPS: Mapping[Severity, str] = {
    Severity.PASS: "no finding; only counted",
    Severity.MONITOR: "nothing now; check again when it recurs",
    Severity.RESET: "drain the node and reset the GPU, or reboot",
    Severity.REBOOT: "drain and reboot the node",
    Severity.ISOLATE: "keep work away and replace the node",
}
"""Steps for findings on GPUs."""
RELOAD = "drain the node and reload the driver, or reboot"
"""Step for RESET of a switch or of the driver as a whole, which the reset of one GPU does not end."""
RELOADED = frozenset({"driver", "nvswitch"})
"""Kinds of subjects that are reset when the driver is reloaded and every GPU answers afterwards."""


def step_for(severity: Severity, subjects: Iterable[str]) -> str:
    """Return the step that ends findings of this severity on these subjects, each of them `kind/name` or a kind."""
    other_kinds = {subject.partition("/")[0] for subject in subjects} - {"gpu"}
    if severity is not Severity.RESET or not other_kinds:
        return STEPS[severity]
    return RELOAD if other_kinds <= RELOADED else STEPS[Severity.REBOOT]
