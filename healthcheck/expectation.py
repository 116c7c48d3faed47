"""What a look is judged against: the instance type's profile, the driver's age, the cluster's severities."""

from __future__ import annotations

from dataclasses import dataclass, field

from healthcheck.catalog.policy import Policy
from healthcheck.profiles import InstanceProfile


@dataclass(frozen=True, slots=True)
class Expectation:
    """`profile` is None for an unknown type: no expectation, which is not an expectation of nothing."""

    profile: InstanceProfile | None = None
    instance_type: str = ""
    driver_age_seconds: float = float("inf")
    """Since the kernel module was loaded; since boot where the log no longer says."""
    policy: Policy = field(default_factory=Policy)
