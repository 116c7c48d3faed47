"""Expected state of a node: profile of its instance type, earlier hardware, cluster settings."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from healthcheck.catalog.policy import Policy
from healthcheck.catalog.profiles import InstanceProfile


class GpuPosition(Struct, frozen=True):
    """Position of a GPU in the machine. `switch` is the PCI bridge above it, or empty if there is none."""

    numa_node: int
    switch: str


class EarlierHardware(Struct, frozen=True):
    """Hardware that this machine had earlier.

    A part that is missing now is a fault, whatever the instance type could have.
    """

    efa: int | None = None
    """The most EFA devices that it ever had; None: nobody has counted yet."""
    places: Mapping[str, GpuPosition] = field(default_factory=dict)
    """By address: where each GPU sat when it was first met."""
    gpus: int | None = None
    """The most GPUs that PCI ever showed, whoever drove them; None: not counted yet; 0: a person accepted a loss."""


ONCE_HAD = "what this machine once had"
"""`source` of a finding based on `EarlierHardware` alone: a release ends it, and accepts the smaller count."""


AFTERMATH_SECONDS = 60.0
"""So long after a deep run its own load may still show (docs/rules.md 13)."""
SEEN_SECONDS = 60.0
"""So long it is remembered that a process was a test's, for lines that are judged late."""
_GONE_SECONDS = 5.0
"""So long after its last sight a process of a test may still have caused what names it. Later, its number may be
another's."""


class DeepDiagnostic(Struct, frozen=True):
    """The deep diagnostic or quarantine that uses the GPUs now, or the last run that did.

    Both times are in seconds of CLOCK_MONOTONIC.
    """

    kind: str
    since: float
    until: float | None = None
    """None: it still runs."""
    processes: Mapping[int, float] = field(default_factory=dict)
    """Of tests that are ours or the node's own: by number when each was last seen, in the same seconds."""

    def covers(self, at: float) -> bool:
        """Whether the load of this run may have caused an observation of that time."""
        return self.since <= at and (self.until is None or at <= self.until + AFTERMATH_SECONDS)

    def is_by_a_test(self, pid: int, at: float) -> bool:
        """Whether the process with this number was one of the run's tests at that time, as far as known."""
        seen = self.processes.get(pid)
        return seen is not None and self.covers(at) and at <= seen + _GONE_SECONDS


class PodRuntimeClass(Struct, frozen=True):
    """A RuntimeClass that pods on this node can use.

    `for_this_node` means that it selects nodes by their labels, and that this node matches.
    """

    name: str
    handler: str
    for_this_node: bool


class Expectation(Struct, frozen=True):
    """`profile` is None for an unknown type: no expectation, which is not an expectation of nothing."""

    profile: InstanceProfile | None = None
    instance_type: str = ""
    driver_age_seconds: float = float("inf")
    """Since the kernel module was loaded; since boot where the log no longer says."""
    policy: Policy = field(default_factory=Policy)
    first: EarlierHardware = field(default_factory=EarlierHardware)
    efa_allocatable: int | None = None
    """What the Node allows pods to ask for (`vpc.amazonaws.com/efa`); None: the Node does not say, or there is none."""
    max_retired_pages_sbe: int = 60
    runtime_classes: tuple[PodRuntimeClass, ...] | None = None
    """Those that leave this node out are not among them. None: nobody could list them."""
    efa_min_bandwidth: int = 0
    """MB/s that an EFA device has to reach with itself; 0: what it reaches is shown and not judged."""
    nccl_min_bus_bandwidth: int = 0
    """GB/s of bus bandwidth that an all-reduce has to reach; 0: a share of the instance type's figure."""
    deep_run: DeepDiagnostic | None = None
    """None: no deep run is known to have had the GPUs."""
