"""Create, update and delete the DeviceTaintRules that replace the taint of the Node.

On a node whose GPUs HAMi shares, HAMi's list of cordoned cards replaces it: the list is on the Node and is written with
the verdict, and this module tests whether HAMi's scheduler obeys it. Loaded if DEVICE_TAINTS is set, or if a record
names rules of an earlier process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

import structlog
from msgspec import Struct

from gpu_healthcheck.agent.node.api_server import ApiServer
from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.checks.examine import failure
from gpu_healthcheck.healthcheck.cluster.dra import DeviceTaints, NotServed
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Conflict, Forbidden, Refused, Unavailable
from gpu_healthcheck.healthcheck.cluster.hami_schedulers import HamiSchedulers
from gpu_healthcheck.healthcheck.node.device_rules import DeviceRule
from gpu_healthcheck.healthcheck.node.hami import CORDON, is_shared, our_cordons
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.verdict.device_taints import (
    BadGpu,
    CordonPlan,
    DeviceTaintCover,
    RuleChange,
    gpus_to_taint,
    plan_cordons,
    plan_rules,
)
from gpu_healthcheck.healthcheck.verdict.node_events import NodeEvent, cut, event_name
from gpu_healthcheck.healthcheck.verdict.taint_decision import AgentView, TaintDecision

log = structlog.get_logger()

_RESOURCE, _SCHEDULERS = "devicetaintrules", "deployments"
_MOMENT_SECONDS = 2.0
"""Longest wait of a verdict for its rules. After it, the Node is tainted until the rules are active."""
_PROCESSING_SECONDS, _POLL_SECONDS = 10.0, 0.1
"""Time for the cluster's controllers to process a new rule, and interval of the checks."""
_ASK_AGAIN_SECONDS = 3600.0
"""Interval of the checks whether a controller still acts on the existing rules."""
_PATIENCE_SECONDS = 30.0
"""Time for controllers that are being replaced to answer."""
_NOT_PROCESSED_SECONDS = 3600.0
"""Retry delay on a cluster that accepts rules without effect, or forbids cordons."""
_NOT_PROCESSED = (
    "the API server accepts DeviceTaintRules without effect: kube-controller-manager and kube-scheduler need "
    "the feature gate DRADeviceTaintRules"
)


class _Target(Struct, frozen=True):
    """GPUs that rules must cover; empty: all our rules must be deleted. `cordon`: HAMi's list covers them instead."""

    node: NodeState
    gpus: tuple[BadGpu, ...]
    cordon: CordonPlan | None = None

    def is_same(self, other: _Target | None) -> bool:
        if other is None:
            return False
        return (self.node.uid, self.gpus, self.cordon) == (other.node.uid, other.gpus, other.cordon)


