"""The template of reset Jobs, and the allowed writes of their pod tokens: those of a quarantine, on their own keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck.deep.reset_command import ResetCommand, render
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane, unbound_token
from tests.cluster import test_quarantine_manifests as quarantine
from tests.cluster.node_patches import annotated, labelled

P = "gpu-healthcheck.aws-samples.io"
ACCOUNT = "gpu-healthcheck-reset"
OWN, OTHER = "reset-own", "reset-other.example.internal"
POD_PATH = "/api/v1/namespaces/gpu-healthcheck/pods"
DCGM, PLUGIN = "nvidia.com/gpu.deploy.dcgm", "nvidia.com/gpu.deploy.device-plugin"
COMMAND, RECORD = f"{P}/reset-command", f"{P}/reset-result"
RENEWED = "2026-11-21T00:00:00.000Z"


def command(*operands: str, holder: str = "gpu-reset-own", renewed: str = RENEWED, until: str = "") -> str:
    """Return the annotation of a command that has switched off these operands."""
    return render(ResetCommand(holder, dict.fromkeys(operands, "true"), renewed, until))


def of_a_reset(value: Any) -> Any:
    """Return a patch or message of a quarantine as a reset's."""
    return json.loads(json.dumps(value).replace("quarantine", "reset"))


def template() -> dict[str, Any]:
    cron_job = yaml.safe_load((MANIFESTS / "13-reset.yaml").read_text())
    assert (cron_job["metadata"]["name"], cron_job["spec"]["suspend"]) == ("gpu-healthcheck-reset-node", True)
    job: dict[str, Any] = cron_job["spec"]["jobTemplate"]
    return job


