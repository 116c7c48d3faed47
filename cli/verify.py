"""`gpu-healthcheck verify`: check that each part of an installation works."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text

from gpu_healthcheck.cli import agent_pods, cluster_config
from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.cli.fleet import gpu_nodes
from gpu_healthcheck.cli.options import Context, Kubeconfig, RequestTimeout, seconds_of
from gpu_healthcheck.cli.output.lines import print_rows
from gpu_healthcheck.cli.words import end, explained
from gpu_healthcheck.healthcheck.catalog import dcgm
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, NotFound
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.names import AGENT, EVICT, NAMESPACE, POLICIES
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.host.program import COULD_NOT
from gpu_healthcheck.healthcheck.host.streams import complain
from gpu_healthcheck.healthcheck.model import counted
from gpu_healthcheck.healthcheck.node.hami import is_shared
from gpu_healthcheck.healthcheck.node.state import MOST_FIELD_MANAGERS, RESULTS, NodeState
from gpu_healthcheck.healthcheck.text.naming import named
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord

if TYPE_CHECKING:
    from gpu_healthcheck.healthcheck.cluster.client import Cluster
    from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings

_NUMBER = re.compile(r"\d{1,6}\Z", re.ASCII)
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=seconds_of,
        show_default=False,
        help="Repeat failed checks for this time, as 90s or 2m; default: once.",
    ),
]


def _number(text: str | int) -> int:
    if isinstance(text, int) or _NUMBER.match(text):
        return int(text)
    raise typer.BadParameter("a number of nodes such as 2 is allowed")


Allow = Annotated[
    int,
    typer.Option(
        "--allow",
        metavar="NUMBER",
        parser=_number,
        show_default=False,
        help="Nodes that may be without a live agent; default: 0.",
    ),
]
LACKING = 1
_UNREADY = ("False", "Unknown")
"""Values of the condition Ready of a node whose kubelet runs no pods."""
_LOOK_AGAIN_SECONDS = 2.0
_MOST_NAMED = 5


class Verification(Struct, frozen=True):
    """Result of the check of one required part."""

    about: str
    holds: bool
    message: str
    is_allowed: bool = False
    """Whether it concerns only nodes that may be without a live agent."""


def verify(
    timeout: Timeout = 0.0,
    allow: Allow = 0,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Check the installation: policies are in force, and each GPU node has labels and a live agent.

    Exit code: 0 it works; 1 a part or an agent is missing; 2 could not check.
    """
    try:
        cluster = cluster_of(Access(kubeconfig, context, request_timeout))
        answers = _answers(cluster, time.monotonic() + timeout, allow)
    except ClusterError as error:
        end("verify", explained(error), COULD_NOT)
    show(answers, Screen())
    raise typer.Exit(0 if _all_hold(answers) else LACKING)


def _answers(cluster: Cluster, deadline: float, allow: int) -> list[Verification]:
    """Return the last results: when all pass, or when the time is over. Report each failure when it is first found."""
    reported: set[str] = set()
    while not _all_hold(answers := list(answers_of(cluster, allow))) and time.monotonic() < deadline:
        for answer in answers:
            if not answer.holds and answer.message not in reported:
                reported.add(answer.message)
                complain("verify", f"waiting: {answer.about}: {answer.message}")
        time.sleep(_LOOK_AGAIN_SECONDS)
    return answers


def _all_hold(answers: list[Verification]) -> bool:
    return all(answer.holds for answer in answers)


