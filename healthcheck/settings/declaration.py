"""Declaration of the settings: key, type, bounds, default and meaning of each.

This module reads no settings. `make docs` writes the ConfigMap, the texts of `explain` and the chart's schema from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from msgspec import Meta, Struct, field
from msgspec.structs import fields, replace

from gpu_healthcheck.healthcheck import checks as known_checks
from gpu_healthcheck.healthcheck.catalog.policy import Policy, parse_overrides, parse_thresholds
from gpu_healthcheck.healthcheck.model import Check, Severity
from gpu_healthcheck.healthcheck.node.label_selector import LABEL_KEY
from gpu_healthcheck.healthcheck.node.state import REPAIR_CONDITIONS
from gpu_healthcheck.healthcheck.probes.dcgm.diag import checked_host
from gpu_healthcheck.healthcheck.text.printable import printable

if TYPE_CHECKING:
    from gpu_healthcheck.healthcheck.verdict.taint_decision import Rules

IMDS = "http://169.254.169.254"
"""Default address of EC2's instance metadata service."""
OVERRIDES, NODE_OVERRIDES = "severity-overrides", "node-overrides"
"""Settings with one entry per line."""
NO_EFFECT = "Accepted without effect"
"""Beginning of the meaning of a setting that only old ConfigMaps set."""
_LEAST_MEGABYTES, _MEGABYTES_A_GIGABIT = 500, 125
_LONGEST_WORD = 64


def listed(value: str) -> tuple[str, ...]:
    """Return the entries of a comma-separated list, each once."""
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


def _absolute(value: Path) -> Path:
    if not value.is_absolute():  # an empty variable would mean the current working directory
        raise ValueError
    return value


def _checks(value: str) -> str:
    if not known_checks.select_checks(value.split()):
        # A node without any check would be reported as healthy.
        groups = known_checks.groups_in(known_checks.CHECKS)
        raise ValueError(f"names no check of the light check cycle; groups {groups} have some")
    return value


def _repair_conditions(value: str) -> str:
    if unknown := [condition for condition in listed(value) if condition not in REPAIR_CONDITIONS]:
        allowed = ", ".join(REPAIR_CONDITIONS)
        raise ValueError(
            f"unknown condition {printable(unknown[0], _LONGEST_WORD)!r}; allowed are {allowed}, separated by commas"
        )
    return value


def _label_key(value: str) -> str:
    if value and not LABEL_KEY.match(value):
        raise ValueError
    return value


def _overrides(value: str) -> str:
    parse_overrides(value)
    return value


def _node_overrides(value: str) -> str:
    from gpu_healthcheck.healthcheck.settings.node_overrides import parse_lines  # noqa: PLC0415 - it validates by these declarations

    parse_lines(value)
    return value


def _megabytes(value: int) -> int:
    """Reject a bandwidth in Gbps, the unit of the bash suite: no EFA device is so slow that the number can be MB/s."""
    if 0 < value < _LEAST_MEGABYTES:
        raise ValueError(
            f"the unit is MB/s, 0 or {_LEAST_MEGABYTES} to 1000000, and the value is probably in Gbps: "
            f"{value} Gbps are {value * _MEGABYTES_A_GIGABIT} MB/s"
        )
    return value


class Rule(Struct, frozen=True):
    """Rule for the values of a type, beyond the bounds of its Meta."""

    allowed: str = ""
    """Allowed values, for error messages."""
    accept: Callable[[Any], Any] | None = None
    """Returns the value to use, or raises ValueError; without a message, `allowed` is shown."""
    mildest: Severity | None = None
    """Lowest accepted severity."""
    may_be_empty: bool = False
    """Whether an empty text is accepted beside the severities, and means None."""
    digit: bool = False
    """A bool that the ConfigMap writes as 0 or 1."""


