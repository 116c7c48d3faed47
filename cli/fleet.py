"""State of the fleet from its Nodes, for all output formats of `gpu-healthcheck status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import Struct, to_builtins

from gpu_healthcheck.cli import index
from gpu_healthcheck.cli.cluster_config import unused_keys, values_of_groups, values_on
from gpu_healthcheck.cli.node_groups import groups_of
from gpu_healthcheck.cli.node_step import node_step
from gpu_healthcheck.healthcheck.cluster.errors import Forbidden, NotFound
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.deep.claim import claim_on
from gpu_healthcheck.healthcheck.deep.due import is_overdue, last_attempt, last_deep_test, obstacle
from gpu_healthcheck.healthcheck.memory.reason_names import STOPS_PODS
from gpu_healthcheck.healthcheck.memory.rows import FindingRow, ReleaseRow
from gpu_healthcheck.healthcheck.model import PREFIX, Severity, Status
from gpu_healthcheck.healthcheck.node.devices import AllocatedDevices
from gpu_healthcheck.healthcheck.node.evictions import evictions_on
from gpu_healthcheck.healthcheck.node.state import (
    INSTANCE_TYPE,
    LAST_CHECK,
    RESULTS,
    SEVERITY,
    STATUS,
    NodeState,
    with_devices,
)
from gpu_healthcheck.healthcheck.operations.next_step import NextStep
from gpu_healthcheck.healthcheck.text.boundary import LONGEST_NAME
from gpu_healthcheck.healthcheck.text.moments import moment_or_none, timestamp
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict import budget, gate
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.gate import refusals_in
from gpu_healthcheck.healthcheck.verdict.record import StandingRecord
from gpu_healthcheck.healthcheck.verdict.taint_decision import accepts_work

if TYPE_CHECKING:
    from gpu_healthcheck.healthcheck.cluster.client import Cluster
    from gpu_healthcheck.healthcheck.cluster.leases import Heartbeat
    from gpu_healthcheck.healthcheck.settings.node_overrides import ValueInForce

T = TypeVar("T")
Beats: TypeAlias = "Mapping[str, Heartbeat]"
"""Heartbeats by node name."""
IntervalOf: TypeAlias = "Callable[[NodeState], timedelta]"
"""Returns the interval of a node's deep tests."""
_MOST = 10**9
"""Upper limit for the numbers of the ConfigMap that are read here."""
_NOT_YET = (
    "no sweep has tested it yet: it was never idle, or other nodes came first; `gpu-healthcheck sweep --dry-run` shows "
    "the order"
)
_WANTED = (
    f"{PREFIX}/enabled=true",
    "nvidia.com/gpu.present=true",
    "feature.node.kubernetes.io/pci-10de.present=true",
    "karpenter.k8s.aws/instance-gpu-manufacturer=nvidia",
)
"""Labels of the nodes that the DaemonSet selects."""
_ABOUT = ("index", "uuid", "serial")
SILENT, NO_VERDICT = "silent", "no verdict"
"""Statuses of a node whose agent sends no heartbeat, and of a node without a report of an agent."""
_WORST_FIRST = (Status.FAIL, Status.UNKNOWN, NO_VERDICT, SILENT, Status.WARN, Status.PASS)
_GPU_GROUP = "0-nvidia-smi"
"""Group of the checks that compare GPUs."""
_PLACES = {str(word): place for place, word in enumerate(_WORST_FIRST)}


class FleetBudget(Struct, frozen=True):
    """The fleet's slots for tainted nodes. None: no permission to read them."""

    used: int | None
    allowed: int | None
    fleet: int | None


class FleetFinding(Struct, frozen=True):
    """An active finding from the agent's record."""

    reason: str
    severity: str
    subject: str
    since: str
    about: Mapping[str, str]
    """Index, UUID and serial of the GPU."""
    detail: str = ""


