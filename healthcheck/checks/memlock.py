"""Check: pods on a node with EFA may lock as much memory as EFA needs."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Evidence, Judgement, NotConfigured, Observation, Reason, Severity
from gpu_healthcheck.healthcheck.probes import limits
from gpu_healthcheck.healthcheck.probes.efa import infiniband

LEAST_GIB = 16

LOW = Reason(
    "MemlockLow",
    Severity.MONITOR,
    "Pods may lock too little memory: EFA locks every buffer that it sends from or receives into.",
    "Set LimitMEMLOCK=infinity for the container runtime's service, restart the service, and recreate the pods.",
    threshold=f"below {LEAST_GIB} GiB",
    source="EFA's installer, which sets it to unlimited; the agent's own limit is what each pod inherits",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    own = evidence[limits.LIMITS]
    if not evidence[infiniband.RDMA].efa:
        yield NotConfigured("no EFA device")
    elif own is None:
        yield NotConfigured("the limit of pods is unknown outside of a pod of this node")
    elif own.locked_memory is None:
        yield Observation("a pod may lock memory without limit", "no limit", "EFA's installer")
    else:
        limit = _size(own.locked_memory)
        if own.locked_memory < LEAST_GIB << 30:
            yield LOW.on("node", f"a pod may lock {limit} of memory")
        yield Observation(f"a pod may lock {limit} of memory", "no limit", "EFA's installer")


def _size(limit: int) -> str:
    """Return the limit in KiB or MiB. The kernel's default is a few KiB, or some MiB."""
    return f"{limit >> 10:,} KiB" if limit < 1 << 20 else f"{limit >> 20:,} MiB"


CHECK = Check("memlock", "2-efa-enumeration", (infiniband.RDMA, limits.LIMITS), judge, (LOW,))
