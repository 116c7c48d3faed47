"""Facts about a node that the agent and the memory give to the checks."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

SAME_LOAD_SECONDS = 2.0
"""Most seconds between lines of one driver load, which ends with those about GPUs that it could not initialise.

A syslog has whole seconds.
"""


class GpuPosition(Struct, frozen=True):
    """Position of a GPU in the machine. `switch` is the PCI bridge above it, or empty if there is none."""

    numa_node: int
    switch: str


SHORTEST_OUTAGE_SECONDS = 25.0
OUTAGE_WINDOW_SECONDS = 12 * 3600.0
"""Outages of an RDMA port that count, and the time for which they count (gpud, components/accelerator/nvidia)."""


LINK, SPEED = "link", "speed"


class RdmaPort(Struct, frozen=True):
    """A port of the GPU fabric that was active, with its highest speed. Times are in seconds of CLOCK_MONOTONIC."""

    name: str
    """Name of its RDMA device in the last check cycle."""
    kind: str
    """Model, link layer and bond: a port of another kind does not become part of the fabric later."""
    rate: float
    outages: tuple[float, ...] = ()
    """Begin of each outage in this boot that lasted long enough to count."""
    down: tuple[float, float] | None = None
    """First and last observation of the present outage."""
    released: str = ""
    """What a person released: `LINK`, which is not judged until the port has one, or `SPEED`, which is not judged."""


class EarlierHardware(Struct, frozen=True):
    """Hardware that this machine had earlier.

    A missing part is a fault, whatever parts the instance type could have.
    """

    efa: int | None = None
    """The highest number of EFA devices so far; None: not counted yet."""
    places: Mapping[str, GpuPosition] = field(default_factory=dict)
    """Position of each GPU when it was first observed, by address."""
    gpus: int | None = None
    """Highest number of GPUs on PCI so far, with any driver. None: not counted yet. 0: a release accepted a loss."""
    rdma: Mapping[str, RdmaPort] | None = None
    """Ports of the GPU fabric that were active, by PCI address; None: not read yet."""


ONCE_HAD = "what this machine once had"
"""`source` of a finding based on `EarlierHardware` alone: a release ends it, and accepts the smaller count."""


AFTERMATH_SECONDS = 60.0
"""Time after a deep diagnostic in which effects of its load may still show (docs/rules.md 13)."""
SEEN_SECONDS = 60.0
"""Time for which the processes of a test are remembered, for lines that are judged late."""
_GONE_SECONDS = 5.0
"""Time after its last observation in which a test's process may still have caused a line that names it. Later its PID
may belong to another process."""


class DeepDiagnostic(Struct, frozen=True):
    """The deep diagnostic or quarantine that uses the GPUs now, or the last run that did.

    Both times are in seconds of CLOCK_MONOTONIC.
    """

    kind: str
    since: float
    until: float | None = None
    """End of the run; None: it still runs."""
    processes: Mapping[int, float] = field(default_factory=dict)
    """Processes of this program's or the node's tests: time of the last observation by PID, in the same seconds."""

    def covers(self, at: float) -> bool:
        """Whether the load of this run may have caused an observation of that time."""
        return self.overlaps(at, at)

    def overlaps(self, begin: float, end: float) -> bool:
        """Whether the load of this run may have caused an observation of that period."""
        return self.since <= end and (self.until is None or begin <= self.until + AFTERMATH_SECONDS)

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