class FleetEviction(Struct, frozen=True):
    """Eviction of one pod by the evict program. `why`: what refuses or delays it, else the node's finding."""

    pod: str
    state: str
    due: str
    why: str


class FleetRow(Struct, frozen=True):
    """One node. `status` is '' without a verdict of an agent, `heartbeat_age_seconds` None without a heartbeat."""

    node: str
    status: str
    severity: str
    instance_type: str
    groups: Mapping[str, str]
    """Zone, rack, pool and other groups of the node, from its labels."""
    reason: str
    message: str
    last_check: str
    tainted: bool
    taint: str
    """State of the taint in the agent's record: `set`, `devices`, `withheld`, `off`, or ''."""
    released: str
    """The last release: person, time and reason."""
    heartbeat_age_seconds: float | None
    silent: bool
    """The agent's heartbeat has expired, or is missing although the node has a verdict."""
    tested_at: str
    """Time of the last DCGM diagnostic by any program; '' without one."""
    tested_by: str
    test_result: str
    overdue: str
    """Reason why the last test is older than three intervals; '' if it is not."""
    since: str
    """Time from which the status and severity are known to be the present ones."""
    findings: tuple[FleetFinding, ...]
    """Active findings, worst first."""
    unobserved: tuple[str, ...]
    """Reasons why checks could not run."""
    stops_pods: bool
    """Whether a finding keeps all GPU pods from starting."""
    next_step: NextStep
    accepts_work: bool = False
    """Whether the node takes new pods although its verdict requires a taint: no slot of the fleet budget is free."""
    not_compared: str = ""
    """Reason why the speed of the node's GPUs is unknown; '' if it is not."""
    cordoned: bool = False
    run: str = ""
    """Kind of the run that has claimed the node: `sweep`, `l2`, `quarantine`, `reset`; '' without one."""
    evictions: tuple[FleetEviction, ...] = ()

    @property
    def shown_status(self) -> str:
        """The status that counts. A heartbeat that is missing ends no fault, but makes every other verdict old."""
        if self.silent and self.status != Status.FAIL:
            return SILENT
        return self.status or NO_VERDICT


class GateRefusals(Struct, frozen=True):
    """Pods that the gate refused on a node for one reason, by the Events that the cluster still has."""

    node: str
    reason: str
    pods: int
    last: str = ""
    """Time of the last of these Events."""


class Fleet(Struct, frozen=True):
    """Rows of the GPU nodes, and the fleet budget."""

    budget: FleetBudget
    nodes: list[FleetRow]
    """GPU nodes, worst first."""
    passed_over: list[str]
    """Unreadable objects, each with the reason."""
    refused: list[GateRefusals] = []
    unused_settings: tuple[str, ...] = ()
    """Keys of the ConfigMap that are invalid or unknown."""


class FleetTotals(Struct, frozen=True):
    """Numbers of nodes: all, by status in the order of the rows, and with a live agent (None: no permission)."""

    nodes: int
    by_status: Mapping[str, int]
    live_agents: int | None


class NodeReport(Struct, frozen=True):
    """One node: its row of the fleet, its slots of the fleet budget, and the Node with its records."""

    row: FleetRow
    node: NodeState
    slots: tuple[str, ...]
    """Names of the node's slots; () also without permission to list them."""
    budget: FleetBudget
    settings: tuple[ValueInForce, ...] = ()
    """Settings of its node group, and of the cluster where a node group can have others."""


def read_node(cluster: Cluster, name: str) -> NodeReport:
    """Return one node. Other objects that can't be read are ignored. Raises NotFound."""
    cluster.connection.pass_over = lambda _: None
    config, now = _if_allowed(cluster.settings.read_config), datetime.now(UTC)
    interval_of = _intervals(config)
    is_late = partial(_is_overdue, interval_of=interval_of, now=now)
    (node,) = _with_devices(cluster, [cluster.nodes.read(name)], config, is_late)
    beats = _heartbeats(cluster)
    row = row_of_node(node, (beats or {}).get(name), interval_of(node), now, listed=beats is not None)
    slots = _if_allowed(lambda: tuple(slot.name for slot in cluster.leases.slots(name))) or ()
    places = _budget(cluster, config, None if beats is None else len(beats))
    return NodeReport(row, node, slots, places, values_on(config or {}, node.labels))


