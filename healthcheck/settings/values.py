"""Values of the settings of a cluster, as the programs use them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field

from healthcheck import checks as known_checks
from healthcheck.catalog.policy import Policy, parse_overrides
from healthcheck.catalog.profiles import Profiles
from healthcheck.model import Check, Severity
from healthcheck.settings.declared import AnySeverity, Namespace, RepairSeverity, Switch

if TYPE_CHECKING:
    from healthcheck.verdict.taint_decision import Rules

OVERRIDES = "severity-overrides"
ENVIRONMENT = "environment"
NO_KEY = "?"
"""Key of an error that concerns all settings."""


class BadValue(Struct, frozen=True):
    """One invalid value. `where` is a file or an environment variable; `value` is None if it is not set."""

    key: str
    value: str | None
    allowed: str
    where: str
    passing: bool = False
    """Whether the error may be temporary, so that the same files can be valid at the next read."""

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
        super().__init__("; ".join(str(value) for value in bad))
        self.bad = bad


class NodeSettings(Struct, frozen=True, kw_only=True, dict=True):
    """Settings of the ConfigMap: key, type, bounds, default and meaning of each.

    `make docs` writes the ConfigMap, the texts of `explain` and the chart's schema from this declaration.
    """

    check_interval_seconds: Annotated[
        int,
        Meta(
            ge=10,
            le=86400,
            description="Time between two check cycles, in seconds. A fault in the kernel log is reported at once.",
        ),
    ] = field(default=300, name="CHECK_INTERVAL")
    check_timeout_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=172800,
            description="No longer limits a check cycle: each probe has its own deadline (60 s for NVML). At most "
            "twice the interval.",
        ),
    ] = field(default=900, name="CHECK_TIMEOUT")
    checks_lightweight: Annotated[
        str,
        Meta(
            description="Checks of a check cycle: numbers of groups, names of groups or names of checks. Groups "
            "1, 4, 5 and 6 need the GPUs for themselves and are rejected here."
        ),
    ] = field(default="0 2 3 7 8", name="CHECKS_LIGHTWEIGHT")
    dcgm_host: Annotated[
        str,
        Meta(
            description="Address of the hostengine that runs DCGM's diagnostic, as host:port. Empty: the node's "
            "own hostengine if it is proven to be the host's or the GPU operator's "
            "(docs/decisions/0056-one-dcgm-engine-per-node.md); on a node without a hostengine, dcgmi "
            "starts its own."
        ),
    ] = field(default="", name="DCGM_HOST")
    dcgm_second_engine: Annotated[
        bool,
        Meta(
            description="true: deep diagnostics run although the node has another DCGM engine that they cannot "
            "use, such as dcgm-exporter's. NVIDIA advises against two engines on one node. false: "
            "they are skipped, with the reason DcgmEngineEmbedded."
        ),
    ] = field(default=False, name="DCGM_BESIDE_EXPORTER")
    dcgm_timeout_seconds: Annotated[
        int, Meta(ge=60, le=86400, description="Time limit of DCGM level 2 including its repeated tests, in seconds.")
    ] = field(default=900, name="DCGM_TIMEOUT")
    dcgm_l4_timeout_seconds: Annotated[
        int, Meta(ge=60, le=172800, description="Time limit of DCGM level 4 including its repeated tests, in seconds.")
    ] = field(default=9000, name="DCGM_L4_TIMEOUT")
    enable_taint: Annotated[
        bool,
        Meta(
            description="true: faulty nodes are tainted. false: the agent sets no taint, and removes its existing "
            "ones once, with an Event."
        ),
    ] = field(default=True, name="ENABLE_TAINT")
    enable_label: Annotated[
        bool,
        Meta(
            description="true: nodes are labelled. false: the agent sets no label, and removes its existing ones "
            "once, with an Event."
        ),
    ] = field(default=True, name="ENABLE_LABEL")
    taint_severity: Annotated[AnySeverity, Meta(description="Lowest severity that taints a node.")] = field(
        default=Severity.RESET, name="TAINT_SEVERITY"
    )
    max_unhealthy_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Maximum share of the nodes with an agent that carry the taint at the same time, in "
            "percent; one node always may. Beyond it, the agent writes the verdict and withholds the "
            "taint until a slot is free.",
        ),
    ] = field(default=20, name="MAX_UNHEALTHY_PERCENT")
    repair_conditions: Annotated[
        str,
        Meta(
            description="Node conditions for repair controllers, separated by commas: GpuRebootRequired, "
            "GpuReplacementRequired, AcceleratedHardwareReady (docs/integrations.md). Empty: the "
            "agent sets no condition, and removes its existing ones once, with an Event."
        ),
    ] = field(default="", name="REPAIR_CONDITIONS")
    repair_severity: Annotated[
        RepairSeverity,
        Meta(description="Lowest severity at which AcceleratedHardwareReady is False on a tainted node."),
    ] = field(default=Severity.ISOLATE, name="REPAIR_SEVERITY")
    gate_severity: Annotated[
        AnySeverity, Meta(description="Severity from which a finding keeps a pod with the gate from starting.")
    ] = field(default=Severity.RESET, name="GATE_SEVERITY")
    device_taints: Annotated[
        bool,
        Meta(
            description="true: a faulty GPU is tainted instead of its node, if NVIDIA's DRA driver alone "
            "allocates the GPUs and the cluster has DeviceTaintRules. Needs "
            'kubernetes/overlays/device-taints (docs/install.md, "Taint one GPU instead of its '
            'node"). Otherwise the node is tainted.'
        ),
    ] = field(default=False, name="DEVICE_TAINTS")
    monitor_ttl_seconds: Annotated[
        int,
        Meta(
            ge=60,
            le=31536000,
            description="Time after which an event of severity MONITOR ends, in seconds since it was last observed.",
        ),
    ] = field(default=86400, name="MONITOR_TTL")
    escalate_after: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Number of resets or reboots within 7 days after which the same fault on the same GPU "
            "becomes ISOLATE; 0 disables the escalation.",
        ),
    ] = field(default=2, name="ESCALATE_AFTER")
    max_retired_pages_sbe: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="GPUs before Ampere (V100, T4): highest number of retired memory pages of a healthy GPU. "
            "A GPU has room for 64.",
        ),
    ] = field(default=60, name="MAX_RETIRED_PAGES_SBE")
    efa_min_bandwidth: Annotated[
        int,
        Meta(
            ge=0,
            le=1000000,
            description="Quarantine: bandwidth that each EFA device must reach in its loopback test, in MB/s; 0 "
            "reports it without a limit. 1 to 499 is rejected as a probable Gbps value (1 Gbps is 125 "
            "MB/s).",
        ),
    ] = field(default=0, name="EFA_MIN_BW")
    efa_test_timeout_seconds: Annotated[
        int,
        Meta(
            ge=10,
            le=3600,
            description="Quarantine: time limit of each side of one fi_pingpong run, in seconds. Each EFA device "
            "gets two runs.",
        ),
    ] = field(default=180, name="EFA_TEST_TIMEOUT")
    nccl_min_bus_bandwidth: Annotated[
        int,
        Meta(
            ge=0,
            le=10000,
            description="Quarantine: bus bandwidth that an all-reduce over the node's GPUs must reach, in GB/s; "
            "0: 80 % of the published figure of the instance type. The test runs if the image has "
            "all_reduce_perf.",
        ),
    ] = field(default=0, name="NCCL_MIN_BUS_BW")
    nccl_timeout_seconds: Annotated[
        int,
        Meta(
            ge=60,
            le=86400,
            description="Quarantine: time limit of the all-reduce, in seconds. Exceeding it is a fault.",
        ),
    ] = field(default=600, name="NCCL_TIMEOUT")
    severity_overrides: Annotated[
        str,
        Meta(
            description="Severities that replace the defaults in this cluster, one per line: `xid 13 = RESET` or "
            "`GpuCountLow = REBOOT`."
        ),
    ] = field(default="", name=OVERRIDES)
    nvlink_default: Annotated[
        AnySeverity, Meta(description="Severity of an Xid 74 that NVIDIA's table of its data words does not classify.")
    ] = field(default=Severity.RESET, name="NVLINK_DEFAULT")
    nvlink5_default: Annotated[
        AnySeverity,
        Meta(description="Severity of an Xid 144 to 150 that NVIDIA's table of its data words does not classify."),
    ] = field(default=Severity.MONITOR, name="NVLINK5_DEFAULT")
    strict_pshc: Annotated[
        Switch,
        Meta(
            description="1: Xid 163 to 165 (power smoothing) have severity RESET, 0: MONITOR. Xid 162 ends an Xid "
            "163 and is never above MONITOR."
        ),
    ] = field(default=False, name="STRICT_PSHC")
    dcgm_l2_interval_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=31536000,
            description="Period in which each idle node gets one DCGM level 2 diagnostic, in seconds; 0 disables it.",
        ),
    ] = field(default=21600, name="DCGM_L2_INTERVAL")
    max_nodes_per_sweep: Annotated[
        int, Meta(ge=1, le=5000, description="Maximum number of nodes with a sweep Job at the same time.")
    ] = field(default=10, name="MAX_NODES_PER_SWEEP")
    max_sweep_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Maximum share of the nodes of one instance type with a deep diagnostic at the same time, "
            "in percent; one node always may.",
        ),
    ] = field(default=20, name="MAX_SWEEP_PERCENT")
    job_timeout_seconds: Annotated[
        int,
        Meta(
            ge=60,
            le=86400,
            description="Time limit of a sweep Job in addition to DCGM_TIMEOUT, in seconds: for scheduling, image "
            "pull and reporting.",
        ),
    ] = field(default=900, name="JOB_TIMEOUT")
    sweep_namespace: Annotated[
        Namespace,
        Meta(
            description="Namespace of the sweep Jobs. Another namespace may enforce the pod security level "
            "baseline. It needs its own ServiceAccount gpu-healthcheck-sweep, bound to the "
            "ClusterRole of that name; a Role with the rule for Jobs of the Role "
            "gpu-healthcheck-sweeper, bound to the sweeper's account; a copy of this ConfigMap; and "
            "the template's pull secrets, if it has any."
        ),
    ] = field(default="gpu-healthcheck", name="SWEEP_NAMESPACE")
    kernel_log_lines: Annotated[
        str,
        Meta(
            description="Accepted without effect, for old ConfigMaps: the agent remembers its position in the "
            "kernel log."
        ),
    ] = field(default="", name="KERNEL_LOG_LINES")
    sweep_image: Annotated[
        str,
        Meta(
            description="Accepted without effect, for old ConfigMaps: sweep Jobs use the image of the CronJob "
            "gpu-healthcheck-sweep-node."
        ),
    ] = field(default="", name="SWEEP_IMAGE")

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
        from healthcheck.verdict.repair import RepairPolicy  # noqa: PLC0415
        from healthcheck.verdict.taint_decision import Rules  # noqa: PLC0415 - unused in the child that reads settings

        return Rules(
            taint_severity=self.taint_severity,
            enable_taint=self.enable_taint,
            enable_label=self.enable_label,
            max_unhealthy_percent=self.max_unhealthy_percent,
            device_taints=self.device_taints,
            repair=RepairPolicy(listed(self.repair_conditions), self.repair_severity),
        )


Seen = tuple[tuple[str | int, ...], ...]
"""State of the ConfigMap's folder, for comparison with another state."""


class Written(Struct, frozen=True):
    """The ConfigMap and the environment as written.

    Types and bounds are validated, the meaning of texts is not. Invalid values are replaced by their defaults.
    """

    values: NodeSettings = NodeSettings()
    bad: tuple[BadValue, ...] = ()
    seen: Seen | None = None
    """State of the folder before it was read; None if a later change may be undetectable."""


class Settings(Struct, frozen=True):
    """Result of one read of all settings: the values and the table of profiles."""

    values: NodeSettings = NodeSettings()
    profiles: Profiles = {}
    bad: tuple[BadValue, ...] = ()
    """Invalid values, replaced by the defaults."""


def listed(value: str) -> tuple[str, ...]:
    """Return the entries of a comma-separated list, each once."""
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
