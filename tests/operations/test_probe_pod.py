"""The pod that checks one node once: the agent's, without its privileges beyond that."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck.deep.job import TESTED_NODE, TemplateError
from gpu_healthcheck.healthcheck.operations.probe_pod import LONGEST_SECONDS, is_left_over, probe_pod, with_image

MANIFEST = Path(__file__).parents[2] / "kubernetes/manifests/04-daemonset-agent.yaml"
TEMPLATE: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]
NODE = ("ip-10-0-0-1.ec2.internal", "uid-1")


def made(template: dict[str, Any] = TEMPLATE, unique: str = "u") -> dict[str, Any]:
    return probe_pod(template, NODE, "gpu-healthcheck", unique)


def test_the_manifest_is_not_changed_and_the_installed_one_is_the_same_file() -> None:
    before = copy.deepcopy(TEMPLATE)
    made(with_image(TEMPLATE, "other:1"))

    assert before == TEMPLATE
    packaged = MANIFEST.parents[2] / "healthcheck/operations/agent-daemonset.yaml"
    assert packaged.resolve() == MANIFEST


def test_it_is_bound_to_its_node_and_owned_by_it() -> None:
    pod = made()

    assert pod["spec"]["nodeName"] == NODE[0]
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", *NODE)
    assert pod["metadata"]["annotations"] == {TESTED_NODE: NODE[0]}
    assert (
        not {"affinity", "nodeSelector", "schedulerName", "runtimeClassName", "priorityClassName"} & pod["spec"].keys()
    )


def test_no_daemon_set_takes_it_for_its_own() -> None:
    selector = yaml.safe_load(MANIFEST.read_text())["spec"]["selector"]["matchLabels"]

    assert not selector.items() <= made()["metadata"]["labels"].items()


def test_it_ends_by_itself_and_is_nobodys_account() -> None:
    spec = made()["spec"]

    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", LONGEST_SECONDS)
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec


def test_it_looks_as_the_agent_does_and_takes_no_port_of_the_node() -> None:
    (container,) = made()["spec"]["containers"]
    agent = TEMPLATE["spec"]["containers"][0]

    assert container["command"] == ["gpu-healthcheck", "check", "--json"]
    for same in ("image", "env", "securityContext", "terminationMessagePath"):
        assert container[same] == agent[same]
    assert not {"ports", "livenessProbe", "readinessProbe", "startupProbe"} & container.keys()


def test_it_asks_for_no_resource_and_no_gpu() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"

    resources = made(template)["spec"]["containers"][0]["resources"]

    assert resources == {"requests": {"memory": "0"}, "limits": {"memory": "2Gi"}}


def test_nothing_is_made_on_the_node_and_nothing_is_waited_for() -> None:
    spec = made()["spec"]

    volumes = {entry["name"]: entry for entry in spec["volumes"]}
    assert sorted(volumes) == ["config", "devices", "host", "tmp"]
    assert volumes["config"]["configMap"]["optional"] is True
    mounts = spec["containers"][0]["volumeMounts"]
    assert [mount["name"] for mount in mounts] == ["host", "devices", "config", "tmp"]
    assert next(mount for mount in mounts if mount["name"] == "host")["readOnly"] is True


def test_names_differ_by_run_and_are_short_enough() -> None:
    long = ("n" * 250, "uid")
    names = [made()["metadata"]["name"], made(unique="other")["metadata"]["name"]]
    names.append(probe_pod(TEMPLATE, long, "x", "u")["metadata"]["name"])

    assert len(set(names)) == 3
    assert max(map(len, names)) <= 63


def test_another_image_is_taken_where_one_is_named() -> None:
    (container,) = made(with_image(TEMPLATE, "registry.example/x:2"))["spec"]["containers"]

    assert container["image"] == "registry.example/x:2"


@pytest.mark.parametrize("template", [{}, {"spec": {}}, {"spec": {"containers": []}}, {"spec": {"containers": ["x"]}}])
def test_a_template_without_a_container_is_refused(template: dict[str, Any]) -> None:
    with pytest.raises(TemplateError):
        made(template)


@pytest.mark.parametrize(
    ("made_at", "is_left"),
    [
        ("2026-11-21T00:49:59Z", True),
        ("2026-11-21T00:50:01Z", False),
        ("2026-11-21T01:00:00Z", False),
        ("2027-01-01T00:00:00Z", False),
        ("yesterday", False),
        (None, False),
    ],
)
def test_leftovers_of_a_killed_command_are_distinguished_from_files_in_use(made_at: str | None, is_left: bool) -> None:
    now = datetime(2026, 11, 21, 1, 0, 0, tzinfo=UTC)

    assert is_left_over({"metadata": {"creationTimestamp": made_at}}, now) is is_left