def read_fleet(cluster: Cluster, chosen: str = "") -> Fleet:
    """Return the selected GPU nodes, worst first, and the fleet budget for tainted nodes.

    Objects that can't be read are left out, and named in the result.
    """
    unread: list[str] = []
    cluster.connection.pass_over = unread.append
    config = _if_allowed(cluster.settings.read_config)
    interval_of = _intervals(config)
    beats = _heartbeats(cluster)
    is_late = partial(_is_overdue, interval_of=interval_of, now=datetime.now(UTC))
    nodes = _with_devices(cluster, gpu_nodes(cluster, chosen), config, is_late)
    rows = _rows(cluster, nodes, beats, interval_of)
    places = _budget(cluster, config, None if beats is None else len(beats))
    refused = _refused(cluster, {row.node for row in rows})
    unused = unused_keys(config or {})
    return Fleet(places, sorted(rows, key=_worst_first), list(dict.fromkeys(unread)), refused, unused)


def totals_of(fleet: Fleet) -> FleetTotals:
    unseen = any(row.heartbeat_age_seconds is None and row.status and not row.silent for row in fleet.nodes)
    live = sum(row.heartbeat_age_seconds is not None and not row.silent for row in fleet.nodes)
    numbers = Counter(row.shown_status for row in fleet.nodes)
    return FleetTotals(len(fleet.nodes), numbers, None if unseen else live)


def fleet_document(fleet: Fleet) -> dict[str, Any]:
    """Return the fleet for programs."""
    return {"totals": to_builtins(totals_of(fleet)), **to_builtins(fleet)}


def _rows(cluster: Cluster, nodes: Iterable[NodeState], beats: Beats | None, interval_of: IntervalOf) -> list[FleetRow]:
    """Convert each node to a row when its page arrives: whole Nodes of a fleet would need too much memory."""
    rows, unheard = {}, {}
    for node in nodes:
        beat = (beats or {}).get(node.name)
        if beat is None and beats is not None and STATUS in node.labels:
            unheard[node.name] = node
        else:
            rows[node.name] = row_of_node(node, beat, interval_of(node), datetime.now(UTC), listed=beats is not None)
    later = _heartbeats(cluster) if unheard else None  # an agent may have started since
    for name, node in unheard.items():
        rows[name] = row_of_node(
            node, (later or {}).get(name), interval_of(node), datetime.now(UTC), listed=later is not None
        )
    return list(rows.values())


def gpu_nodes(cluster: Cluster, chosen: str = "") -> Iterator[NodeState]:
    """Yield the nodes that the DaemonSet selects, and all nodes with an agent's verdict.

    Nodes without a verdict are listed first: a node that gets its verdict meanwhile is listed twice, never missed.
    """
    among = [chosen] if chosen else []
    excluded = [f"!{STATUS}", *among]
    for label in _WANTED:
        yield from cluster.nodes.select(",".join((label, *excluded)))
        excluded.append(label.replace("=", "!="))
    yield from cluster.nodes.select(",".join((STATUS, *among)))


def _refused(cluster: Cluster, nodes: Collection[str]) -> list[GateRefusals]:
    """Return the refusals on these nodes, most pods first; none without permission to list Events."""
    events = _if_allowed(partial(cluster.events.list_of_nodes, gate.EVENT)) or {}
    found = [
        GateRefusals(node, reason, pods, _last(event.at for event in some if reason in refusals_in([event.message])))
        for node, some in events.items()
        if node in nodes
        for reason, pods in refusals_in(event.message for event in some).items()
    ]
    return sorted(found, key=lambda refusals: (-refusals.pods, refusals.node))