NodeName = Annotated[str, Meta(min_length=1, max_length=253), Rule("the name of a Node, of 1 to 253 characters")]
LogLevel = Annotated[str, Meta(pattern="^(debug|info|warning|error)$"), Rule("allowed are debug, info, warning, error")]
Port = Annotated[int, Meta(ge=0, le=65535)]
Folder = Annotated[Path, Rule("the path of a folder from the root, beginning with /", _absolute)]
Namespace = Annotated[
    str,
    Meta(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
    Rule("the name of a namespace: at most 63 lower-case letters, digits and hyphens"),
]
AnySeverity = Annotated[Severity, Rule(mildest=Severity.MONITOR)]
# A lower severity would cost a machine for a fault that a reset fixes.
RepairSeverity = Annotated[Severity, Rule(mildest=Severity.REBOOT)]
EvictSeverity = Annotated[Severity | None, Rule(mildest=Severity.REBOOT, may_be_empty=True)]
LabelKey = Annotated[
    str,
    Meta(max_length=317),
    Rule("the key of a node label, as topology.kubernetes.io/zone, or nothing", _label_key),
]
CheckNames = Annotated[str, Rule(accept=_checks)]
Hostengine = Annotated[str, Rule(accept=checked_host)]
ConditionNames = Annotated[str, Rule(accept=_repair_conditions)]
Overrides = Annotated[str, Rule(accept=_overrides)]
NodeOverrides = Annotated[str, Rule(accept=_node_overrides)]
MegabytesPerSecond = Annotated[int, Meta(ge=0, le=1000000), Rule(accept=_megabytes)]
Switch = Annotated[bool, Rule(digit=True)]


class NodeSettings(Struct, frozen=True, kw_only=True, dict=True):
    """Settings of the ConfigMap, in its order: type with bounds, meaning, default and key."""

    check_interval_seconds: Annotated[
        int,
        Meta(ge=10, le=86400),
        "Time between two check cycles, in seconds. A fault in the kernel log is reported at once.",
    ] = field(default=300, name="CHECK_INTERVAL")
    check_timeout_seconds: Annotated[
        int,
        Meta(ge=1, le=172800),
        "No longer limits a check cycle: each probe has its own deadline (60 s for NVML). At most twice the interval.",
    ] = field(default=900, name="CHECK_TIMEOUT")
    checks_lightweight: Annotated[
        CheckNames,
        "Checks of a check cycle: numbers of groups, names of groups or names of checks. Groups 1, 4, 5 and "
        "6 need the GPUs for themselves and are rejected here.",
    ] = field(default="0 2 3 7 8 9", name="CHECKS_LIGHTWEIGHT")
    dcgm_host: Annotated[
        Hostengine,
        "Address of the hostengine that runs DCGM's diagnostic, as host:port. Empty: the node's own "
        "hostengine if it is proven to be the host's or the GPU operator's "
        "(docs/decisions/0056-one-dcgm-engine-per-node.md); on a node without a hostengine, dcgmi starts its "
        "own.",
    ] = field(default="", name="DCGM_HOST")
    dcgm_second_engine: Annotated[
        bool,
        "true: deep diagnostics run although the node has another DCGM engine that they cannot use, such as "
        "dcgm-exporter's. NVIDIA advises against two engines on one node. false: they are skipped, with the "
        "reason DcgmEngineEmbedded.",
    ] = field(default=False, name="DCGM_BESIDE_EXPORTER")
    dcgm_timeout_seconds: Annotated[
        int, Meta(ge=60, le=86400), "Time limit of DCGM level 2 including its repeated tests, in seconds."
    ] = field(default=900, name="DCGM_TIMEOUT")
    dcgm_l4_timeout_seconds: Annotated[
        int, Meta(ge=60, le=172800), "Time limit of DCGM level 4 including its repeated tests, in seconds."
    ] = field(default=9000, name="DCGM_L4_TIMEOUT")
    enable_taint: Annotated[
        bool,
        "true: faulty nodes are tainted. false: the agent sets no taint, and removes its existing ones once, "
        "with an Event.",
    ] = field(default=True, name="ENABLE_TAINT")
    enable_label: Annotated[
        bool,
        "true: nodes are labelled. false: the agent sets no label, and removes its existing ones once, with an Event.",
    ] = field(default=True, name="ENABLE_LABEL")
    taint_severity: Annotated[AnySeverity, "Lowest severity that taints a node."] = field(
        default=Severity.RESET, name="TAINT_SEVERITY"
    )
    max_unhealthy_percent: Annotated[
        int,
        Meta(ge=1, le=100),
        "Maximum share of the nodes with an agent that carry the taint at the same time, in percent; one "
        "node always may. Beyond it, the agent writes the verdict without a taint until a slot is "
        "free.",
    ] = field(default=20, name="MAX_UNHEALTHY_PERCENT")
    budget_label: Annotated[
        LabelKey,
        "Key of a node label, as topology.kubernetes.io/zone: MAX_UNHEALTHY_PERCENT then also limits the nodes of "
        "each of its values; one node of each always may. For nodes without the label, and if this is empty, it limits "
        "the fleet alone.",
    ] = field(default="", name="BUDGET_LABEL")
    repair_conditions: Annotated[
        ConditionNames,
        "Node conditions for repair controllers, separated by commas: GpuRebootRequired, "
        "GpuReplacementRequired, AcceleratedHardwareReady (docs/integrations.md). Empty: the agent sets no "
        "condition, and removes its existing ones once, with an Event.",
    ] = field(default="", name="REPAIR_CONDITIONS")
    repair_severity: Annotated[
        RepairSeverity, "Lowest severity at which AcceleratedHardwareReady is False on a tainted node."
    ] = field(default=Severity.ISOLATE, name="REPAIR_SEVERITY")
    gate_severity: Annotated[
        AnySeverity, "Severity from which a finding keeps a pod with the gate from starting (docs/gate.md)."
    ] = field(default=Severity.RESET, name="GATE_SEVERITY")
    device_taints: Annotated[
        bool,
        "true: a faulty GPU is tainted instead of its node, if NVIDIA's DRA driver alone allocates the GPUs "
        "and the cluster has DeviceTaintRules; or cordoned, if HAMi 2.10 or newer shares them. Needs "
        'kubernetes/overlays/device-taints (docs/install.md, "Taint one GPU instead of its node"). Otherwise the '
        "node is tainted.",
    ] = field(default=False, name="DEVICE_TAINTS")
    evict_severity: Annotated[
        EvictSeverity,
        "Lowest severity of a finding for which the pods on the faulty GPU are evicted: REBOOT or ISOLATE. Empty: no "
        "pod is. Needs kubernetes/overlays/evict (docs/evict.md), or DEVICE_TAINTS with DRA on Kubernetes 1.37 or "
        "newer (docs/install.md).",
    ] = field(default=None, name="EVICT_SEVERITY")
    evict_delay_seconds: Annotated[
        int,
        Meta(ge=0, le=86400),
        "Time between the announcement of a pod's eviction and the eviction, in seconds, for a checkpoint. Device "
        "taints evict at once.",
    ] = field(default=60, name="EVICT_DELAY")
    monitor_ttl_seconds: Annotated[
        int,
        Meta(ge=60, le=31536000),
        "Time after which an event of severity MONITOR ends, in seconds since it was last observed.",
    ] = field(default=86400, name="MONITOR_TTL")
    escalate_after: Annotated[
        int,
        Meta(ge=0, le=100),
        "Number of resets or reboots within 7 days after which the same fault on the same GPU becomes "
        "ISOLATE; 0 disables the escalation.",
    ] = field(default=2, name="ESCALATE_AFTER")
    max_retired_pages_sbe: Annotated[
        int,
        Meta(ge=1, le=4096),
        "GPUs before Ampere (V100, T4): highest number of retired memory pages of a healthy GPU. A GPU has "
        "room for 64.",
    ] = field(default=60, name="MAX_RETIRED_PAGES_SBE")
    efa_min_bandwidth: Annotated[
        MegabytesPerSecond,
        "Quarantine: bandwidth that each EFA device must reach in its loopback test, in MB/s; 0 reports it "
        "without a limit. 1 to 499 is rejected as a probable Gbps value (1 Gbps is 125 MB/s).",
    ] = field(default=0, name="EFA_MIN_BW")
    efa_test_timeout_seconds: Annotated[
        int,
        Meta(ge=10, le=3600),
        "Quarantine: time limit of each side of one fi_pingpong or ib_write_bw run, in seconds. Each EFA device gets "
        "two runs, each RDMA port one.",
    ] = field(default=180, name="EFA_TEST_TIMEOUT")
    nccl_min_bus_bandwidth: Annotated[
        int,
        Meta(ge=0, le=10000),
        "Quarantine: bus bandwidth that an all-reduce over the node's GPUs must reach, in GB/s; 0: 80 % of "
        "the published figure of the instance type. The test runs if the image has all_reduce_perf.",
    ] = field(default=0, name="NCCL_MIN_BUS_BW")
    nccl_timeout_seconds: Annotated[
        int, Meta(ge=60, le=86400), "Quarantine: time limit of the all-reduce, in seconds. Exceeding it is a fault."
    ] = field(default=600, name="NCCL_TIMEOUT")
    severity_overrides: Annotated[
        Overrides,
        "Severities that replace the defaults in this cluster, one per line: `xid 13 = RESET`, "
        "`GpuCountLow = REBOOT`, `xid 43 = PASS`, or `xid 43 = RESET after 3 in 10m` (from 3 processes on one GPU).",
    ] = field(default="", name=OVERRIDES)
    node_overrides: Annotated[
        NodeOverrides,
        "Values for the nodes with certain labels, one `SELECTOR: KEY=VALUE ...` per line; later lines win: "
        "`team=research,pool in (a, b): TAINT_SEVERITY=REBOOT EVICT_SEVERITY=` (docs/settings.md).",
    ] = field(default="", name=NODE_OVERRIDES)
    nvlink_default: Annotated[
        AnySeverity, "Severity of an Xid 74 that NVIDIA's table of its data words does not classify."
    ] = field(default=Severity.RESET, name="NVLINK_DEFAULT")
    nvlink5_default: Annotated[
        AnySeverity, "Severity of an Xid 144 to 150 that NVIDIA's table of its data words does not classify."
    ] = field(default=Severity.MONITOR, name="NVLINK5_DEFAULT")
    strict_pshc: Annotated[
        Switch,
        "1: Xid 163 to 165 (power smoothing) have severity RESET, 0: MONITOR. Xid 162 ends an Xid 163 and is "
        "never above MONITOR.",
    ] = field(default=False, name="STRICT_PSHC")
    metrics_timings: Annotated[
        Switch,
        "1: agents export the durations of each probe and check, about as many series of a healthy node as all others. "
        "0: they leave them out.",
    ] = field(default=False, name="METRICS_TIMINGS")
    dcgm_l2_interval_seconds: Annotated[
        int,
        Meta(ge=0, le=31536000),
        "Period in which each idle node gets one DCGM level 2 diagnostic, in seconds; 0 disables it.",
    ] = field(default=21600, name="DCGM_L2_INTERVAL")
    max_nodes_per_sweep: Annotated[
        int, Meta(ge=1, le=5000), "Maximum number of nodes with a sweep Job at the same time."
    ] = field(default=10, name="MAX_NODES_PER_SWEEP")
    max_sweep_percent: Annotated[
        int,
        Meta(ge=1, le=100),
        "Maximum share of the nodes of one instance type with a deep diagnostic at the same time, in "
        "percent; one node always may.",
    ] = field(default=20, name="MAX_SWEEP_PERCENT")
    job_timeout_seconds: Annotated[
        int,
        Meta(ge=60, le=86400),
        "Time limit of a sweep Job in addition to DCGM_TIMEOUT, in seconds: for scheduling, image pull and reporting.",
    ] = field(default=900, name="JOB_TIMEOUT")
    sweep_namespace: Annotated[
        Namespace,
        "Namespace of the sweep Jobs. Another namespace may enforce the pod security level baseline. It "
        "needs its own ServiceAccount gpu-healthcheck-sweep, bound to the ClusterRole of that name; a Role "
        "with the rule for Jobs of the Role gpu-healthcheck-sweeper, bound to the sweeper's account; a copy "
        "of this ConfigMap; and the template's pull secrets, if it has any.",
    ] = field(default="gpu-healthcheck", name="SWEEP_NAMESPACE")
    kernel_log_lines: Annotated[
        str, "Accepted without effect, for old ConfigMaps: the agent remembers its position in the kernel log."
    ] = field(default="", name="KERNEL_LOG_LINES")
    sweep_image: Annotated[
        str,
        "Accepted without effect, for old ConfigMaps: sweep Jobs use the image of the CronJob "
        "gpu-healthcheck-sweep-node.",
    ] = field(default="", name="SWEEP_IMAGE")

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        return known_checks.select_checks(self.checks_lightweight.split())

    @cached_property
    def policy(self) -> Policy:
        lines = self.severity_overrides
        severities, thresholds = parse_overrides(lines), parse_thresholds(lines)
        return Policy(severities, self.nvlink_default, self.nvlink5_default, self.strict_pshc, thresholds)

    def for_labels(self, labels: Mapping[str, str]) -> NodeSettings:
        """Return the values in force on a node with these labels; self if no line of `node-overrides` selects it."""
        if not self.node_overrides:
            return self
        from gpu_healthcheck.healthcheck.settings.node_overrides import parse_lines  # noqa: PLC0415 - it imports this module

        lines = [line.values for line in parse_lines(self.node_overrides) if line.selects(labels)]
        return replace(self, **{name: value for values in lines for name, value in values.items()}) if lines else self

    @property
    def rules(self) -> Rules:
        from gpu_healthcheck.healthcheck.verdict.repair_conditions import RepairPolicy  # noqa: PLC0415
        from gpu_healthcheck.healthcheck.verdict.taint_decision import Rules  # noqa: PLC0415

        return Rules(
            taint_severity=self.taint_severity,
            enable_taint=self.enable_taint,
            enable_label=self.enable_label,
            max_unhealthy_percent=self.max_unhealthy_percent,
            budget_label=self.budget_label,
            device_taints=self.device_taints,
            evict_severity=self.evict_severity,
            repair=RepairPolicy(listed(self.repair_conditions), self.repair_severity),
        )


class Setting(Struct, frozen=True):
    """One declared setting."""

    name: str
    """Name of the field."""
    key: str
    """Key of the ConfigMap, or name of the environment variable."""
    kind: type
    default: Any
    """Default value; NODEFAULT for a required setting."""
    limits: Meta
    """Bounds of a number, pattern and length of a text."""
    meaning: str
    """Description for people, shown by `explain`, the ConfigMap's comments and the chart's schema."""
    rule: Rule

    @property
    def bounds(self) -> str:
        """Return the bounds of a number as text; '' for other types."""
        if self.limits.ge is None:
            return ""
        unit = " of seconds" if self.name.endswith("_seconds") else ""
        return f"a whole number{unit}, {self.limits.ge} to {self.limits.le}"

    @property
    def span(self) -> str:
        """Return a short sentence with the bounds of a number or the severities; '' for other types."""
        if self.rule.mildest is not None:
            return f"Allowed: {', '.join(self._severities)}{' or empty' if self.rule.may_be_empty else ''}."
        return "" if self.limits.ge is None else f"Allowed: {self.limits.ge} to {self.limits.le}."

    @property
    def allowed(self) -> str:
        """Return a text with the allowed values, for error messages; '' if any text is allowed."""
        if self.rule.mildest is not None:
            *names, last = self._severities
            return f"allowed are {', '.join(names)} or {last}{', or nothing' if self.rule.may_be_empty else ''}"
        return "allowed are true and false, or 1 and 0" if self.kind is bool else self.rule.allowed or self.bounds

    @property
    def _severities(self) -> list[str]:
        return [tier.name for tier in Severity if self.rule.mildest is not None and tier >= self.rule.mildest]

    @property
    def has_effect(self) -> bool:
        """Whether the programs use the value; False for a key that only old ConfigMaps set."""
        return not self.meaning.startswith(NO_EFFECT)

    @property
    def written_default(self) -> str:
        """Return the default as a ConfigMap writes it."""
        return str(int(self.default)) if self.rule.digit else written(self.default)


def written(value: object) -> str:
    """Return a value of a setting as a ConfigMap writes it."""
    if isinstance(value, Severity):
        return value.name
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def settings_of(declared: type[Struct]) -> Mapping[str, Setting]:
    """Return the settings by key, in the order of their declaration."""
    return {
        field.encode_name: _setting(field.name, field.encode_name, field.type, field.default)
        for field in fields(declared)
    }


def by_key(values: Struct) -> dict[str, Any]:
    """Return the values by key."""
    return {setting.key: getattr(values, setting.name) for setting in settings_of(type(values)).values()}


def _setting(name: str, key: str, declared: Any, default: Any) -> Setting:
    kind, *metadata = get_args(declared) or (declared,)
    parts = {type(annotation): annotation for annotation in metadata}
    return Setting(name, key, kind, default, parts.get(Meta, Meta()), parts.get(str, ""), parts.get(Rule, Rule()))