def answers_of(cluster: Cluster, allow: int = 0) -> Iterator[Verification]:
    """Yield the results; each part depends on the parts before it. Raises ClusterError.

    `allow`: number of nodes that may be without a live agent.
    """
    missing = sorted(set(POLICIES) - cluster.policies.list_in_force())
    yield Verification(
        "policies",
        not missing,
        f"not in force: {named(missing, _MOST_NAMED)}" if missing else f"{len(POLICIES)} in force",
    )
    listed = list(gpu_nodes(cluster))
    nodes = {node.name for node in listed}
    yield Verification("GPU nodes", bool(nodes), f"{len(nodes)} selected by labels" if nodes else _NO_NODE)
    now = datetime.now(UTC)
    beats = cluster.leases.heartbeats(now)
    awake = {name for name, beat in beats.items() if now - beat.renewed <= timedelta(seconds=beat.seconds)}
    silent = sorted(nodes - awake)
    others = f"; without one: {named(silent, _MOST_NAMED)}" if silent else ""
    have = "node has" if len(nodes) == 1 else "nodes have"
    is_allowed = 0 < len(silent) <= allow and bool(nodes & awake)
    message = f"{len(nodes & awake)} of {len(nodes)} {have} a live agent{others}"
    yield Verification("agents", bool(nodes) and (not silent or is_allowed), message, is_allowed)
    unready = {node.name for node in listed if (node.condition("Ready") or {}).get("status") in _UNREADY}
    yield from agent_answers(
        cluster, nodes, agent_pods.SilentNodes(silent, unready & set(silent)), is_allowed=is_allowed
    )
    yield from settings_answers(cluster, listed)
    yield from crowd_answers(listed)
    yield from engine_answers(listed)


def agent_answers(
    cluster: Cluster, nodes: Collection[str], silent: agent_pods.SilentNodes, *, is_allowed: bool
) -> Iterator[Verification]:
    """Yield the reason of each silent node, nodes without a first report, and agents of an earlier version.

    The DaemonSet is read in any case, pods and Events only if a node is silent.
    """
    try:
        daemon_set = cluster.pods.read_agent_daemon_set()
        if silent.names:
            uid = str(daemon_set["metadata"]["uid"])
            warnings, pods = cluster.events.list_warnings(NAMESPACE, uid), cluster.pods.list_agents()
            known = replace(silent, events=cluster.events.last_of_pods(NAMESPACE))
            for failure in agent_pods.start_failures(daemon_set, warnings, pods, known):
                where = f" on {named(sorted(failure.nodes), _MOST_NAMED)}" if failure.nodes else ""
                message = f"{failure.reason}{where}: {failure.message}. {failure.fix}"
                yield Verification("agent pods", is_allowed, message, is_allowed)
    except NotFound:
        yield Verification("agent pods", holds=False, message=f"there is no DaemonSet {AGENT} in {NAMESPACE}")
    except Forbidden as error:
        yield Verification("agent pods", holds=is_allowed or not silent.names, message=f"could not check: {error}")
    else:
        if (more := agent_pods.selected(daemon_set) - len(nodes)) > 0:
            message = f"no report yet from {counted(more, 'further node')} on which an agent should run"
            yield Verification("agents", holds=False, message=message)
        earlier, count = agent_pods.outdated(daemon_set)
        if earlier:
            yield Verification("agent versions", holds=False, message=f"{earlier} of {count} {_EARLIER}")


def settings_answers(cluster: Cluster, nodes: Iterable[NodeState]) -> Iterator[Verification]:
    """Yield the invalid values and unknown keys of the ConfigMap, as the agents read them, and what a setting lacks."""
    try:
        written = cluster.settings.read_config()
    except (NotFound, Forbidden) as error:
        yield Verification("settings", holds=isinstance(error, Forbidden), message=f"could not check: {error}")
        return
    config = cluster_config.judged(written)
    lacking = "; ".join((*config.reasons, *([_KEPT] if config.settings.bad else ())))
    valid = f"{counted(len(written), 'key')} set, all valid" if written else "every setting has its default"
    yield Verification("settings", holds=not lacking, message=lacking or valid)
    if config.settings.values.device_taints:
        yield from _device_taint_answers(cluster, [is_shared(node) for node in nodes])
    yield from _evict_answers(cluster, config.settings.values)


def crowd_answers(nodes: Iterable[NodeState]) -> Iterator[Verification]:
    """Yield the nodes with so many field managers that each of their writes is slow."""
    crowded = sorted(node.name for node in nodes if node.field_managers > MOST_FIELD_MANAGERS)
    if crowded:
        message = f"more than {MOST_FIELD_MANAGERS} on {named(crowded, _MOST_NAMED)}: {_CROWDED}"
        yield Verification("field managers", holds=False, message=message)