def _last(times: Iterable[datetime | None]) -> str:
    at = max(filter(None, times), default=None)
    return timestamp(at) if at else ""


def _heartbeats(cluster: Cluster) -> Beats | None:
    return _if_allowed(partial(cluster.leases.heartbeats, datetime.now(UTC)))


def _with_devices(
    cluster: Cluster,
    nodes: Iterable[NodeState],
    config: Mapping[str, str] | None,
    is_late: Callable[[NodeState], bool],
) -> Iterator[NodeState]:
    """Add the DRA devices of the nodes; requested only if a node without advertised GPUs has an overdue diagnostic."""
    namespace = (config or {}).get("SWEEP_NAMESPACE") or NAMESPACE
    allocated: AllocatedDevices | None = None
    for node in nodes:
        if allocated is None and not node.gpus and is_late(node):
            allocated = _if_allowed(partial(cluster.dra.read_given_out, namespace)) or AllocatedDevices()
        yield node if allocated is None else with_devices(node, allocated)


def _is_overdue(node: NodeState, interval_of: IntervalOf, now: datetime) -> bool:
    return is_overdue(node, last_deep_test(node, now), interval_of(node), now)


def _intervals(config: Mapping[str, str] | None) -> IntervalOf:
    if (values := values_of_groups(config or {})) is None:
        interval = timedelta(seconds=_number(config, "DCGM_L2_INTERVAL") or 0)
        return lambda _: interval
    return lambda node: timedelta(seconds=values.for_labels(node.labels).dcgm_l2_interval_seconds)


def _worst_first(row: FleetRow) -> tuple[int, int, bool, str]:
    """Return the sort key of a node. A node without a record may be as bad as a node that could not be checked."""
    severity = Severity.__members__.get(row.severity, Severity.PASS)
    return _PLACES.get(row.shown_status, _PLACES[NO_VERDICT]), -severity, not row.silent, row.node


def _budget(cluster: Cluster, config: Mapping[str, str] | None, fleet: int | None) -> FleetBudget:
    holders = _if_allowed(lambda: {slot.holder for slot in cluster.leases.slots()})
    percent = _number(config, "MAX_UNHEALTHY_PERCENT")
    places = None if fleet is None or percent is None else budget.allowed(fleet, percent)
    return FleetBudget(None if holders is None else len(holders), places, fleet)


def _number(config: Mapping[str, str] | None, key: str) -> int | None:
    """Return a number of the ConfigMap; None if it is invalid, because the agents use a last valid value then."""
    try:
        number = None if config is None else int(config.get(key, index.defaults()[key]))
    except ValueError:
        return None
    return number if number is None or 0 <= number <= _MOST else None


def _if_allowed(ask: Callable[[], T]) -> T | None:
    """Return the answer; None without permission, or if the object does not exist."""
    try:
        return ask()
    except (Forbidden, NotFound):
        return None


