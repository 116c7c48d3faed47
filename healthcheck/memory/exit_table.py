"""Table of the ways in which findings end (exits): which findings each can end, and its text in the record.

A row defines which findings an exit can end. The module `exits` queries the table and reads the evidence for an exit.
The record's `exit` therefore names exactly the exits that can end a finding. Pure functions, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.policy import RELOADED
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, gpu_address
from gpu_healthcheck.healthcheck.memory.reason_names import (
    DRIVER_LOAD,
    LEVEL_2,
    LIBRARY_MISMATCH,
    MLX5_MESSAGES,
    SLOW,
    SLOWER_THAN_SIBLINGS,
)
from gpu_healthcheck.healthcheck.model import Nature, Severity
from gpu_healthcheck.healthcheck.model.node_facts import ONCE_HAD

RECOVERY_XID = "Xid154"
SMOOTHING_OFF = "Xid163"
_INSTANCE = "/gi"


class Exit(Struct, frozen=True):
    """One exit: `words` is its text in the record, `of` and `when` are its columns in docs/record.md.

    `is_open_to` is the test that `of` describes.
    """

    words: str
    of: str
    when: str
    is_open_to: Callable[[ActiveFinding], bool]


def _is_event(finding: ActiveFinding) -> bool:
    return finding.nature is Nature.EVENT


def _event(*severities: Severity) -> Callable[[ActiveFinding], bool]:
    return lambda finding: _is_event(finding) and finding.finding.tier in severities and not _is_slow(finding)


def _is_slow(finding: ActiveFinding) -> bool:
    return finding.finding.reason in SLOW


def _is_on_gpu(finding: ActiveFinding) -> bool:
    return gpu_address(finding.finding.subject) != ""


def _is_slower_than_siblings(finding: ActiveFinding) -> bool:
    """Whether it is the level that an idle node keeps: only work shows that a GPU is not slow any more."""
    return finding.nature is Nature.LEVEL and finding.finding.reason == SLOWER_THAN_SIBLINGS


_ASKS_FOR_RESET = _event(Severity.RESET)

NOT_SHOWN = Exit(
    "a check cycle without it",
    "a level",
    "a check cycle no longer shows the fault",
    lambda one: one.nature is Nature.LEVEL,
)
LIBRARY_FITS = Exit(
    "a check cycle that can open NVML",
    "`DriverLibraryMismatch`",
    "NVML can be opened, which requires the same version of library and module",
    lambda one: _is_event(one) and one.finding.reason == LIBRARY_MISMATCH,
)
DRIVER_LOADED = Exit(
    "a load of the driver that initialises every GPU",
    "`GpuInitFailed` that the driver logged while it was loaded",
    "the driver is loaded again without such a line, or every GPU on PCI not bound to another driver answers NVML",
    lambda one: _is_event(one) and one.finding.base[1] == DRIVER_LOAD,
)
TIME = Exit(
    "time",
    "an event of MONITOR, `GpuSlowerThanSiblings`",
    "`MONITOR_TTL` passed since its last observation",
    lambda one: _event(Severity.MONITOR)(one) or _is_slower_than_siblings(one),
)
RECOVERED = Exit(
    "the return of its recovery action to None",
    "Xid 154, which reports a state, not a fault",
    "the driver withdrew the action",
    lambda one: (
        _is_event(one) and one.finding.reason == RECOVERY_XID and (_is_on_gpu(one) or one.finding.subject == "node")
    ),
)
RE_ENGAGED = Exit(
    "Xid 162",
    "Xid 163",
    "the driver reports that power smoothing works again on that GPU",
    lambda one: _is_event(one) and one.finding.reason == SMOOTHING_OFF,
)
DEVICE_RECOVERED = Exit(
    "the driver's recovery of the device",
    "`Mlx5Unrecoverable`, `Mlx5NotResponding`",
    "the driver logs `health recovery succeeded` for that device",
    lambda one: _is_event(one) and one.check == MLX5_MESSAGES,
)
RESET = Exit(
    "reset of the GPU",
    "an event of RESET on a GPU",
    "that GPU was reset",
    lambda one: _ASKS_FOR_RESET(one) and _is_on_gpu(one),
)
ALL_RESET = Exit(
    "a reload of the driver after which all GPUs answer",
    "an event of RESET on an NVSwitch, or on the driver as a whole",
    "the driver was reloaded, and every GPU of the node answers afterwards",
    lambda one: _ASKS_FOR_RESET(one) and one.finding.subject.partition("/")[0] in RELOADED,
)
REBOOT = Exit(
    "reboot",
    "an event below ISOLATE",
    "the node boots",
    lambda one: _is_event(one) and one.finding.tier is not Severity.ISOLATE and not _is_slow(one),
)
QUARANTINE = Exit(
    "a passed quarantine run",
    "an event of RESET or worse, `GpuSlowerThanSiblings`",
    "a run that began later passed, including level 4",
    lambda one: _event(Severity.RESET, Severity.REBOOT, Severity.ISOLATE)(one) or _is_slower_than_siblings(one),
)
RELEASE = Exit(
    "release",
    "an event, `GpuSlowerThanSiblings`, or a level that is based on this machine's earlier hardware (`GpuCountLow`)",
    "a person releases it; a release of the count accepts the present one",
    lambda one: _is_event(one) or _is_slower_than_siblings(one) or one.finding.source == ONCE_HAD,
)
MEASURED = Exit(
    "a later quarantine run that measures a sufficient speed",
    "`GpuComputeSlow`, `GpuCopySlow`",
    "a run that began later measured that GPU; besides, only a release and another GPU end them",
    lambda one: _is_event(one) and _is_slow(one),
)
LEVEL_2_PASSED = Exit(
    "a later level 2 in which the same test passes",
    "an event from DCGM's level 2",
    "the same test passes on that GPU in a later level 2 or 4",
    lambda one: _is_event(one) and one.check == LEVEL_2,
)
INSTANCE_GONE = Exit(
    "the removal of its MIG instance",
    "an event of a MIG instance",
    "the GPU answers without that instance",
    lambda one: _is_event(one) and _is_on_gpu(one) and _INSTANCE in one.finding.subject,
)
OTHER_GPU = Exit(
    "another GPU in its place",
    "an event on a GPU",
    "another serial or UUID answers at its address, and the GPU answers nowhere else",
    lambda one: _is_event(one) and _is_on_gpu(one),
)

EXITS = (
    NOT_SHOWN,
    LIBRARY_FITS,
    DRIVER_LOADED,
    TIME,
    RECOVERED,
    RE_ENGAGED,
    DEVICE_RECOVERED,
    RESET,
    ALL_RESET,
    REBOOT,
    QUARANTINE,
    MEASURED,
    RELEASE,
    LEVEL_2_PASSED,
    INSTANCE_GONE,
    OTHER_GPU,
)
"""Exits in the order of the record: automatic exits, changes of the node, actions of a person."""


def exit_words(finding: ActiveFinding) -> str:
    """Return the exits that can end the finding, as the record's `exit` lists them."""
    return ", ".join(way.words for way in EXITS if way.is_open_to(finding))
