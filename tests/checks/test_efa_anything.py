"""Arbitrary EFA state of the kernel: the EFA checks judge it, and a first cycle finds no rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import efa_count, efa_driver, efa_errors, efa_gpudirect, efa_keep_alive
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware
from gpu_healthcheck.healthcheck.probes.efa.infiniband import ERROR_COUNTERS, KEEP_ALIVES, RDMA, Rdma, RdmaDevice
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from tests.checks.evidence import EFA_ADDRESSES, P5, UNKNOWN_TYPE

CHECKS = (efa_driver.CHECK, efa_count.CHECK, efa_errors.CHECK, efa_keep_alive.CHECK, efa_gpudirect.CHECK)
REASONS = {check.name: {reason.name for reason in check.reasons} for check in CHECKS}

addresses = st.sampled_from(EFA_ADDRESSES[:4])
devices = st.builds(
    RdmaDevice,
    name=st.sampled_from(["rdmap16s0", "rdmap17s0", "efa_0"]),
    is_efa=st.booleans(),
    address=addresses | st.just(""),
    uverbs=st.sampled_from(["", "uverbs0"]),
    p2p=st.none() | st.sampled_from(["", "NVIDIA", "NVIDIA peermem", "NEURON"]) | st.text(max_size=8),
    counters=st.dictionaries(st.sampled_from([KEEP_ALIVES, *ERROR_COUNTERS]), st.integers(0, 2**64 - 1)),
    error=st.sampled_from(["", "rx_drops: Timer expired"]),
)
rdmas = st.builds(Rdma, st.lists(devices, max_size=4).map(tuple), st.booleans(), st.sampled_from(["", "2.17.2g"]))
drivers = st.sampled_from(["", "efa", "vfio-pci"])
functions = st.lists(
    st.builds(PciFunction, addresses, st.just(0x1D0F), st.just(0xEFA2), st.just(0x020000), drivers), max_size=4
).map(tuple)
counts = st.none() | st.integers(0, 40)
expectations: st.SearchStrategy[Expectation] = st.builds(
    lambda known, once, allocatable: replace(known, first=EarlierHardware(efa=once), efa_allocatable=allocatable),
    st.sampled_from([P5, UNKNOWN_TYPE]),
    counts,
    counts,
)


@given(functions, rdmas, rdmas, expectations, st.floats(0.001, 1e6))
def test_any_two_reads_are_judged(
    on_pci: tuple[PciFunction, ...], before: Rdma, now: Rdma, expected: Expectation, seconds: float
) -> None:
    earlier = Evidence({FUNCTIONS: on_pci, RDMA: before}, 1000.0)

    for outcome in judge(CHECKS, Evidence({FUNCTIONS: on_pci, RDMA: now}, 1000.0 + seconds, earlier), expected):
        assert {finding.reason for finding in outcome.findings} <= REASONS[outcome.check]
        assert len(outcome.seen) == 1 or not outcome.configured

    for outcome in judge((efa_errors.CHECK, efa_keep_alive.CHECK), earlier, expected):
        assert outcome.findings == ()