def row_of_node(
    node: NodeState, beat: Heartbeat | None, interval: timedelta, now: datetime, *, listed: bool = False
) -> FleetRow:
    """Return the row of a node. With `listed`, a missing heartbeat is absent; otherwise it could not be read."""
    condition, record = node.condition() or {}, records.on_node(StandingRecord, node, RESULTS)
    age = (now - beat.renewed).total_seconds() if beat else None
    alive_until = beat.renewed + timedelta(seconds=beat.seconds) if beat else None
    tested = last_deep_test(node, now)
    overdue = is_overdue(node, tested, interval, now)
    silent = age > beat.seconds if beat and age is not None else listed and STATUS in node.labels
    findings = sorted(record.findings or (), key=lambda row: -(row.severity or Severity.PASS))
    return FleetRow(
        node=node.name,
        status=node.labels.get(STATUS, ""),
        severity=node.labels.get(SEVERITY, ""),
        instance_type=node.labels.get(INSTANCE_TYPE, ""),
        groups=groups_of(node.labels),
        reason=str(condition.get("reason", "")),
        message=str(condition.get("message", "")),
        last_check=node.labels.get(LAST_CHECK, ""),
        tainted=node.tainted(),
        taint=record.taint or "",
        released=_released(record.released),
        heartbeat_age_seconds=None if age is None else round(age, 1),
        silent=silent,
        tested_at=timestamp(tested.at) if tested else "",
        tested_by=tested.by if tested else "",
        test_result=tested.status if tested else "",
        overdue=(obstacle(node, alive_until, now) or str(last_attempt(node, now) or _NOT_YET)) if overdue else "",
        since=_since(findings, condition),
        findings=tuple(_found(finding) for finding in findings),
        unobserved=tuple(dict.fromkeys(row.cause or "" for row in record.unobserved or ())),
        stops_pods=any(finding.reason in STOPS_PODS for finding in findings),
        next_step=node_step(node, record, silent, now),
        accepts_work=accepts_work(record.taint, node),
        not_compared=_why_not_compared(node, record, silent),
        cordoned=node.cordoned,
        run=claim.kind.value if (claim := claim_on(node, now)) is not None else "",
        evictions=tuple(_evictions(node, now)),
    )


def _evictions(node: NodeState, now: datetime) -> Iterator[FleetEviction]:
    found = evictions_on(node, now)
    for pod in found.pods:
        why = pod.obstacle if pod.why else found.finding or ""
        yield FleetEviction(
            pod.title, str(pod.state), timestamp(pod.due) if pod.due else "", printable(why, LONGEST_NAME)
        )


def _released(row: ReleaseRow | None) -> str:
    if row is None:
        return ""
    return f"by {row.by} at {timestamp(row.at) if row.at else None}: {row.reason}"


def _found(row: FindingRow) -> FleetFinding:
    severity = row.severity.name if row.severity is not None else ""
    return FleetFinding(
        row.reason or "",
        severity,
        row.subject or "",
        timestamp(row.first_seen) if row.first_seen else "",
        {key: value for key, value in (row.about or {}).items() if key in _ABOUT},
        row.detail or "",
    )


def _why_not_compared(node: NodeState, record: StandingRecord, silent: bool) -> str:
    if not node.labels.get(STATUS):
        return "no agent has reported"
    if silent:
        return "the agent is silent"
    if record.findings is None:
        return "the agent's record is missing or unreadable"
    causes = (row.cause or "" for row in record.unobserved or () if row.check == _GPU_GROUP)
    return ", ".join(dict.fromkeys(causes))


def _since(findings: Sequence[FindingRow], condition: Mapping[str, Any]) -> str:
    """Return the start of the present severity: of its first finding, but no earlier than that of the Node's status.

    A finding may be older than its severity: an override, a threshold or a recurrence raises it.
    """
    worst = [
        finding.first_seen for finding in findings if finding.first_seen and finding.severity == findings[0].severity
    ]
    turned = moment_or_none(condition.get("lastTransitionTime"))
    at = max(filter(None, (min(worst, default=None), turned)), default=None)
    return timestamp(at) if at else ""


def heartbeat_text(row: FleetRow) -> str:
    """Return the age of the agent's last heartbeat."""
    if row.heartbeat_age_seconds is None:
        return "never" if not row.status else "silent" if row.silent else "?"
    age = ago(row.heartbeat_age_seconds)
    return f"silent {age.removesuffix(' ago')}" if row.silent else age


def ago(seconds: float) -> str:
    """Return an age. Another machine's clock may be ahead of this one's: its times are never in the future."""
    if seconds < 120:
        return f"{max(seconds, 0):.0f}s ago"
    return f"{seconds / 60:.0f}m ago" if seconds < 7200 else f"{seconds / 3600:.0f}h ago"
