"""Check: each GPU has all NVLinks of its instance type, active and of the expected version."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.catalog.hardware import fabric_of
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import LINK_GRACE, answering, found, settled
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
)
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

VERSION_NAMES = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""nvmlNvlinkVersion_t (nvml.h); 0 is invalid."""

DOWN = Reason(
    "NvLinkDown",
    Severity.RESET,
    "A GPU has an inactive NVLink: work over several GPUs is slower, or does not start.",
    "Drain the node and reset the GPU (with NVSwitches all GPUs together), or reboot; replace the node if the link "
    "goes down again.",
    flickers=True,
    threshold="an inactive link on an instance type with NVLink",
    source="docs/rules.md 19 (DCGM 14, NVLINK_DOWN: TRIAGE); NVIDIA Health Validation, nvlink_active; gpud#1085",
    grace=LINK_GRACE,
)
TRAFFIC_DISABLED = Reason(
    "NvLinkTrafficDisabled",
    Severity.MONITOR,
    "A GPU has an NVLink without traffic: the link is active, but work over several GPUs is slower, or does not start.",
    "Compare `nvidia-smi nvlink -s` with a healthy node, and read the fabric manager's log. Unless a person limited "
    "the GPU's NVLink bandwidth, drain the node, reset its GPUs and restart the fabric manager.",
    flickers=True,
    threshold="link state 3 on an instance type with NVLink; NVIDIA documents neither its reasons nor an action",
    source="nvml.h, NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED (NVML change log, v610 to v615)",
    grace=LINK_GRACE,
)
COUNT_LOW = Reason(
    "NvLinkCountLow",
    Severity.RESET,
    "A GPU has fewer NVLinks than the GPUs of this instance type.",
    "Drain the node and reset the GPU, or reboot; replace the node if the links are still missing.",
    flickers=True,
    threshold="fewer links than the instance type's row in fabrics.csv",
    source="docs/rules.md 19 (DCGM 99, GPU_EXPECTED_NVLINKS_UP: TRIAGE)",
    grace=LINK_GRACE,
)
VERSION_LOW = Reason(
    "NvLinkVersionLow",
    Severity.MONITOR,
    "A GPU has an NVLink with an old protocol version: the instance type's GPUs have a newer one, and the link is "
    "slower.",
    "Compare `nvidia-smi nvlink -s` with a healthy node of the type; update driver and fabric manager, or reboot.",
    flickers=True,
    threshold="an older version than the instance type's row in fabrics.csv",
    source="nvmlNvlinkVersion_t (nvml.h)",
    grace=LINK_GRACE,
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence, "nvlinks", "mig_mode")
    for gpu in gpus:
        yield from _judge_gpu(gpu, expected)
    links = [link for gpu in gpus for link in gpu.nvlinks or ()]
    if gpus and (links or _has_nvlink(expected)):
        yield _summary(links, expected)
    elif gpus:
        yield NotConfigured("no GPU has an NVLink")


def _judge_gpu(gpu: nvml.Gpu, expected: Expectation) -> Iterator[Judgement]:
    # MIG mode turns the links of some GPUs off (Fabric Manager User Guide, Interoperability With MIG).
    divided = gpu.mig_mode is not None and gpu.mig_mode.current
    # An inactive link is normal on a PCIe card, so links are judged only if the type's profile has NVLink.
    if gpu.nvlinks is None or divided or not _has_nvlink(expected):
        return
    for fault in _faults(gpu, gpu.nvlinks, expected.instance_type):
        yield settled(fault, expected, LINK_GRACE)


def _faults(gpu: nvml.Gpu, links: tuple[nvml.NvLink, ...], instance_type: str) -> Iterator[Finding]:
    row = fabric_of(instance_type)
    down = [link.link for link in links if not link.active]
    if down:
        yield found(DOWN, gpu, f"{_listed(down, links)} inactive")
    silent = [link.link for link in links if link.traffic_disabled]
    if silent:
        yield found(TRAFFIC_DISABLED, gpu, f"{_listed(silent, links)} active without traffic")
    if row and len(links) < row.links_per_gpu:
        yield found(COUNT_LOW, gpu, f"{len(links)} NVLinks, {instance_type} has {row.links_per_gpu} per GPU")
    old = [link.link for link in links if row and link.version and link.version < row.nvlink_version]
    if row and old:
        wanted = VERSION_NAMES.get(row.nvlink_version, "newer")
        yield found(VERSION_LOW, gpu, f"{_listed(old, links)} older than version {wanted}")


def _listed(some: list[int], links: tuple[nvml.NvLink, ...]) -> str:
    if len(some) == len(links):
        return f"all {len(links)} NVLinks"
    return f"{len(some)} of {len(links)} NVLinks ({', '.join(str(link) for link in some)})"


def _summary(links: list[nvml.NvLink], expected: Expectation) -> Observation:
    active = f"{sum(link.active for link in links)} of {len(links)} NVLinks active"
    row = fabric_of(expected.instance_type)
    if row is None or not _has_nvlink(expected):
        return Observation(active)
    version = VERSION_NAMES.get(row.nvlink_version, "")
    return Observation(
        active, f"{row.links_per_gpu} of version {version} per GPU", f"{row.instance_type} in fabrics.csv"
    )


def _has_nvlink(expected: Expectation) -> bool:
    return expected.profile is not None and expected.profile.nvlink


CHECK = Check("nvlink", "3-topology-check", (nvml.NVML,), judge, (DOWN, TRAFFIC_DISABLED, COUNT_LOW, VERSION_LOW))
