"""Expected state of a node, from the profile of its instance type, its earlier hardware and the cluster settings."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
from gpu_healthcheck.healthcheck.model.node_facts import DeepDiagnostic, EarlierHardware, PodRuntimeClass


class Expectation(Struct, frozen=True):
    """Expected state of one node. `profile` is None for an unknown instance type, which has no expectations."""

    profile: InstanceProfile | None = None
    instance_type: str = ""
    driver_age_seconds: float = float("inf")
    """Seconds since the kernel module was loaded, or since boot if the log does not contain the load any more."""
    policy: Policy = field(default_factory=Policy)
    first: EarlierHardware = field(default_factory=EarlierHardware)
    efa_allocatable: int | None = None
    """EFA devices that the Node offers to pods (`vpc.amazonaws.com/efa`); None: unknown, or none."""
    max_retired_pages_sbe: int = 60
    runtime_classes: tuple[PodRuntimeClass, ...] | None = None
    """RuntimeClasses, except those that exclude this node. None: they could not be listed."""
    efa_min_bandwidth: int = 0
    """Required bandwidth of an EFA device to itself, in MB/s; 0: the bandwidth is shown and not judged."""
    nccl_min_bus_bandwidth: int = 0
    """Required bus bandwidth of an all-reduce, in GB/s; 0: a share of the instance type's figure."""
    deep_run: DeepDiagnostic | None = None
    """Present or last deep diagnostic on the GPUs; None: none is known."""
    ages: Mapping[str, float] = field(default_factory=dict)
    """Ages in seconds of running processes that the judged records name, by pid."""
    is_capture: bool = False
    """Whether a saved log is the only evidence, so that the devices of its machine stay unknown."""
