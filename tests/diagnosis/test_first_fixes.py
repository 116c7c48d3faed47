"""Commands that another finding of our agents makes harmful, and their replacements."""

from __future__ import annotations

import pytest

from gpu_healthcheck.diagnosis.causes.first_fixes import FILES_FIRST, with_fixes_first
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, FoundCause
from gpu_healthcheck.healthcheck.checks.runtime_restart import REASONS
from tests.diagnosis.states import Object, node, pod, recorded, snapshot

CAUSE = Cause("Any", CauseSeverity.LOW, None, "", "")
HELM = 'Name it: `helm upgrade "$(helm list -qn gpu-operator)" nvidia/gpu-operator --set x=y`'
ROLLOUT = "Again: `kubectl -n gpu-operator rollout restart ds/nvidia-container-toolkit-daemonset`"
RESTART, SNAP = "Then `nvidia-ctk x && systemctl restart containerd`", "Then `snap restart k8s.containerd`"
DELETE, DELETES = "Again: `kubectl -n x delete pod plugin-a`", "Again: `kubectl -n x delete pods --field-selector=a`"
DESCRIBE = "See: `kubectl describe node a`"
OF_NODE_A, OF_ITS_POD = ("node/a", ()), ("daemonset/x/plugin", ("pod/team/trainer",))


def with_findings(name: str, *reasons: str) -> Object:
    return node(name, annotations=recorded(*reasons))


def remedy(line: str, where: tuple[str, tuple[str, ...]], *nodes: Object) -> tuple[str, ...]:
    subject, affected = where
    whole = snapshot(*nodes, pod("trainer", on="a"))
    return with_fixes_first(whole, FoundCause(CAUSE, subject, (), (line, DESCRIBE), affected)).remedy


@pytest.mark.parametrize("where", [OF_NODE_A, OF_ITS_POD])
@pytest.mark.parametrize("line", [HELM, ROLLOUT, RESTART, SNAP, DELETE, DELETES])
@pytest.mark.parametrize("reason", REASONS)
def test_what_to_correct_takes_the_place_of_a_command_that_would_load_a_fault(
    line: str, where: tuple[str, tuple[str, ...]], reason: str
) -> None:
    message = f"First fix the finding of the agent on node/a: {reason}; see `gpu-healthcheck explain {reason}`"

    assert remedy(line, where, with_findings("a", "Xid79", reason)) == (message, FILES_FIRST, DESCRIBE)


@pytest.mark.parametrize("line", [HELM, ROLLOUT, RESTART, SNAP, DELETE, DELETES])
@pytest.mark.parametrize("reasons", [(), ("Xid79",), ("RuntimeConfigNotLoaded",), ("CdiSpecStale",)])
def test_they_stay_with_other_findings(line: str, reasons: tuple[str, ...]) -> None:
    assert remedy(line, OF_NODE_A, with_findings("a", *reasons)) == (line, DESCRIBE)


@pytest.mark.parametrize("reason", ["RuntimeNotReady", "NvidiaRuntimeMissing", "NvidiaRuntimeElsewhere"])
def test_no_pod_is_deleted_where_none_would_take_its_place(reason: str) -> None:
    assert remedy(DELETE, OF_NODE_A, with_findings("a", reason))[1:] == (FILES_FIRST, DESCRIBE)
    assert remedy(RESTART, OF_NODE_A, with_findings("a", reason)) == (RESTART, DESCRIBE)


@pytest.mark.parametrize(("line", "waits"), [(HELM, True), (ROLLOUT, True), (RESTART, False), (DELETE, False)])
def test_a_fault_of_another_node_holds_only_what_is_done_to_all(line: str, waits: bool) -> None:
    messages = remedy(line, OF_NODE_A, node("a"), with_findings("b", "RuntimeCriDisabled"))
    assert (line not in messages) is waits


def test_the_worst_fault_comes_first() -> None:
    (first, *_) = remedy(RESTART, OF_NODE_A, with_findings("a", "CgroupDriverMismatch", "RuntimeCriDisabled"))
    assert "RuntimeCriDisabled, CgroupDriverMismatch; see" in first


def test_only_some_of_many_nodes_are_listed() -> None:
    messages = remedy(HELM, OF_NODE_A, *(with_findings(f"n-{number}", "RuntimeCriDisabled") for number in range(99)))
    assert len(messages) < 10
