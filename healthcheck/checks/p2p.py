"""Check: each pair of GPUs is connected over NVLink, if switches connect all GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpu_healthcheck.healthcheck.catalog.hardware import fabric_of
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import LINK_GRACE, answering, found, silent
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.probes.nvml import error_causes
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

OK, DISABLED_BY_REGKEY, UNKNOWN = 0, 4, 6
"""nvmlGpuP2PStatus_t (nvml.h). "Disabled by the driver's settings" is intended; "unknown" is not evidence."""
_NO_FAULT = frozenset({OK, DISABLED_BY_REGKEY, UNKNOWN})

BROKEN = Reason(
    "P2pBroken",
    Severity.RESET,
    "A GPU can't reach others over NVLink: switches connect all GPUs of the instance type.",
    "Check the NVLinks and the fabric manager first; then drain the node and reset all GPUs together, or reboot.",
    flickers=True,
    threshold="a pair whose NVLink status is neither OK, nor disabled by the driver's settings, nor unknown",
    source="nvmlDeviceGetP2PStatus (nvml.h); gpud's matrix of all pairs",
    grace=LINK_GRACE,
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence)
    answer = evidence[nvml.NVML].answer
    if not gpus or not isinstance(answer, nvml.Gpus):
        return
    silent_ones = [gpu for gpu in gpus if "p2p" in gpu.errors]
    for gpu in silent_ones:
        yield silent(gpu, gpu.errors["p2p"], "P2P status")
    joined = _joined_by_switches(expected)
    if joined:
        yield from _judge_pairs(answer, gpus, expected)
    if answer.p2p:
        yield _summary(answer.p2p, expected, joined)
    elif not silent_ones and len(gpus) == len(answer.gpus):
        yield NotConfigured("the driver reports no P2P status for any pair of GPUs")


def _judge_pairs(answer: nvml.Gpus, gpus: tuple[nvml.Gpu, ...], expected: Expectation) -> Iterator[Judgement]:
    broken = [pair for pair in answer.p2p if pair.nvlink not in _NO_FAULT]
    if broken and expected.driver_age_seconds < LINK_GRACE.seconds:
        detail = f"{len(broken)} of {len(answer.p2p)} pairs of GPUs without P2P over NVLink"
        yield Unobserved(
            error_causes.DRIVER_JUST_LOADED, f"{detail}; judged {LINK_GRACE.seconds:.0f} s after {LINK_GRACE.since}"
        )
        return
    blamed = _blamed(broken)
    for gpu in gpus:
        pairs = [pair for address, pair in blamed if address == gpu.address]
        if pairs:
            yield _finding(gpu, pairs, len(gpus))


def _blamed(broken: list[nvml.P2p]) -> list[tuple[str, nvml.P2p]]:
    """Assign each broken pair to the GPU with more broken pairs, or to both GPUs if they have equally many.

    One GPU without NVLink breaks a pair with each other GPU, and is the only one at fault.
    """
    count = Counter(address for pair in broken for address in (pair.one, pair.other))
    return [
        (address, pair)
        for pair in broken
        for address, peer in ((pair.one, pair.other), (pair.other, pair.one))
        if count[address] >= count[peer]
    ]


def _finding(gpu: nvml.Gpu, pairs: list[nvml.P2p], gpus: int) -> Finding:
    peers = sorted(pair.other if pair.one == gpu.address else pair.one for pair in pairs)
    peer_names = "all others" if len(peers) == gpus - 1 > 1 else ", ".join(peers)
    statuses = ", ".join(str(status) for status in sorted({pair.nvlink for pair in pairs}))
    return found(BROKEN, gpu, f"no P2P over NVLink with {peer_names} (status {statuses})")


def _joined_by_switches(expected: Expectation) -> bool:
    """Whether NVSwitches connect all GPUs of the type.

    If GPUs are connected directly, as on p3dn, only some pairs have NVLink.
    """
    row = fabric_of(expected.instance_type)
    has_nvlink = expected.profile is not None and expected.profile.nvlink
    return has_nvlink and row is not None and (row.fabric_manager or row.imex)


def _summary(pairs: tuple[nvml.P2p, ...], expected: Expectation, joined: bool) -> Observation:
    nvlink, read = sum(pair.nvlink == OK for pair in pairs), sum(pair.read == OK for pair in pairs)
    summary = f"{nvlink} of {counted(len(pairs), 'pair')} of GPUs connected by NVLink, {read} can read each other"
    return (
        Observation(summary, "all by NVLink", f"{expected.instance_type} in fabrics.csv")
        if joined
        else Observation(summary)
    )


CHECK = Check("p2p", "3-topology-check", (nvml.NVML,), judge, (BROKEN,))