def engine_answers(nodes: Iterable[NodeState]) -> Iterator[Verification]:
    """Yield the reasons why nodes get no deep diagnostics, by cause, with the fix."""
    by_cause: dict[str, list[str]] = {}
    for node in nodes:
        inventory = records.on_node(AgentRecord, node, RESULTS).inventory
        if inventory is not None and inventory.dcgm is not None and inventory.dcgm.cause:
            by_cause.setdefault(inventory.dcgm.cause, []).append(node.name)
    for name, names in sorted(by_cause.items()):
        remedy = next((cause.action for cause in dcgm.CAUSES if cause.name == name), "")
        message = f"left out on {named(sorted(names), _MOST_NAMED)}: {name}. {remedy}"
        yield Verification("deep tests", holds=False, message=message)


def _device_taint_answers(cluster: Cluster, shared_by_hami: Sequence[bool]) -> Iterator[Verification]:
    """Yield whether single GPUs can be closed: by DeviceTaintRules, and by HAMi on the nodes that it shares."""
    from gpu_healthcheck.healthcheck.cluster.dra import NOT_SERVED, DeviceTaints  # noqa: PLC0415 - the help does not need it
    from gpu_healthcheck.healthcheck.cluster.hami_schedulers import HamiSchedulers  # noqa: PLC0415 - the same

    if not shared_by_hami or not all(shared_by_hami):
        served = DeviceTaints(cluster.connection).are_served()
        yield Verification("device taints", holds=served, message="are served" if served else f"{NOT_SERVED}; {_NODES}")
    if any(shared_by_hami):
        try:
            why = HamiSchedulers(cluster.connection).why_ignored()
        except Forbidden as error:
            yield Verification("HAMi cordons", holds=True, message=f"could not check: {error}")
        else:
            message = f"{why}: a faulty GPU taints its node" if why else "HAMi's scheduler obeys them"
            yield Verification("HAMi cordons", not why, message)


def _evict_answers(cluster: Cluster, values: NodeSettings) -> Iterator[Verification]:
    """Yield whether the evictions that EVICT_SEVERITY enables are possible; nothing if they are not enabled."""
    from gpu_healthcheck.healthcheck.settings.node_overrides import parse_lines  # noqa: PLC0415 - loads pydantic

    try:
        has_evict = cluster.pods.has_evict()
    except Forbidden as error:
        yield Verification("evictions", holds=True, message=f"could not check: {error}")
        return
    of_groups = [line.values.get("evict_severity") for line in parse_lines(values.node_overrides)]
    is_enabled = any(severity is not None for severity in (values.evict_severity, *of_groups))
    off = [
        key
        for key, is_on in (("ENABLE_LABEL", values.enable_label), ("ENABLE_TAINT", values.enable_taint))
        if not is_on
    ]
    if has_evict and not is_enabled:
        yield Verification(
            "evictions", holds=False, message=f"{EVICT} is installed and EVICT_SEVERITY is empty: {_NO_POD}"
        )
    elif has_evict and off:
        yield Verification("evictions", holds=False, message=f"{' and '.join(off)} must be true: {_NO_POD}")
    elif is_enabled and not has_evict and not values.device_taints:
        message = f"EVICT_SEVERITY needs kubernetes/overlays/evict or DEVICE_TAINTS: {_NO_POD}"
        yield Verification("evictions", holds=False, message=message)
    elif has_evict:
        yield Verification("evictions", holds=True, message=f"{EVICT} is installed, and EVICT_SEVERITY is set")


_NO_POD = "no pod is evicted"
_CROWDED = (
    "they remain from server-side apply, possibly with a stolen token. List them with `kubectl get node NODE -o yaml"
    " --show-managed-fields`, clear them with `kubectl patch node NODE --type=merge -p"
    ' \'{"metadata":{"managedFields":[{}]}}\'`'
)
_EARLIER = (
    "agents still run the earlier version, whose writes the new admission policies may refuse. Wait for"
    f" `kubectl rollout status daemonset/{AGENT} -n {NAMESPACE}`"
)
_KEPT = "for these keys, agents keep the last valid value and other programs use the default; all other keys act"


_NODES = "DEVICE_TAINTS has no effect: a faulty GPU taints its whole node"
_NO_NODE = "no node has a label by which the DaemonSet finds GPU nodes (docs/install.md)"


def show(answers: Iterable[Verification], screen: Screen) -> None:
    rows = []
    for one in answers:
        mark = ("allowed", "yellow") if one.is_allowed else ("ok", "green") if one.holds else ("not ok", "bold red")
        rows.append([Text(one.about), Text(*mark), Text(one.message)])
    print_rows(screen, rows)
