"""The list of every check, in the order in which the record shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from healthcheck.checks import (
    cdi_specs,
    cgroup_driver,
    clocks,
    container_runtime,
    dcgm_diag,
    default_runtime,
    driver,
    driver_messages,
    ecc,
    ecc_mode,
    efa_count,
    efa_driver,
    efa_errors,
    efa_gpudirect,
    efa_keep_alive,
    efa_loopback,
    efa_provider,
    fabric,
    fabric_manager,
    gpu_count,
    gpu_memory_held,
    gpu_placement,
    gpu_repair,
    imex,
    inforom,
    memlock,
    mig_mode,
    nccl_allreduce,
    nouveau,
    nvidia_runtime,
    nvidia_toolkit,
    nvlink,
    nvlink_errors,
    nvswitch,
    p2p,
    pcie_link,
    pcie_replays,
    persistence_mode,
    recovery_action,
    retired_pages,
    row_remap,
    runtime_binary,
    runtime_classes,
    runtime_loaded,
    runtime_type,
    sxid,
    temperature,
    xid,
)
from healthcheck.model import Check

CHECKS: tuple[Check, ...] = (
    driver.CHECK,
    gpu_count.CHECK,
    recovery_action.CHECK,
    ecc.CHECK,
    row_remap.CHECK,
    retired_pages.CHECK,
    gpu_repair.CHECK,
    inforom.CHECK,
    ecc_mode.CHECK,
    mig_mode.CHECK,
    persistence_mode.CHECK,
    clocks.CHECK,
    temperature.CHECK,
    gpu_memory_held.CHECK,
    xid.CHECK,
    sxid.CHECK,
    driver_messages.CHECK,
    efa_driver.CHECK,
    efa_count.CHECK,
    efa_errors.CHECK,
    efa_keep_alive.CHECK,
    efa_gpudirect.CHECK,
    efa_provider.CHECK,
    memlock.CHECK,
    nvlink.CHECK,
    nvlink_errors.CHECK,
    p2p.CHECK,
    nvswitch.CHECK,
    fabric.CHECK,
    fabric_manager.CHECK,
    imex.CHECK,
    pcie_link.CHECK,
    pcie_replays.CHECK,
    gpu_placement.CHECK,
    nouveau.CHECK,
    container_runtime.CHECK,
    runtime_loaded.CHECK,
    nvidia_runtime.CHECK,
    default_runtime.CHECK,
    runtime_type.CHECK,
    runtime_binary.CHECK,
    nvidia_toolkit.CHECK,
    cdi_specs.CHECK,
    cgroup_driver.CHECK,
    runtime_classes.CHECK,
)

DEEP_CHECKS: tuple[Check, ...] = (dcgm_diag.LEVEL_2, dcgm_diag.LEVEL_4, nccl_allreduce.CHECK, efa_loopback.CHECK)
"""What needs the node for itself. No light look runs them, whatever `CHECKS_LIGHTWEIGHT` says."""

KERNEL_LINES: tuple[str, ...] = tuple(sorted({begin for check in CHECKS for begin in check.begins}))
"""How a line of the kernel's log begins that any check reads."""

GROUPS: Mapping[str, str] = {
    "0": "0-nvidia-smi",
    "1": "1-dcgm-diag-l2",
    "2": "2-efa-enumeration",
    "3": "3-topology-check",
    "4": "4-dcgm-diag-l4",
    "5": "5-nccl-allreduce",
    "6": "6-efa-loopback",
    "7": "7-container-runtime",
    "8": "8-hami",
}
"""Group number to the name that the record shows (contract, section 1)."""


def select_checks(words: Iterable[str]) -> tuple[Check, ...]:
    """The checks of the groups, numbers or names given, in their own order. Raises ValueError for another word."""
    wanted: set[str] = set()
    for word in words:
        wanted |= _named(word)
    return tuple(check for check in CHECKS if check.name in wanted)


def _named(word: str) -> set[str]:
    group = GROUPS.get(word, word)
    if group in GROUPS.values():
        return {check.name for check in CHECKS if check.group == group}
    if any(check.name == word for check in CHECKS):
        return {word}
    allowed = ", ".join([*GROUPS, *GROUPS.values(), *(check.name for check in CHECKS)])
    raise ValueError(f"no check {word[:40]!r}; allowed are {allowed}")
