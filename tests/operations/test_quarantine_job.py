"""The quarantine Job of one node: its name, and that it stays on its node."""

from __future__ import annotations

import copy

import pytest

from gpu_healthcheck.healthcheck.deep.job import SHOWN, TESTED_NODE, TemplateError
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.operations.quarantine_job import TARGET, job_name, quarantine_job

TEMPLATE = {
    "metadata": {"labels": {"app.kubernetes.io/name": "gpu-healthcheck"}},
    "spec": {"backoffLimit": 0, "template": {"spec": {"containers": [{"name": "quarantine", "image": "x:1"}]}}},
}
NODE = NodeState("ip-10-0-0-1.us-west-2.compute.internal", uid="u")
LONG = "n" * 49
"""With `gpu-quarantine-` one letter too many."""


def test_it_is_the_template_held_to_its_node_and_owned_by_it() -> None:
    before = copy.deepcopy(TEMPLATE)

    job = quarantine_job(TEMPLATE, NODE, "gpu-healthcheck")

    assert before == TEMPLATE
    assert (job["kind"], job["metadata"]["name"]) == ("Job", f"gpu-quarantine-{NODE.name}")
    assert job["metadata"]["annotations"] == {TESTED_NODE: NODE.name, SHOWN: ""}
    assert [entry["uid"] for entry in job["metadata"]["ownerReferences"]] == ["u"]
    pod = job["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE.name]}]}]
    assert job["metadata"]["labels"] == {
        "app.kubernetes.io/name": "gpu-healthcheck",
        "app.kubernetes.io/component": "quarantine",
        TARGET: NODE.name,
    }
    assert job["spec"]["template"]["metadata"]["labels"] == {"app.kubernetes.io/component": "quarantine"}


def test_a_label_names_its_node_where_a_label_can() -> None:
    longest, longer = (NodeState("n" * length, uid="u") for length in (63, 64))

    assert quarantine_job(TEMPLATE, longest, "x")["metadata"]["labels"][TARGET] == "n" * 63
    assert TARGET not in quarantine_job(TEMPLATE, longer, "x")["metadata"]["labels"]


def test_its_name_is_the_one_of_the_recipe_by_hand_as_long_as_that_fits() -> None:
    assert job_name("n" * 48) == f"gpu-quarantine-{'n' * 48}"
    assert len(job_name("n" * 48)) == 63


def test_a_longer_name_is_shortened_and_stays_its_own() -> None:
    names = [job_name(f"{LONG}{end}") for end in ("", "1", "2")]

    assert (len(set(names)), {len(name) for name in names}) == (3, {63})
    assert job_name(LONG) == job_name(LONG)


@pytest.mark.parametrize("broken", [{}, {"spec": None}, {"spec": {"template": {"spec": {"containers": []}}}}])
def test_a_template_without_a_container_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(TemplateError):
        quarantine_job(broken, NODE, "gpu-healthcheck")
