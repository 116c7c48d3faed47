"""Requirements of a taint apart from the Node: a slot of the fleet budget, and rules for faulty GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_healthcheck.agent.node.api_server import ApiServer
from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.node.slot_requests import SlotRequests
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.node.hami import our_cordons
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.verdict.budget import HELD, SlotGrant
from gpu_healthcheck.healthcheck.verdict.taint_decision import (
    AgentView,
    Rules,
    TaintDecision,
    decide_taint,
    says_devices,
)

if TYPE_CHECKING:
    from gpu_healthcheck.agent.node.device_rule_writer import DeviceRules


class WantedTaint:
    """Runs on the node writer's thread."""

    def __init__(self, api: ApiServer, state: AgentState, reporter: Reporter, telemetry: Telemetry) -> None:
        self._api = api
        self._state = state
        self._reporter = reporter
        self._telemetry = telemetry
        self.slot = SlotRequests(api, state, reporter)
        self._devices: DeviceRules | None = None
        self._is_first = True
        self._carrier = ""
        """Bearer of the required taint: the Node, its GPUs, or nothing."""

    def cycle_ended(self) -> None:
        self.slot.cycle_ended()
        if self._devices is not None:
            self._devices.cycle_ended()

    def decide(self, view: AgentView, node: NodeState) -> tuple[TaintDecision, SlotGrant]:
        """Return the decision, and the slot for a taint that it wants; a dry run acquires none."""
        if not self._api.write:
            return decide_taint(view, node), HELD
        self._load(node, view.rules)
        devices = self._devices
        by_devices = bool(our_cordons(node)) or (devices is not None and devices.may_exist)
        decision = decide_taint(view, node, by_devices=by_devices)
        self._carrier = ""
        if not decision.wants_taint:
            return decision, HELD
        rules, tainted = view.rules, by_devices or node.tainted()
        grant = self.slot.request(node, rules.max_unhealthy_percent, rules.budget_label, tainted=tainted)
        cover = devices.request_cover(view, decision, node) if devices is not None and grant.held else None
        self._carrier = "node" if cover is None else "gpus"
        if cover is None or not cover.is_complete:
            return decision, grant
        return decision, SlotGrant(held=True, by_devices=True, cordons=cover.cordons)

    def forbid_cordons(self, why: str) -> None:
        """Report that the cluster forbids changes of HAMi's list: a faulty GPU then taints its node."""
        if self._devices is not None:
            self._devices.forbid_cordons(why)

    def settle(self, node: NodeState) -> None:
        """Release unneeded slots and rules after the Node was written."""
        if self._devices is not None and (not self._carrier or (self._carrier == "node" and node.tainted())):
            self._devices.request_clear(node)
        if not self._carrier:
            self.release_slot(node)

    def release_slot(self, node: NodeState) -> None:
        """Release the slot if no taint of ours is set."""
        if not self.is_set(node):
            self.slot.release(node)

    def is_set(self, node: NodeState) -> bool:
        """Whether our taint is on the Node or on its GPUs, or our cordon on a GPU."""
        return node.tainted() or bool(our_cordons(node)) or (self._devices is not None and self._devices.may_exist)

    def _load(self, node: NodeState, rules: Rules) -> None:
        """Load the writer of rules if it is needed, or if an earlier process left rules to delete."""
        left = self._is_first and says_devices(node)
        self._is_first = False
        if self._devices is None and (left or rules.device_taints):
            from gpu_healthcheck.agent.node.device_rule_writer import DeviceRules  # noqa: PLC0415 - loaded only if devices are tainted

            left = left and not our_cordons(node)  # cordons are on the Node itself
            self._devices = DeviceRules(self._api, self._state, self._reporter, self._telemetry, may_exist=left)