class DeviceRules:
    """Rules of one node.

    `request_cover` and `request_clear` run on the node writer's thread, requests in a thread that ends after them.

    `may_exist`: our rules may exist and keep work off some GPU.
    """

    def __init__(
        self, api: ApiServer, state: AgentState, reporter: Reporter, telemetry: Telemetry, *, may_exist: bool
    ) -> None:
        self._api = api
        self._cluster = DeviceTaints(api.cluster.connection)
        self._hami = HamiSchedulers(api.cluster.connection)
        self._news = state.news
        self._reporter = reporter
        self._telemetry = telemetry
        self._condition = threading.Condition()
        self._target: _Target | None = None
        self._answer: DeviceTaintCover | None = None
        """Cover of the current target; None: the cluster has not answered yet."""
        self._is_due = self._is_running = self._was_missed = False
        self._not_processed_until = self._ask_again_at = 0.0
        self._unanswered_since: float | None = None
        self._cordons_forbidden, self._cordons_forbidden_until = "", 0.0
        self._reported = ("", "")
        self.may_exist = may_exist

    def cycle_ended(self) -> None:
        """Check the rules again after a cycle.

        Another client may have deleted a rule, or the devices may be published anew.
        """
        with self._condition:
            has_gpus = self._target is not None and bool(self._target.gpus)
            self._is_due = has_gpus or self._answer is None or self.may_exist

    def request_cover(self, view: AgentView, decision: TaintDecision, node: NodeState) -> DeviceTaintCover | None:
        """Return whether rules or cordons keep work off each faulty GPU; None if the fault is of the node.

        The last answer is valid until the next one.
        """
        gpus = gpus_to_taint(view, decision, node)
        if not gpus:  # unobserved: the present rules and cordons stay
            cordons = our_cordons(node)
            return None if gpus is None else DeviceTaintCover(self.may_exist or bool(cordons), cordons=cordons)
        cordon = self._cordons(view, decision, node, gpus) if is_shared(node) else None
        with self._condition:
            self._set_target(_Target(node, gpus, cordon))
            self._condition.wait_for(lambda: self._answer is not None, _MOMENT_SECONDS)
            self._was_missed = self._answer is None
            cover = self._answer or DeviceTaintCover(is_complete=False)
        self._telemetry.device_taints_failed.set(not cover.is_complete)
        return cover

    def forbid_cordons(self, why: str) -> None:
        """Cover no GPU by a cordon for a while: the cluster has refused a change of HAMi's list."""
        self._cordons_forbidden = f"the cluster forbids changes of {CORDON}: {why}; are the manifests applied?"
        self._cordons_forbidden_until = time.monotonic() + _NOT_PROCESSED_SECONDS

    def _cordons(self, view: AgentView, decision: TaintDecision, node: NodeState, gpus: Sequence[BadGpu]) -> CordonPlan:
        if time.monotonic() < self._cordons_forbidden_until:
            return CordonPlan(why=self._cordons_forbidden)
        return plan_cordons(gpus, view, decision, node)

    def request_clear(self, node: NodeState) -> None:
        """Delete all rules of this node. Once they are gone, no more requests are sent."""
        self._telemetry.device_taints_failed.set(0)
        with self._condition:
            self._set_target(_Target(node, ()))

    def _set_target(self, target: _Target) -> None:
        if not target.is_same(self._target):
            self._answer, self._is_due = None, True
        self._target = target
        if self._is_due and not self._is_running:
            self._is_running = True
            threading.Thread(target=self._run, name="device-rules", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._condition:
                target = self._target
                if target is None or not self._is_due:
                    self._is_running = False
                    return
                self._is_due = False
            existed = self.may_exist
            self._apply_answer(target, self._apply(target), lifted=existed and not self.may_exist)

    def _apply_answer(self, target: _Target, answer: DeviceTaintCover | None, *, lifted: bool) -> None:
        with self._condition:
            if not target.is_same(self._target):
                return
            before = self._answer
            if answer is None and target.gpus:  # no answer: the last one stays valid
                answer = before
            self._answer = answer
            is_news = self._was_missed or lifted or (before is not None and before != answer)
            self._was_missed = False
            self._condition.notify_all()
        if is_news:
            self._news.set()

    def _apply(self, target: _Target) -> DeviceTaintCover | None:
        """Change the rules to match the target, and return the cover; None without an answer."""
        resource = _RESOURCE if target.cordon is None else _SCHEDULERS
        try:
            if target.cordon is not None:
                answer = self._obeyed(target.cordon)
            elif target.gpus:
                answer = self._cover(target)
            else:
                answer = self._clear(target)
        except Forbidden as error:
            self._api.permissions.forbid("write", resource, error)
            answer = DeviceTaintCover(is_complete=False, why=f"{error}; is kubernetes/overlays/device-taints applied?")
        except (NotServed, Refused, Conflict) as error:
            self.may_exist = self.may_exist and not isinstance(error, NotServed)
            answer = DeviceTaintCover(is_complete=False, why=str(error))
        except ClusterError as error:
            log.warning("the taints of GPUs could not be updated to the verdict", error=str(error))
            if self._answer is not None or not target.gpus:
                return None
            answer = DeviceTaintCover(is_complete=False, why=str(error))
        except Exception as error:  # noqa: BLE001 - boundary of this loop
            self._reporter.report_defect("device-rules", error)
            answer = DeviceTaintCover(is_complete=False, why=failure(error))
        else:
            self._api.permissions.allow("write", resource)
        self._report(target, answer)
        return answer

    def _obeyed(self, cordon: CordonPlan) -> DeviceTaintCover:
        """Return the cover by HAMi's list, if HAMi's schedulers obey it. Raises ClusterError."""
        why = cordon.why or self._hami.why_ignored()
        self._telemetry.device_taints.set(0 if why else len(cordon.uuids))
        return DeviceTaintCover(not why, why, cordon.uuids)

    def _cover(self, target: _Target) -> DeviceTaintCover:
        """Create and update the rules of the target's GPUs. Raises ClusterError."""
        node = target.node
        rules = self._cluster.list_rules(node.name)
        change = plan_rules(target.gpus, self._cluster.list_devices(node.name), rules, node)
        self._delete(change.gone)
        if change.why:
            return DeviceTaintCover(is_complete=False, why=change.why)
        if time.monotonic() < self._not_processed_until:
            self.may_exist = not self._delete((*change.unchanged, *(device_rule for device_rule, _ in change.changed)))
            return DeviceTaintCover(is_complete=False, why=_NOT_PROCESSED)
        for rule, taint in change.changed:
            self._cluster.change_taint(rule, taint)
        for wanted in change.made:
            self.may_exist = True
            self._cluster.create_rule(wanted, node)
        if time.monotonic() >= self._ask_again_at:
            for rule in change.unchanged:
                with suppress(Conflict):  # changed by another client: the next cycle reads it
                    self._cluster.ask_again(rule)
            self._ask_again_at = time.monotonic() + _ASK_AGAIN_SECONDS
        return self._wait_until_processed(node, change)

    def _wait_until_processed(self, node: NodeState, change: RuleChange) -> DeviceTaintCover:
        """Wait until the controllers have processed all rules; delete the rules that no controller acts on."""
        deadline = time.monotonic() + _PROCESSING_SECONDS
        while True:
            rules = [rule for rule in self._cluster.list_rules(node.name) if rule.is_ours and rule.name in change.names]
            seen = len(rules) == len(change.names) and all(rule.is_processed for rule in rules)
            if seen or time.monotonic() >= deadline:
                break
            time.sleep(_POLL_SECONDS)
        if seen and self._is_still_answered(all(rule.is_processed_now for rule in rules)):
            self.may_exist = True
            self._telemetry.device_taints.set(len(rules))
            return DeviceTaintCover(is_complete=True)
        self._unanswered_since = None
        self._not_processed_until = time.monotonic() + _NOT_PROCESSED_SECONDS
        self.may_exist = not self._delete(rules)
        return DeviceTaintCover(is_complete=False, why=_NOT_PROCESSED)

    def _is_still_answered(self, answered: bool) -> bool:
        """Whether rules that had an effect before still count: later cycles check again, for a limited time."""
        if answered:
            self._unanswered_since = None
            return True
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()
        return time.monotonic() - self._unanswered_since < _PATIENCE_SECONDS

    def _clear(self, target: _Target) -> DeviceTaintCover:
        """Delete all our rules. Raises ClusterError."""
        if is_shared(target.node) and not self.may_exist:  # no rule was written: cordons are on the Node itself
            self._telemetry.device_taints.set(0)
            return DeviceTaintCover(is_complete=False)
        rules = self._cluster.list_rules(target.node.name)
        if not self._delete(rule for rule in rules if rule.is_ours):
            raise Unavailable("a DeviceTaintRule was changed during its deletion")
        self.may_exist = False
        self._telemetry.device_taints.set(0)
        return DeviceTaintCover(is_complete=False)

    def _delete(self, rules: Iterable[DeviceRule]) -> bool:
        """Delete the rules, and return whether all are gone."""
        gone = [self._cluster.delete_rule(rule) for rule in rules]
        if gone:
            log.info("deleted DeviceTaintRules", number=sum(gone))
        return all(gone)

    def _report(self, target: _Target, answer: DeviceTaintCover) -> None:
        """Report each change once."""
        gpus = ", ".join(f"{gpu.address} ({gpu.severity.name})" for gpu in target.gpus)
        if answer.is_complete:
            evicting = ", ".join(gpu.address for gpu in target.gpus if gpu.evicts and target.cordon is None)
            evicted = f"; Kubernetes evicts the pods that claim {evicting} (EVICT_SEVERITY)" if evicting else ""
            news = ("DeviceTainted", f"work is kept off GPU {gpus}, and not off the node{evicted}")
        elif answer.why:
            news = (
                "DeviceTaintFailed",
                f"DEVICE_TAINTS can't be applied, so a faulty GPU taints its node: {answer.why}",
            )
        else:
            news = (
                ("DeviceTaintLifted", "no GPU of this node carries our taint any more")
                if self._reported[0]
                else ("", "")
            )
        if news != self._reported and news[0]:
            kind = "Normal" if news[0] == "DeviceTaintLifted" else "Warning"
            name = event_name(target.node.name, *news, target.node.resource_version)
            self._reporter.queue(NodeEvent(name, kind, news[0], cut(news[1])))
        self._reported = news if news[0] != "DeviceTaintLifted" else ("", "")
