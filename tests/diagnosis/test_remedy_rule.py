"""The rule for printed commands, and the remedies that it has to refuse."""

from __future__ import annotations

import pytest

from gpu_healthcheck.diagnosis.facts.operator_values import set_toolkit_env
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, FoundCause
from tests.diagnosis.component_states import NAMESPACE, gpu_node, operator
from tests.diagnosis.remedy_rule import violations
from tests.diagnosis.states import Object, node, obj, pod, snapshot

CAUSE = Cause("Any", CauseSeverity.HIGH, None, "", "")
CLOSED = node("closed", cordoned=True, labels={"pool": "x"}, annotations={"nvidia.com/lock": "y"})
OWNED, BARE = pod("llm-0", on="a", owner=("ReplicaSet", "llm"), labels={"app": "llm"}), pod("desk", on="a")
FAILED = pod("report-0", on="a", phase="Failed", owner=("Job", "report"))
CLUSTER = [node("a"), CLOSED, OWNED, BARE, FAILED]
ALL_FAILED_THERE = "kubectl -n team delete pods --field-selector=spec.nodeName=a,status.phase=Failed"
UNLOCK = "kubectl annotate node closed nvidia.com/lock-"
SAVE = "kubectl -n team get pod desk -o yaml > desk.yaml"
HELM = "helm upgrade {} nvidia/gpu-operator -n gpu-operator --reuse-values {}--set x=y"


def broken(*commands: str, subject: str = "node/a", objects: list[Object] = CLUSTER) -> list[str]:
    remedy = tuple(f"Do: `{command}`" for command in commands)
    affected = ("pod/team/llm-0", "pod/team/desk")
    return violations(snapshot(*objects), FoundCause(CAUSE, subject, (), remedy, affected))


@pytest.mark.parametrize(
    ("commands", "why"),
    [
        (["kubectl -n team delete pods --field-selector=status.phase=Failed"], "selects in a whole namespace"),
        (["kubectl -n team delete pods -l app=llm"], "selects in a whole namespace"),
        (
            [ALL_FAILED_THERE],
            "takes pod/team/report-0",
        ),
        (["kubectl -n team delete pods --all"], "names no object"),
        (["kubectl -n team delete pod gone"], "there is no pod/team/gone"),
        (["kubectl -n team delete pod llm-0 --force --grace-period=0"], "by force at once"),
        (["kubectl -n team delete pod desk && kubectl create -f desk.yaml"], "manifest is not saved first"),
        ([SAVE, "kubectl -n team delete pod desk"], "not created again"),
        (["kubectl cordon closed"], "closed is cordoned at this step"),
        (["kubectl cordon a", "kubectl uncordon a", "kubectl uncordon a"], "a is not cordoned at this step"),
        (["kubectl drain a"], "fails at the pods of DaemonSets"),
        (["kubectl cordon lost"], "there is no node lost"),
        (["kubectl label node closed pool=x --overwrite"], "has pool=x already"),
        (["kubectl label node closed pool=y"], "kubectl refuses it"),
        (["kubectl label node a pool-"], "has no pool"),
        (
            [UNLOCK, UNLOCK],
            "has no nvidia",
        ),
        (["kubectl scale deployment llm --replicas=0"], "does not know the verb"),
        (["nvidia-ctk runtime configure --runtime=crio && systemctl restart crio"], "it is for cri-o"),
    ],
)
def test_remedy_that_destroys_more_than_it_mends_or_changes_nothing_is_refused(commands: list[str], why: str) -> None:
    assert any(why in text for text in broken(*commands)), broken(*commands)


@pytest.mark.parametrize(
    "commands",
    [
        ["kubectl -n team delete pods --field-selector=spec.nodeName=a --selector=app=llm"],
        ["kubectl cordon a", "kubectl -n team delete pod llm-0", "kubectl uncordon a"],
        [SAVE, "kubectl -n team delete pod desk && kubectl create -f desk.yaml"],
        ["kubectl label node closed pool=y --overwrite", "kubectl label node closed pool=x --overwrite"],
        [UNLOCK],
        ["kubectl drain a --ignore-daemonsets --delete-emptydir-data", "kubectl uncordon a"],
        ["systemctl restart containerd"],
    ],
)
def test_remedy_that_names_what_it_changes_is_accepted(commands: list[str]) -> None:
    assert broken(*commands) == []


def test_command_of_containerd_is_refused_on_a_node_of_cri_o() -> None:
    on_crio = [node("a", runtime="cri-o://1.31.0")]
    assert broken("systemctl restart containerd", objects=on_crio)
    assert broken(HELM.format("gpus", "--version v1 ") + ",toolkit.env[0].name=CONTAINERD_CONFIG", objects=on_crio)
    assert broken("systemctl restart crio", objects=on_crio) == []


def test_unit_that_a_distribution_does_not_have_is_refused() -> None:
    assert broken("systemctl restart kubelet", objects=[node("a", kubelet="v1.33.4+rke2r1")])
    assert broken("systemctl restart rke2-agent", objects=[node("a", kubelet="v1.33.4+rke2r1")]) == []
    assert broken("systemctl restart kubelet", objects=[node("a")]) == []


def test_first_change_on_a_node_with_a_lost_gpu_is_its_cordon() -> None:
    delete = "kubectl -n team delete pod llm-0"
    for first, expected in ((delete, 1), ("kubectl cordon a", 0)):
        lost = FoundCause(CAUSE, "node/a", ("GPU is lost",), (f"`{first}`", f"`{delete}`"), ("pod/team/llm-0",))
        assert len(violations(snapshot(*CLUSTER), lost)) == expected


def test_command_of_helm_names_the_release_that_the_cluster_has_and_its_version() -> None:
    own, second = operator(gpu_node("a")), operator(gpu_node("a"))[0]
    second["metadata"] |= {"name": "gpu-operator-of-others", "namespace": "z", "annotations": {}}
    command = set_toolkit_env(snapshot(*own, second), NAMESPACE, {"A": "b"}).strip("`")

    assert command.startswith("helm upgrade gpus nvidia/gpu-operator -n gpu-operator --version v25.3.0 --reuse-values")
    assert broken(command, objects=[*own, second]) == []
    assert broken(HELM.format("gpus", ""), objects=own)
    assert broken(HELM.format('"$(helm list -qn gpu-operator)"', "--version v25.3.0 "), objects=own)


def test_operator_without_a_release_of_helm_is_changed_by_its_policy() -> None:
    (deployment, *rest) = operator(gpu_node("a"))
    deployment["metadata"]["annotations"] = {}
    command = set_toolkit_env(snapshot(deployment, *rest), NAMESPACE, {"A": "b"}).strip("`")

    patch = """'{"spec":{"toolkit":{"env":[{"name":"A","value":"b"}]}}}'"""
    assert command == f"kubectl patch clusterpolicy cluster-policy --type=merge -p {patch}"
    assert broken(HELM.format("gpus", "--version v25.3.0 "), objects=[deployment, *rest])


def test_release_that_is_not_visible_is_read_from_helm() -> None:
    command = set_toolkit_env(snapshot(obj("DaemonSet", "x", "y")), "gpus", {"A": "b"})

    column = "\"$(helm list -n gpus | awk '/gpu-operator-v[0-9]/ {print %s}')\""
    assert command.startswith(f"`helm upgrade {column % '$1'} nvidia/gpu-operator -n gpus --version {column % '$NF'} ")
