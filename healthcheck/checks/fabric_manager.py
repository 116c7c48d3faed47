"""Check: the fabric manager runs if the node needs one, has the driver's version, and is connected to the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.catalog.hardware import fabric_of
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import (
    DRIVER_GRACE,
    FABRIC_COMING_UP,
    FABRIC_GRACE,
    is_fabric_coming_up,
    takes_part_in_fabric,
)
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.probes import driver_files, pci, services
from gpu_healthcheck.healthcheck.probes.nvml import error_causes
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml
from gpu_healthcheck.healthcheck.text.naming import named

_NO_DRIVER = (error_causes.DRIVER_BEING_CHANGED, error_causes.DRIVER_NOT_LOADED)
"""Causes of a missing NVML answer for which a fabric manager can't run either."""
_OURS = ("nvidia", "")
"""Drivers of a GPU that is not assigned to a virtual machine: NVIDIA's, or none."""
_MOST_NAMED = 4
_SWITCH_DRIVER = "nvidia-nvswitch"
"""Driver of NVSwitches that the host itself manages (open-gpu-kernel-modules, kernel-open/nvidia/linux_nvswitch.c)."""

NOT_RUNNING = Reason(
    "FabricManagerNotRunning",
    Severity.RESET,
    "No fabric manager runs: new CUDA programs fail with error 802 while NVML looks healthy.",
    "Start nvidia-fabricmanager (on the host, or in the GPU operator's driver pod) and read in its log why it ended.",
    flickers=True,
    source="Fabric Manager User Guide; NVSentinel issue 883: one was down for 20 days undetected",
    grace=DRIVER_GRACE,
)
DISCONNECTED = Reason(
    "FabricManagerDisconnected",
    Severity.RESET,
    "GPUs have lost the fabric manager: after a reset they can't register again, and no fault of NVLink is handled.",
    "Read in the fabric manager's log why it lost the GPUs, and restart it: nvidia-fabricmanager on the host or in the "
    "GPU operator's driver pod; for a rack, the NVLink controller on its switches.",
    flickers=True,
    threshold="the driver reports the fabric manager as disconnected, in the health mask of a registered GPU",
    source="nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_GFM_STATE (NVML change log, v610 to v615); NVSentinel issue 883",
    grace=FABRIC_GRACE,
)
MISMATCH = Reason(
    "FabricManagerVersionMismatch",
    Severity.MONITOR,
    "The fabric manager's version differs from the driver's: it refuses to run, or will refuse at its next start.",
    "Install the fabric manager of exactly the driver's version, or reboot if the driver was upgraded while it ran.",
    flickers=True,
    source="Fabric Manager User Guide: both versions must be the same",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    functions = evidence[pci.FUNCTIONS]
    source = _needed_by(functions, expected)
    links = _manager_links(evidence) if source or _may_be_elsewhere(expected) else {}
    if not source and not links:
        yield NotConfigured("no fabric manager is needed on this node")
        return
    gpus = [function for function in functions if function.is_gpu]
    if gpus and all(function.driver not in _OURS for function in gpus):
        yield NotConfigured("every GPU is bound to another driver")
        return
    lost = [subject for subject, connected in links.items() if not connected]
    if not source:
        yield from _disconnected(evidence, expected, links, lost)
        yield Observation(_connections(links, lost), "all", "NVML's fabric health mask")
        return
    unobserved = _unobserved(evidence, links)
    if unobserved:
        yield unobserved
        return
    states = evidence[services.SERVICES]
    running = states.find(services.FABRIC_MANAGER)
    driver = evidence[driver_files.MODULES].nvidia
    start, namesakes = states.fabric_manager_start, states.namesakes(services.FABRIC_MANAGER)
    # A user can give a process this name, but not connect it to the GPUs.
    is_known_by_driver = bool(links) and (bool(namesakes) or not states.of_host)
    if running or is_known_by_driver:
        yield from _disconnected(evidence, expected, links, lost)
    elif states.is_unsure(services.FABRIC_MANAGER):
        yield Unobserved(services.UNCERTAIN, f"unknown whether the node's own fabric manager runs: {namesakes}")
    elif expected.driver_age_seconds < DRIVER_GRACE.seconds:
        yield Unobserved(
            error_causes.DRIVER_JUST_LOADED,
            f"no fabric manager runs yet; judged {DRIVER_GRACE.seconds:g} s after {DRIVER_GRACE.since}",
        )
    else:
        others = f"; {namesakes}, which does not belong to the node" if namesakes else ""
        yield NOT_RUNNING.on("node", f"no process {services.FABRIC_MANAGER}{others}")
    if start and _is_of_current_driver(start, driver, running is not None) and start.version != driver:
        yield MISMATCH.on("node", f"fabric manager {start.version}, driver {driver}")
    summary = _summary(running is not None, start) if running or not is_known_by_driver else "process not visible"
    summary += f"; {_connections(links, lost)}" if links else ""
    summary += f"; not counted: {namesakes}" if namesakes else ""
    yield Observation(summary, f"running, version {driver}", source)


def _manager_links(evidence: Evidence) -> dict[str, bool]:
    """Return, by GPU, whether the fabric manager is connected to it, without GPUs whose driver does not report that."""
    answer = evidence[nvml.NVML].answer
    gpus = answer.gpus if isinstance(answer, nvml.Gpus) else ()
    links = {gpu.subject: gpu.fabric.manager_connected for gpu in gpus if gpu.fabric and takes_part_in_fabric(gpu)}
    return {subject: connected for subject, connected in links.items() if connected is not None}


def _may_be_elsewhere(expected: Expectation) -> bool:
    """Whether a fabric manager outside this node may manage its GPUs, as on a rack."""
    row = fabric_of(expected.instance_type)
    return row is None or row.imex


def _disconnected(
    evidence: Evidence, expected: Expectation, links: dict[str, bool], lost: list[str]
) -> Iterator[Judgement]:
    if not lost:
        return
    detail = _connections(links, lost)
    if is_fabric_coming_up(evidence, expected):
        pending = f"{detail}; judged {FABRIC_GRACE.seconds:g} s after {FABRIC_GRACE.since}"
        yield Unobserved(FABRIC_COMING_UP, pending)
    else:
        yield DISCONNECTED.on("node", f"{detail}; not {named(lost, _MOST_NAMED)}")


def _connections(links: dict[str, bool], lost: list[str]) -> str:
    return f"{len(links) - len(lost)} of {counted(len(links), 'GPU')} connected to the fabric manager"


def _needed_by(functions: tuple[pci.PciFunction, ...], expected: Expectation) -> str:
    """Return the source of the requirement that this node runs a fabric manager, or an empty string.

    For an unknown instance type, the NVSwitches on PCI show the requirement.
    """
    row = fabric_of(expected.instance_type)
    if row is not None:
        return f"{row.instance_type} in fabrics.csv" if row.fabric_manager else ""
    driven = any(function.is_nvswitch and function.driver == _SWITCH_DRIVER for function in functions)
    return "NVSwitches on PCI" if driven else ""


def _unobserved(evidence: Evidence, links: dict[str, bool]) -> Unobserved | None:
    answer = evidence[nvml.NVML].answer
    if isinstance(answer, Unobserved) and answer.cause in _NO_DRIVER:
        return answer
    if not evidence[driver_files.MODULES].nvidia:
        return Unobserved(
            error_causes.DRIVER_NOT_LOADED, "the fabric manager needs the nvidia kernel module, which is not loaded"
        )
    if not evidence[services.SERVICES].of_host and not links:
        return Unobserved(services.PROCESSES_HIDDEN, "the host's processes are not visible")
    return None


def _is_of_current_driver(start: services.FabricManagerStart, driver: str, runs: bool) -> bool:
    """Whether this start of the fabric manager applies now.

    A refusal applies until another driver is loaded. The line of a successful start applies only while the fabric
    manager runs.
    """
    return start.refused_driver == driver if start.refused_driver else runs


def _summary(runs: bool, start: services.FabricManagerStart | None) -> str:
    if not runs:
        return "not running"
    return f"running, version {start.version}" if start and not start.refused_driver else "running"


CHECK = Check(
    "fabric-manager",
    "3-topology-check",
    (nvml.NVML, pci.FUNCTIONS, driver_files.MODULES, services.SERVICES),
    judge,
    (NOT_RUNNING, DISCONNECTED, MISMATCH),
    causes=(FABRIC_COMING_UP,),
)
