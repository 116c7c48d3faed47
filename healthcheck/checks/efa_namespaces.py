"""Check: pods can share EFA devices with the host's network namespace."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Evidence, Judgement, NotConfigured, Observation, Reason, Severity
from gpu_healthcheck.healthcheck.probes.efa.infiniband import RDMA

EXCLUSIVE = Reason(
    "EfaNamespacesExclusive",
    Severity.MONITOR,
    "Pods can't use EFA: RDMA devices belong to one network namespace, and the EFA driver can't move its devices.",
    "Set `rdma system set netns shared`, or remove `netns_mode=0` of the module ib_core from the node's image, and"
    " reboot.",
    flickers=True,
    threshold="/sys/module/ib_core/parameters/netns_mode is N",
    source="kernel, drivers/infiniband/core/device.c (no disassociate_ucontext in efa_main.c)",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    rdma = evidence[RDMA]
    if not rdma.efa:
        yield NotConfigured("no EFA device")
        return
    if rdma.exclusive:
        yield EXCLUSIVE.on("node", "ib_core's netns_mode is N (exclusive)")
    yield Observation(f"RDMA namespaces: {'exclusive' if rdma.exclusive else 'shared'}", "shared", "ib_core")


CHECK = Check("efa-namespaces", "2-efa-enumeration", (RDMA,), judge, (EXCLUSIVE,))
