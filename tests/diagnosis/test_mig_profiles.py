"""Nodes on which the MIG manager has failed, with pods that wait for a slice."""

from __future__ import annotations

import re

import pytest

from tests.diagnosis.component_states import MIG_MANAGER, NAMESPACE, daemon, gpu_node, operand
from tests.diagnosis.states import Object, condition, consequences, container, judged, pod, results

SLICE, CONFIG, STATE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig.config", "nvidia.com/mig.config.state"
ESCAPED = r"nvidia\.com/mig\.config\.state"
MANAGER = [daemon(MIG_MANAGER, wanted=1), operand(MIG_MANAGER, "a")]
WORK = pod("web-0", 1, on="a", owner=("ReplicaSet", "web"))
UNBOUND = condition("PodScheduled", "False", "Unschedulable", f"0/1 nodes are available: 1 Insufficient {SLICE}.")
WAITS = pod("slice", containers=[container(resources={SLICE: "1"})], conditions=[UNBOUND | {"minutes": 30}])


def labelled(config: str, state: str = "failed", **changes: object) -> Object:
    return gpu_node("a", labels={CONFIG: config, STATE: state, "nvidia.com/mig.strategy": "mixed"}, **changes)


def commands(*state: Object) -> list[str]:
    found = judged(*state, *MANAGER).problems[0].found
    assert found.cause.name == "MigConfigFailed"
    return re.findall(r"`(kubectl [^`]+)`", " ".join(found.remedy))


def test_failed_profiles_are_set_again_after_the_work_has_left_the_gpus() -> None:
    assert commands(labelled("all-1g.10gb"), WORK) == [
        f"kubectl -n {NAMESPACE} logs {MIG_MANAGER}-a --tail=50",
        "kubectl cordon a",
        "kubectl -n team delete pod web-0",
        f"kubectl label node a {CONFIG}=all-disabled --overwrite",
        f"kubectl wait node a '--for=jsonpath={{.metadata.labels.{ESCAPED}}}=success' --timeout=20m",
        f"kubectl label node a {CONFIG}=all-1g.10gb --overwrite",
        "kubectl uncordon a",
    ]


def test_failed_profiles_of_a_cordoned_node_leave_its_cordon() -> None:
    assert not [text for text in commands(labelled("all-1g.10gb", cordoned=True)) if "cordon" in text]


def test_failed_disabling_of_mig_sets_another_value_first() -> None:
    values = [text.split()[4] for text in commands(labelled("all-disabled")) if " label " in text]
    assert values == [f"{CONFIG}=all-enabled", f"{CONFIG}=all-disabled"]


@pytest.mark.parametrize("config", ["all-1g.10gb", "our-own-profiles"])
def test_pod_that_waits_for_a_slice_of_a_failed_node_is_kept(config: str) -> None:
    (problem,) = judged(labelled(config), *MANAGER, WAITS).problems

    assert consequences(problem) == [("MigProfileAbsent", "pod/team/slice")]
    assert problem.consequences[0].found.remedy == (
        "Leave the workload: it starts once node/a has its profiles (nvidia.com/mig.config.state=failed).",
    )


def test_pod_that_waits_for_another_profile_gets_its_own_advice() -> None:
    (problem,) = judged(labelled("all-3g.40gb"), *MANAGER, WAITS).problems

    (step,) = problem.consequences[0].found.remedy
    assert step == "Partition a node into 1g.10gb by its label `nvidia.com/mig.config`."


def test_node_with_its_profiles_is_no_fault() -> None:
    sliced = labelled("all-1g.10gb", "success", allocatable={SLICE: "56"}, capacity={SLICE: "56"})
    bound = pod("slice", on="a", containers=[container(resources={SLICE: "1"})])

    assert not results(judged(sliced, *MANAGER, bound))


def test_manager_that_gave_up_is_restarted() -> None:
    log = {
        (f"pod/{NAMESPACE}/{MIG_MANAGER}-a", f"{MIG_MANAGER}-ctr"): 'level=error msg="timed out"\nWaiting for change'
    }
    wedged = labelled("all-1g.10gb", "pending")
    wedged["metadata"]["labels"]["nvidia.com/gpu.deploy.dcgm"] = "paused-for-mig-change"
    (problem,) = judged(wedged, *MANAGER, WAITS, logs=log).problems

    assert problem.found.cause.name == "MigConfigPending"
    assert "node/a: paused-for-mig-change are dcgm" in problem.found.evidence
    assert 'its log: level=error msg="timed out"' in problem.found.evidence
    assert f"`kubectl -n {NAMESPACE} delete pod {MIG_MANAGER}-a`" in problem.found.steps[-1]


def test_change_of_profiles_that_nothing_waits_for_is_no_fault() -> None:
    assert not results(judged(labelled("all-1g.10gb", "pending"), *MANAGER))
