"""The list of every check, in the order in which the record shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_healthcheck.healthcheck.checks import (
    cdi_specs,
    cgroup_driver,
    clocks,
    container_runtime,
    dcgm_diag,
    default_runtime,
    device_files,
    driver,
    driver_messages,
    ecc,
    ecc_mode,
    ecc_storm,
    efa_count,
    efa_driver,
    efa_errors,
    efa_gpudirect,
    efa_keep_alive,
    efa_loopback,
    efa_namespaces,
    efa_provider,
    fabric,
    fabric_manager,
    gdrcopy,
    gpu_count,
    gpu_load,
    gpu_memory_held,
    gpu_placement,
    gpu_repair,
    gpu_siblings,
    hami,
    imex,
    inforom,
    memlock,
    mig_mode,
    mlx5_messages,
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
    rdma_loopback,
    recovery_action,
    retired_pages,
    roce_count,
    roce_errors,
    roce_ports,
    row_remap,
    runtime_binary,
    runtime_classes,
    runtime_loaded,
    runtime_type,
    sxid,
    temperature,
    xid,
)
from gpu_healthcheck.healthcheck.checks.examine import CAUSES as OF_ANY_CHECK
from gpu_healthcheck.healthcheck.model import Check, UnobservedCause

_LONGEST_NAME = 40

CHECKS: tuple[Check, ...] = (
    driver.CHECK,
    gpu_count.CHECK,
    recovery_action.CHECK,
    ecc.CHECK,
    ecc_storm.CHECK,
    row_remap.CHECK,
    retired_pages.CHECK,
    gpu_repair.CHECK,
    inforom.CHECK,
    ecc_mode.CHECK,
    mig_mode.CHECK,
    persistence_mode.CHECK,
    clocks.CHECK,
    temperature.CHECK,
    gpu_siblings.CHECK,
    gpu_memory_held.CHECK,
    device_files.CHECK,
    xid.CHECK,
    sxid.CHECK,
    driver_messages.CHECK,
    efa_driver.CHECK,
    efa_count.CHECK,
    efa_errors.CHECK,
    efa_keep_alive.CHECK,
    efa_gpudirect.CHECK,
    efa_provider.CHECK,
    efa_namespaces.CHECK,
    memlock.CHECK,
    gdrcopy.CHECK,
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
    hami.CHECK,
    roce_count.CHECK,
    roce_ports.CHECK,
    roce_errors.CHECK,
    mlx5_messages.CHECK,
)

DEEP_CHECKS: tuple[Check, ...] = (
    dcgm_diag.LEVEL_2,
    dcgm_diag.LEVEL_4,
    nccl_allreduce.CHECK,
    efa_loopback.CHECK,
    rdma_loopback.CHECK,
    gpu_load.CHECK,
)
"""Checks that need exclusive use of the node. Whatever `CHECKS_LIGHTWEIGHT` is, the light check cycle never runs them.
"""

CAUSES: tuple[UnobservedCause, ...] = tuple(
    dict.fromkeys(
        cause
        for check in (*CHECKS, *DEEP_CHECKS)
        for causes in (*(probe.causes for probe in check.needs), check.causes)
        for cause in causes
    )
)
CAUSES += OF_ANY_CHECK
"""Causes for which a check could not run; the causes of its probes come first."""

KERNEL_LINES: tuple[str, ...] = tuple(sorted({begin for check in CHECKS for begin in check.begins}))
"""Prefixes of all kernel log lines that checks read."""

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
    "9": "9-roce",
    "10": "10-gpu-load",
}
"""Group number to the group name in the record."""


SHORT_NAMES: Mapping[str, str] = {
    **{name.partition("-")[2]: name for name in GROUPS.values()},
    "dcgm-l2": "1-dcgm-diag-l2",
    "efa": "2-efa-enumeration",
    "topology": "3-topology-check",
    "dcgm-l4": "4-dcgm-diag-l4",
    "siblings": gpu_siblings.CHECK.name,
}
"""Names of groups without their numbers, the names that the earlier scripts used, and the short name of a check."""

_GROUP_NUMBERS = {name: number for number, name in GROUPS.items()}
_NAMED: Mapping[str, tuple[Check, ...]] = {
    word: tuple(check for check in (*CHECKS, *DEEP_CHECKS) if name in (check.group, check.name))
    for word, name in (*GROUPS.items(), *((name, name) for name in GROUPS.values()), *SHORT_NAMES.items())
} | {check.name: (check,) for check in (*CHECKS, *DEEP_CHECKS)}
"""Checks by any name. If a check and its group have the same short name, the name means the check."""
_LIGHT_GROUPS = {check.group for check in CHECKS}
_LIGHT = tuple(group for group in GROUPS.values() if group in _LIGHT_GROUPS)

MEANINGS: Mapping[str, str] = {
    reason.name: reason.meaning for check in (*CHECKS, *DEEP_CHECKS) for reason in check.reasons
}
"""Meanings of all reasons but Xids and SXids."""


def checks_named(word: str) -> tuple[Check, ...]:
    """Return the light and deep checks for a group's number or name, or for a check's name.

    Raises ValueError for an unknown name.
    """
    if word not in _NAMED:
        raise ValueError(_unknown_name(word, f"allowed are {_listed(GROUPS.values(), (*CHECKS, *DEEP_CHECKS))}"))
    return _NAMED[word]


def select_checks(words: Iterable[str]) -> tuple[Check, ...]:
    """Return the light checks with these names, in the order of CHECKS. Raises ValueError for an unknown name."""
    wanted = {check.name for word in words for check in _light(word)}
    return tuple(check for check in CHECKS if check.name in wanted)


def groups_in(checks: Iterable[Check]) -> str:
    """Return the numbers of the groups of these checks."""
    return ", ".join(sorted({_GROUP_NUMBERS[check.group] for check in checks}))


def _light(word: str) -> tuple[Check, ...]:
    light = tuple(check for check in _NAMED.get(word, ()) if check not in DEEP_CHECKS)
    if light:
        return light
    allowed = f"allowed are {_listed(_LIGHT, CHECKS)}"
    if word not in _NAMED:
        raise ValueError(_unknown_name(word, allowed))
    raise ValueError(f"{word} is not a light check: it needs exclusive use of the GPUs; {allowed}")


def _unknown_name(word: str, allowed: str) -> str:
    import difflib  # noqa: PLC0415 - needed only for a mistyped name

    close = difflib.get_close_matches(word[:_LONGEST_NAME].lower(), _NAMED, 1)
    return f"no check {word[:_LONGEST_NAME]!r}{f' (did you mean {close[0]}?)' if close else ''}; {allowed}"


def _listed(groups: Iterable[str], checks: Iterable[Check]) -> str:
    groups = tuple(groups)
    return ", ".join([*(_GROUP_NUMBERS[name] for name in groups), *groups, *(check.name for check in checks)])
