"""Values of the settings of a cluster, as the programs use them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field

from healthcheck import checks as known_checks
from healthcheck.catalog.policy import Policy, parse_overrides
from healthcheck.catalog.profiles import Profiles
from healthcheck.model import Check, Severity
from healthcheck.settings.declared import AnySeverity, RepairSeverity

if TYPE_CHECKING:
    from healthcheck.verdict.taint import Rules

OVERRIDES = "severity-overrides"
ENVIRONMENT = "environment"
NO_KEY = "?"
"""Of what is wrong with all that is there."""
_NAMESPACE = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class BadValue(Struct, frozen=True):
    """One invalid value. `where` is a file or an environment variable; `value` is None if it is not set."""

    key: str
    value: str | None
    allowed: str
    where: str
    passing: bool = False
    """The same files may be read otherwise the next time."""

    def __str__(self) -> str:
        return f"{self.where}: {self.words}"

    @property
    def words(self) -> str:
        if self.key == NO_KEY:
            return self.allowed
        return f"{self.key} is not set" if self.value is None else f"{self.key} = {self.value!r}: {self.allowed}"


class SettingsError(Exception):
    """Error for invalid environment variables of a program. `bad` names each variable."""

    def __init__(self, bad: tuple[BadValue, ...]) -> None:
        super().__init__("; ".join(str(one) for one in bad))
        self.bad = bad


class NodeSettings(Struct, frozen=True, kw_only=True, dict=True):
    """The keys of the ConfigMap that judging and applying read. `name` is the key there."""

    check_interval_seconds: Annotated[int, Meta(ge=10, le=86400)] = field(default=300, name="CHECK_INTERVAL")
    """Between two light looks."""
    check_timeout_seconds: Annotated[int, Meta(ge=1, le=172800)] = field(default=900, name="CHECK_TIMEOUT")
    """Accepted for the sake of old ConfigMaps; each probe of a light look has its own deadline."""
    checks_lightweight: str = field(default="0 2 3 7 8", name="CHECKS_LIGHTWEIGHT")
    """Numbers of groups, names of groups, or names of checks."""
    dcgm_host: str = field(default="", name="DCGM_HOST")
    """The hostengine that runs DCGM's diagnostic, as host:port; empty: the node's where it is proven, else its own."""
    dcgm_beside_exporter: bool = field(default=False, name="DCGM_BESIDE_EXPORTER")
    """Whether a deep test starts an engine beside one of the node that cannot be used."""
    dcgm_timeout_seconds: Annotated[int, Meta(ge=60, le=86400)] = field(default=900, name="DCGM_TIMEOUT")
    dcgm_l4_timeout_seconds: Annotated[int, Meta(ge=60, le=172800)] = field(default=9000, name="DCGM_L4_TIMEOUT")
    """Level 2, and level 4, at most, each with what of it is run again."""
    enable_taint: bool = field(default=True, name="ENABLE_TAINT")
    enable_label: bool = field(default=True, name="ENABLE_LABEL")
    taint_severity: AnySeverity = field(default=Severity.RESET, name="TAINT_SEVERITY")
    max_unhealthy_percent: Annotated[int, Meta(ge=1, le=100)] = field(default=20, name="MAX_UNHEALTHY_PERCENT")
    """Of the fleet's nodes, how many may carry our taint at the same time; always at least one."""
    repair_conditions: str = field(default="", name="REPAIR_CONDITIONS")
    """The conditions that are written for repairers, with commas between; empty: none."""
    repair_severity: RepairSeverity = field(default=Severity.ISOLATE, name="REPAIR_SEVERITY")
    """The mildest severity with which AcceleratedHardwareReady is False."""
    device_taints: bool = field(default=False, name="DEVICE_TAINTS")
    """Whether a bad GPU that DRA gives out is tainted instead of its node, where the cluster can."""
    monitor_ttl_seconds: Annotated[int, Meta(ge=60, le=31536000)] = field(default=86400, name="MONITOR_TTL")
    """How long a MONITOR event stands after it was last seen."""
    escalate_after: Annotated[int, Meta(ge=0, le=100)] = field(default=2, name="ESCALATE_AFTER")
    """Resets or reboots within 7 days after which the same fault of a GPU is ISOLATE; 0: never."""
    max_retired_pages_sbe: Annotated[int, Meta(ge=1, le=4096)] = field(default=60, name="MAX_RETIRED_PAGES_SBE")
    """Pages of a GPU's memory retired for errors, before Ampere; more are a fault."""
    efa_min_bandwidth: Annotated[int, Meta(ge=0, le=1_000_000)] = field(default=0, name="EFA_MIN_BW")
    """MB/s that each EFA device has to reach with itself in quarantine; 0: shown, not judged."""
    efa_test_timeout_seconds: Annotated[int, Meta(ge=10, le=3600)] = field(default=180, name="EFA_TEST_TIMEOUT")
    """For each side of one run of fi_pingpong, of which an EFA device gets two."""
    nccl_min_bus_bandwidth: Annotated[int, Meta(ge=0, le=10_000)] = field(default=0, name="NCCL_MIN_BUS_BW")
    """GB/s of bus bandwidth that an all-reduce has to reach in quarantine; 0: a share of the instance type's figure."""
    nccl_timeout_seconds: Annotated[int, Meta(ge=60, le=86400)] = field(default=600, name="NCCL_TIMEOUT")
    """For the all-reduce. One that does not end in it is a fault."""
    severity_overrides: str = field(default="", name=OVERRIDES)
    nvlink_default: AnySeverity = field(default=Severity.RESET, name="NVLINK_DEFAULT")
    nvlink5_default: AnySeverity = field(default=Severity.MONITOR, name="NVLINK5_DEFAULT")
    strict_pshc: bool = field(default=False, name="STRICT_PSHC")
    dcgm_l2_interval_seconds: Annotated[int, Meta(ge=0, le=31536000)] = field(default=21600, name="DCGM_L2_INTERVAL")
    """Each idle node is tested deeply once in it; 0: never."""
    max_nodes_per_sweep: Annotated[int, Meta(ge=1, le=5000)] = field(default=10, name="MAX_NODES_PER_SWEEP")
    """Under a sweep at the same time."""
    max_sweep_percent: Annotated[int, Meta(ge=1, le=100)] = field(default=20, name="MAX_SWEEP_PERCENT")
    """Of the nodes of one instance type, how many may be under a deep run at the same time; always at least one."""
    job_timeout_seconds: Annotated[int, Meta(ge=60, le=86400)] = field(default=900, name="JOB_TIMEOUT")
    """What a Job may take beyond DCGM itself: to be placed, to pull its image, to tell."""
    sweep_namespace: Annotated[
        str,
        Meta(
            pattern=_NAMESPACE,
            description="the name of a namespace: at most 63 lower-case letters, digits and hyphens",
        ),
    ] = field(default="gpu-healthcheck", name="SWEEP_NAMESPACE")
    """Of the Jobs."""
    kernel_log_lines: str = field(default="", name="KERNEL_LOG_LINES")
    """Accepted for the sake of old ConfigMaps; a cursor took its place."""
    sweep_image: str = field(default="", name="SWEEP_IMAGE")
    """Accepted for the sake of old ConfigMaps; the template's image is the one, which a policy holds Jobs to."""

    @property
    def checks(self) -> tuple[Check, ...]:
        return known_checks.select_checks(self.checks_lightweight.split())

    @cached_property
    def policy(self) -> Policy:
        return Policy(
            parse_overrides(self.severity_overrides), self.nvlink_default, self.nvlink5_default, self.strict_pshc
        )

    @property
    def rules(self) -> Rules:
        from healthcheck.verdict.repair import Repair  # noqa: PLC0415
        from healthcheck.verdict.taint import Rules  # noqa: PLC0415 - the child that reads settings applies none

        return Rules(
            taint_severity=self.taint_severity,
            enable_taint=self.enable_taint,
            enable_label=self.enable_label,
            max_unhealthy_percent=self.max_unhealthy_percent,
            device_taints=self.device_taints,
            repair=Repair(listed(self.repair_conditions), self.repair_severity),
        )


Seen = tuple[tuple[str | int, ...], ...]
"""What tells one state of the ConfigMap's folder from another."""


class Written(Struct, frozen=True):
    """The ConfigMap and the environment as written.

    Types and bounds are validated, the meaning of texts is not. Invalid values are replaced by their defaults.
    """

    values: NodeSettings = NodeSettings()
    bad: tuple[BadValue, ...] = ()
    seen: Seen | None = None
    """The folder before it was read; None: it may change without looking otherwise."""


class Settings(Struct, frozen=True):
    """Result of one read of all settings: the values and the table of profiles."""

    values: NodeSettings = NodeSettings()
    profiles: Profiles = {}
    bad: tuple[BadValue, ...] = ()
    """In whose places the defaults stand."""


def listed(value: str) -> tuple[str, ...]:
    """Return the entries of a comma-separated list, each once."""
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