def test_a_job_asks_the_toolkit_for_no_gpu() -> None:
    (container,) = template()["spec"]["template"]["spec"]["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert not [name for name in container["resources"]["requests"] if "nvidia" in name]


def test_a_job_ends_after_every_step_of_a_reset() -> None:
    spec = template()["spec"]
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 240


@pytest.fixture(scope="module")
def unchanged(installed: ControlPlane) -> Iterator[ControlPlane]:
    """Yield two nodes with a command that has switched off dcgm; an administrator has switched off the plugin.

    They are for tests whose writes are dry runs or rejected.
    """
    _create_nodes(installed)
    yield installed
    _delete_nodes(installed)
    for pod in ("reset-pod", "quarantine-pod"):
        installed.request("DELETE", f"{POD_PATH}/{pod}?gracePeriodSeconds=0")


@pytest.fixture
def plane(unchanged: ControlPlane) -> Iterator[ControlPlane]:
    """Yield the same nodes for one test that writes; they are replaced afterwards."""
    yield unchanged
    _delete_nodes(unchanged)
    _create_nodes(unchanged)


def _create_nodes(plane: ControlPlane) -> None:
    for name in (OWN, OTHER):
        labels = {**quarantine.MARKED["labels"], f"{P}/severity": "RESET", DCGM: "false", PLUGIN: "false"}
        plane.create_node(name, labels=labels, taints=[quarantine.SPOT, quarantine.UNHEALTHY])
        annotations = {**quarantine.MARKED["annotations"], COMMAND: command(DCGM)}
        plane.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": annotations}})


def _delete_nodes(plane: ControlPlane) -> None:
    for name in (OWN, OTHER):
        plane.request("DELETE", f"/api/v1/nodes/{name}")


def token_of(plane: ControlPlane, kind: str) -> str:
    """Return the token of a Job's pod on its own node."""
    spec = {
        "nodeName": OWN,
        "serviceAccountName": f"gpu-healthcheck-{kind}",
        "containers": [{"name": kind, "image": "x"}],
    }
    metadata = {"name": f"{kind}-pod", "namespace": "gpu-healthcheck"}
    answer = plane.request("POST", POD_PATH, {"metadata": metadata, "spec": spec})
    assert answer.status == 201, answer.message
    return plane.pod_token(answer.body)


@pytest.fixture(scope="module")
def token(unchanged: ControlPlane) -> str:
    return token_of(unchanged, "reset")


@pytest.fixture(scope="module")
def quarantine_token(unchanged: ControlPlane) -> str:
    return token_of(unchanged, "quarantine")


def asked(plane: ControlPlane, token: str, patch: dict[str, Any], name: str = OWN, *, dry_run: bool = False) -> str:
    return quarantine.asked(plane, token, patch, name, dry_run=dry_run)


@pytest.mark.cluster
def test_reset_acquires_and_releases_its_own_node_only(plane: ControlPlane, token: str) -> None:
    take = of_a_reset(quarantine.TAKE)
    assert [asked(plane, token, patch) for patch in (take, of_a_reset(quarantine.GIVE_BACK))] == ["", ""]
    assert "its own Node only: the token belongs to 'reset-own'" in asked(plane, token, take, OTHER)
    assert "bound to no node" in asked(plane, unbound_token(plane, ACCOUNT), take)


@pytest.mark.cluster
@pytest.mark.parametrize("severity", ["PASS", "RESET"])
def test_only_the_annotation_of_a_command_permits_a_reset(plane: ControlPlane, token: str, severity: str) -> None:
    """What the same token can write permits nothing: the claim, and a record with a running step or operands."""
    path, take = f"/api/v1/nodes/{OWN}", of_a_reset(quarantine.TAKE)
    plane.request("PATCH", path, labelled(f"{P}/severity", severity))
    assert asked(plane, token, take) == ""

    own = {f"{P}/run": of_a_reset(quarantine.RUN), RECORD: f'{{"running":"reset","operands":{{"{PLUGIN}":"true"}}}}'}
    plane.request("PATCH", path, {"metadata": {"annotations": {**own, COMMAND: None}}})

    for patch in (take, annotated(RECORD, "{}"), annotated(COMMAND, command(PLUGIN)), labelled(PLUGIN, "true")):
        assert "only a Node with the annotation reset-command" in asked(plane, token, patch)


def returning(annotation: str | None, **labels: str) -> dict[str, Any]:
    named = {f"nvidia.com/gpu.deploy.{name.replace('_', '-')}": value for name, value in labels.items()}
    return {"metadata": {"annotations": {COMMAND: annotation}, "labels": named}}


ON, ONCE = "only once, if its annotation reset-command lists them", "only when it is switched on"
RETURN = {
    "restore and empty": (returning(command(), dcgm="true"), ""),
    "restore and remove": (returning(None, dcgm="true"), ""),
    "a paused operand": (returning(None, dcgm="paused-for-driver-upgrade"), ON),
    "what an administrator switched off": (returning(None, dcgm="true", device_plugin="true"), ON),
    "restore and keep": (labelled(DCGM, "true"), ON),
    "restore and list another": (returning(command(PLUGIN), dcgm="true"), "may only remove its annotation"),
    "list another": (returning(command(DCGM, PLUGIN)), "may only remove its annotation"),
    "a sign of life": (returning(command(DCGM, renewed="2026-11-21T00:00:01.000Z")), "may only remove its annotation"),
    "empty with a sign of life": (
        returning(command(renewed="2026-11-21T00:00:01.000Z"), dcgm="true"),
        "may only remove its annotation",
    ),
    "empty for another": (returning(command(holder="x"), dcgm="true"), "may only remove its annotation"),
    "another form": (returning(command() + " ", dcgm="true"), "may only remove its annotation"),
    "empty": (returning(command()), ONCE),
    "remove": (returning(None), ONCE),
}


@pytest.mark.cluster
@pytest.mark.parametrize(("patch", "refusal"), RETURN.values(), ids=RETURN)
def test_reset_restores_only_the_operands_that_its_command_disabled(
    unchanged: ControlPlane, token: str, patch: dict[str, Any], refusal: str
) -> None:
    answer = asked(unchanged, token, patch, dry_run=True)
    assert (refusal in answer) if refusal else (answer == "")


@pytest.mark.cluster
def test_an_emptied_list_restores_nothing_more(plane: ControlPlane, token: str) -> None:
    plane.request("PATCH", f"/api/v1/nodes/{OWN}", annotated(COMMAND, command()))
    assert ON in asked(plane, token, returning(None, dcgm="true"))
    assert "may only remove its annotation" in asked(
        plane, token, returning(command(renewed="2026-11-21T00:00:01.000Z"))
    )
    assert asked(plane, token, annotated(COMMAND, None)) == ""


@pytest.mark.cluster
@pytest.mark.parametrize(("seconds", "is_over"), [(3600, False), (-1, True)], ids=["before", "after"])
def test_a_resets_permissions_end_at_the_time_of_its_command(
    plane: ControlPlane, token: str, seconds: int, is_over: bool
) -> None:
    until = timestamp(datetime.now(UTC) + timedelta(seconds=seconds))
    path = f"/api/v1/nodes/{OWN}"
    plane.request("PATCH", path, annotated(COMMAND, command(DCGM, until=until)))
    take = of_a_reset(quarantine.TAKE)
    marks = take["metadata"]
    work = (
        take,
        annotated(f"{P}/run", marks["annotations"][f"{P}/run"]),
        annotated(RECORD, '{"status":"pass"}'),
        labelled(f"{P}/mode", "reset"),
        {"spec": take["spec"]},
        {"metadata": {**marks, "annotations": {**marks["annotations"], COMMAND: None}, "labels": {DCGM: "true"}}},
    )
    longer = annotated(COMMAND, command(DCGM, until=timestamp(datetime.now(UTC) + timedelta(hours=2))))

    for patch in work:
        answer = plane.request("PATCH", f"{path}?dryRun=All&fieldManager=gpu-healthcheck", patch, token=token)
        assert (answer.status, "may only return the Node" in answer.message) == (403 if is_over else 200, is_over), (
            patch
        )
    assert ("may only return the Node" if is_over else "may only remove its annotation") in asked(plane, token, longer)

    plane.request("PATCH", path, take)
    back = [returning(command(until=until), dcgm="true"), of_a_reset(quarantine.GIVE_BACK), returning(None)]
    del back[1]["metadata"]["annotations"][RECORD]
    assert [asked(plane, token, patch) for patch in back] == ["", "", ""]


AGENT = {
    "restore and remove": (returning(None, dcgm="true"), ""),
    "restore and empty": (returning(command(), dcgm="true"), "labels under"),
    "restore": (labelled(DCGM, "true"), "labels under"),
    "remove": (returning(None), "only when the pods of the GPU operator that it lists are switched on"),
    "what an administrator switched off": (returning(None, dcgm="true", device_plugin="true"), "labels under"),
    "another value": (returning(None, dcgm="x"), "labels under"),
    "write": (annotated(COMMAND, command(PLUGIN)), "an agent may change annotations"),
}


@pytest.mark.cluster
@pytest.mark.parametrize(("patch", "refusal"), AGENT.values(), ids=AGENT)
def test_agent_restores_only_the_operands_that_a_command_disabled(
    unchanged: ControlPlane, patch: dict[str, Any], refusal: str
) -> None:
    answer = asked(unchanged, unchanged.agent_token(OWN), patch, dry_run=True)
    assert (refusal in answer) if refusal else (answer == "")


MAY_NOT = {name: of_a_reset(entry) for name, entry in quarantine.MAY_NOT.items()} | {
    "write a quarantine's record": (annotated(f"{P}/quarantine-result", "{}"), "no annotation but"),
    "switch an operand off": (labelled("nvidia.com/gpu.deploy.dcgm-exporter", "false"), "only once"),
    "take it for a quarantine": (annotated(f"{P}/run", quarantine.RUN), "only for a reset"),
}


@pytest.mark.cluster
@pytest.mark.parametrize(("patch", "refusal"), MAY_NOT.values(), ids=MAY_NOT)
def test_other_write_of_a_reset_is_rejected(
    unchanged: ControlPlane, token: str, patch: dict[str, Any], refusal: str
) -> None:
    assert refusal in asked(unchanged, token, patch)


@pytest.mark.cluster
def test_reset_neither_evicts_nor_changes_another_object(unchanged: ControlPlane, token: str) -> None:
    plane, pod = unchanged, f"{POD_PATH}/reset-pod"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "reset-pod"}}
    assert plane.request("POST", f"{pod}/eviction", eviction, token=token).status == 403
    assert plane.request("DELETE", pod, token=token).status == 403
    assert plane.request("PATCH", f"/api/v1/nodes/{OWN}/status", {"status": {}}, token=token).status == 403
    assert plane.request("GET", "/api/v1/secrets", token=token).status == 403


@pytest.mark.cluster
def test_other_programs_write_neither_the_command_nor_the_result_of_a_reset(
    unchanged: ControlPlane, quarantine_token: str
) -> None:
    result = annotated(f"{P}/reset-result", "{}")
    for forged in (result, annotated(COMMAND, command(PLUGIN))):
        assert "no annotation but" in asked(unchanged, quarantine_token, forged)
    assert "an agent may change annotations" in asked(unchanged, unchanged.agent_token(OWN), result)
