"""Parts of a Node that an uninstall removes, and parts that stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.node.hami import CORDON
from gpu_healthcheck.healthcheck.node.state import (
    DEVICE_CORDON,
    MAINTENANCE,
    RESULTS,
    STARTUP,
    UNHEALTHY,
    FieldManager,
    NodeState,
)
from gpu_healthcheck.healthcheck.operations.uninstall import STOP, patch, removal
from tests.examples import WALL

DOCS = Path(__file__).parents[2] / "docs"
P = "gpu-healthcheck.aws-samples.io"
Taint = dict[str, str]


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Taint:
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


SPOT = taint("example.com/spot", "true")
OURS = (taint(f"{P}/unhealthy", "true"), taint(f"{P}/maintenance", "quarantine"), taint(f"{P}/startup"))
THEIRS = (taint(f"{P}/unhealthy", "true", "NoExecute"), taint(f"{P}/mine", "x"))
LABELS = {f"{P}/{key}": "x" for key in ("status", "severity", "last-check", "mode")}
ANNOTATIONS = {f"{P}/{key}": "{}" for key in ("results", "sweep-result", "run", "release", "quarantine-result")}


def node(**about: Any) -> NodeState:
    return NodeState("n", **{"resource_version": "7", **about})


def test_our_cordons_go_and_those_of_others_stay() -> None:
    ours, theirs = (f"GPU-00000000-51e0-4000-8000-00000000000{end}" for end in "ab")
    record = '{"schema":1,"taint":"devices"}'
    state = node(annotations={CORDON: f"{theirs},{ours}", DEVICE_CORDON: ours, RESULTS: record})
    written = patch(state)
    assert written is not None
    assert written["metadata"]["annotations"] == {CORDON: theirs, DEVICE_CORDON: None, RESULTS: None}
    assert (removal(state).cordons, removal(state).has_rules) == ((ours,), False)
    assert patch(node(annotations={CORDON: theirs})) is None


def test_all_of_ours_goes_in_one_patch_and_what_is_foreign_stays() -> None:
    full = node(
        labels={**LABELS, "team": "x", f"{P}.evil/x": "y"},
        annotations={**ANNOTATIONS, "note": "x"},
        taints=(SPOT, *OURS),
        conditions=({"type": "Ready"}, {"type": "GpuHealthy"}),
    )

    assert patch(full) == {
        "metadata": {
            "resourceVersion": "7",
            "labels": dict.fromkeys(LABELS),
            "annotations": dict.fromkeys(ANNOTATIONS),
        },
        "spec": {"taints": [SPOT]},
    }
    gone = removal(full)
    assert (gone.conditions, gone.uncordoned, gone.kept) == (("GpuHealthy",), "", ())
    assert gone.taints == (
        f"{P}/unhealthy=true:NoSchedule",
        f"{P}/maintenance=quarantine:NoSchedule",
        f"{P}/startup:NoSchedule",
    )


def test_a_persons_annotation_under_our_prefix_stays_and_is_reported() -> None:
    kept = node(labels={f"{P}/enabled": "true"}, taints=THEIRS)

    assert (patch(kept), bool(removal(kept))) == (None, False)
    assert removal(kept).kept == (
        f"label {P}/enabled=true",
        f"taint {P}/unhealthy=true:NoExecute",
        f"taint {P}/mine=x:NoSchedule",
    )


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "PreferNoSchedule"])
def test_the_startup_taint_goes_whatever_its_effect(effect: str) -> None:
    change = patch(node(taints=(SPOT, taint(f"{P}/startup", "", effect))))

    assert change is not None
    assert change["spec"] == {"taints": [SPOT]}


@pytest.mark.parametrize(("manager", "lifted"), [("gpu-healthcheck", True), ("kubectl", False)])
def test_only_our_own_cordon_is_lifted(manager: str, lifted: bool) -> None:
    cordoned = node(
        annotations={f"{P}/cordoned-by": "gpu-quarantine-n"},
        cordoned=True,
        cordon_managers=(FieldManager(manager, WALL),),
        mark_managers=(FieldManager("gpu-healthcheck", WALL),),
    )

    change = patch(cordoned)
    assert change is not None
    assert change["metadata"]["annotations"] == {f"{P}/cordoned-by": None}
    assert change.get("spec", {}) == ({"unschedulable": None} if lifted else {})
    assert bool(removal(cordoned).uncordoned) is lifted


def test_a_cordon_that_nobody_of_us_set_is_nothing_of_ours() -> None:
    assert not removal(node(cordoned=True, taints=(SPOT,), labels={"team": "x"}))


@pytest.mark.parametrize(("taints", "verdict"), [(OURS[:1], "ISOLATE"), ((), "")])
def test_with_which_verdict_a_node_takes_work_again(taints: tuple[Taint, ...], verdict: str) -> None:
    assert removal(node(labels={f"{P}/severity": "ISOLATE"}, taints=taints)).verdict == verdict


def test_only_a_condition_is_something_too_and_no_patch_of_the_node() -> None:
    state = node(conditions=({"type": "GpuHealthy"},))

    assert (bool(removal(state)), patch(state)) == (True, None)


@given(
    taints=st.lists(st.sampled_from([SPOT, *OURS, *THEIRS]), unique_by=lambda entry: (entry["key"], entry["effect"])),
    labels=st.dictionaries(st.sampled_from([*LABELS, "team", f"{P}/enabled", f"{P}.evil/x"]), st.just("x")),
    annotations=st.dictionaries(st.sampled_from([*ANNOTATIONS, "note", f"{P}/cordoned-by"]), st.just("x")),
    cordoned=st.booleans(),
    managers=st.sets(st.sampled_from(["gpu-healthcheck", "kubectl"])),
)
def test_after_the_patch_nothing_of_ours_is_left_and_nothing_foreign_is_gone(
    taints: list[Taint], labels: dict[str, str], annotations: dict[str, str], cordoned: bool, managers: set[str]
) -> None:
    before = node(
        labels=labels,
        annotations=annotations,
        taints=taints,
        cordoned=cordoned,
        cordon_managers=tuple(FieldManager(name, WALL) for name in managers),
        mark_managers=(FieldManager("gpu-healthcheck", WALL),),
    )
    change = patch(before) or {"metadata": {"labels": {}, "annotations": {}}}

    left = change.get("spec", {}).get("taints", taints)
    assert [taint for taint in taints if taint not in OURS] == left
    assert {*labels} - {*change["metadata"]["labels"]} == {*labels} & {"team", f"{P}/enabled", f"{P}.evil/x"}
    assert {*annotations} - {*change["metadata"]["annotations"]} == {*annotations} & {"note"}
    assert ("unschedulable" in change.get("spec", {})) is (
        cordoned and f"{P}/cordoned-by" in annotations and managers == {"gpu-healthcheck"}
    )


def test_the_page_begins_with_the_line_that_the_command_prints() -> None:
    assert f"$ {STOP}\n$ gpu-healthcheck uninstall" in (DOCS / "uninstall.md").read_text()


def test_the_tolerations_in_the_documents_are_for_all_of_our_taints() -> None:
    blocks = (DOCS / "integrations.md").read_text().split("```yaml\n")[1:]
    block = next(text.partition("```")[0] for text in blocks if "daemonsets:" in text)
    values = yaml.safe_load(block)
    for part in (values["daemonsets"], values["node-feature-discovery"]["worker"]):
        assert {UNHEALTHY, MAINTENANCE, STARTUP, "nvidia.com/gpu"} <= {entry["key"] for entry in part["tolerations"]}
