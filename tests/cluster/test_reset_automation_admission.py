"""The account of automatic resets on the real API server: Jobs and Node writes of its token, and requests of others.

The templates in the cluster are irrelevant: without them, no request is refused for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck.deep.reset_command import ResetCommand, render
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.operations.quarantine_job import COMPONENT as QUARANTINE
from gpu_healthcheck.healthcheck.operations.reset_job import AUTOMATION, reset_job
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane, install, unbound_token
from tests.cluster import test_quarantine_manifests as quarantine
from tests.cluster import test_sweep_job_admission as sweeps
from tests.cluster.node_patches import annotated, labelled, tainted
from tests.cluster.test_sweep_job_admission import Change, Job, container, metadata, of_job, pod
from tests.overlays import OVERLAYS
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

P = "gpu-healthcheck.aws-samples.io"
ACCOUNT = "gpu-healthcheck-reset-automation"
OVERLAY = str(OVERLAYS / "reset-automation")
CRON_JOBS = "/apis/batch/v1/namespaces/gpu-healthcheck/cronjobs"
FAULTY, HEALTHY = "automation-faulty", "automation-healthy"
DEPLOY = "nvidia.com/gpu.deploy.dcgm"
RUN = '{"kind":"reset","holder":"gpu-reset-x","until":"2026-11-26T00:00:00Z"}'
UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
MAINTENANCE = {"key": f"{P}/maintenance", "value": "reset", "effect": "NoSchedule"}


def reset(
    change: Change = sweeps.same, namespace: str = "gpu-healthcheck", node: str = "n", made_by: str = AUTOMATION
) -> Job:
    """Return the Job that the program creates from the template that we ship, changed."""
    template = yaml.safe_load((MANIFESTS / "13-reset.yaml").read_text())["spec"]["jobTemplate"]
    gpus = ["0000:18:00.0", "GPU-00000000-0000-4000-8000-000000000001", "3"]
    job = reset_job(template, NodeState(node, uid="uid-1"), namespace, gpus, 300, made_by=made_by)
    change(job)
    return job


def first(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    return found


def volume(name: str, **source: Any) -> Change:
    """Replace the volume, or add it."""

    def change(job: Job) -> None:
        volumes = job["spec"]["template"]["spec"]["volumes"]
        volumes[:] = [*(one for one in volumes if one["name"] != name), {"name": name, **source}]

    return change


def mount(of: str, **fields: Any) -> Change:
    return lambda job: next(one for one in first(job)["volumeMounts"] if one["name"] == of).update(fields)


def env(name: str, **value: Any) -> Change:
    return lambda job: first(job).update(
        env=[*(one for one in first(job)["env"] if one["name"] != name), {"name": name, **value}]
    )


LABELS = {"app.kubernetes.io/name": "gpu-healthcheck", "app.kubernetes.io/component": "reset"}
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "uid-1"}
HOST = {"hostPath": {"path": "/root", "type": ""}}
MAY: dict[str, Change] = {
    "the template": sweeps.same,
    "a toleration": pod(tolerations=[{"key": "example.com/spot", "operator": "Exists"}], nodeSelector={"a": "b"}),
    "a registry": pod(imagePullSecrets=[{"name": "x"}]),
    "resources": container(resources={"requests": {"cpu": "1"}}, imagePullPolicy="Always"),
    "a label of kustomize": metadata(labels={**LABELS, "app.kubernetes.io/part-of": "x"}),
    "a shorter time": of_job(activeDeadlineSeconds=60, ttlSecondsAfterFinished=60),
    "every taint": sweeps.RULES["every taint"][1],
}
HARMLESS = {
    *("grace", "processes", "no priority", "our taint", "every taint"),
    *("container's privilege", "container's escalation by default", "container's nothing said"),
}
"""Changes that a sweep may not have, and a reset may: its pod is privileged, and tolerates taints."""
INVALID = {"pods of others", "the containers' processes", "AppArmor as it was", "container's /proc"}
"""Changes that the API server itself rejects in a reset's Job."""
MAY_NOT: dict[str, tuple[Change, str]] = {
    **{name: (refused, "") for name, (_, refused, _) in sweeps.RULES.items() if name not in HARMLESS | INVALID},
    "another program's name": (metadata(name="gpu-quarantine-n"), "only Jobs of resets"),
    "another node's name": (metadata(name="gpu-reset-m"), "must be called gpu-reset-n"),
    "another node's name with a digest": (metadata(name="gpu-reset-n-0123456789"), "must be called gpu-reset-n"),
    "another label": (metadata(labels={**LABELS, "example.com/inject": "true"}), "example.com/inject"),
    "another owner": (metadata(ownerReferences=[{**OWNER, "name": "m"}]), "ownerReferences"),
    "pods of others": (of_job(manualSelector=True, selector={"matchLabels": LABELS}), "manualSelector"),
    "pod's user": (sweeps.pod_security(runAsUser=1), "securityContext"),
    "other path": (volume("reports", **HOST), "volume reports"),
    "Secret as settings": (volume("config", secret={"secretName": "x"}), "volume config"),
    "ConfigMap as settings": (volume("config", configMap={"name": "x"}), "volume config"),
    "token as a folder": (volume("tmp", projected=sweeps.TOKEN), "volume tmp"),
    "a reboot": (container(args=["--reboot=00000000-0000-4000-8000-000000000001"]), "--reboot=0"),
    "arguments": (container(args=["--gpu=3; id"]), "--gpu=3; id"),
    "root": (env("HOST_ROOT", value="/tmp"), "HOST_ROOT"),
    "GPUs": (env("NVIDIA_VISIBLE_DEVICES", value="all"), "NVIDIA_VISIBLE_DEVICES"),
    "user": (sweeps.security(runAsUser=1), "runAsUser"),
    "writable host": (mount("host", readOnly=False), "mount /host"),
    "other place": (mount("tmp", mountPath="/opt"), "mount /opt"),
    "other volume": (mount("tmp", name="host"), "mount /tmp"),
    "part of a volume": (mount("reports", subPath="x"), "mount /var/log/gpu-healthcheck"),
    "the host's mounts": (mount("memory", mountPropagation="Bidirectional"), "mount /var/lib/gpu-healthcheck"),
}


def apply(plane: ControlPlane) -> None:
    """Apply the overlay as a user does; its CronJob starts no pod."""
    plane.kubectl("apply", "-k", OVERLAY)
    plane.request("PATCH", f"{CRON_JOBS}/{ACCOUNT}", {"spec": {"suspend": True}})


@pytest.fixture(scope="module")
def token(installed: ControlPlane) -> Iterator[str]:
    apply(installed)
    for name, severity in ((FAULTY, "RESET"), (HEALTHY, "PASS")):
        labels = {f"{P}/severity": severity, DEPLOY: "true", PLUGIN: "true", NVSM: "paused-for-driver-upgrade"}
        installed.create_node(name, labels=labels, taints=[UNHEALTHY])
    token = unbound_token(installed, ACCOUNT)
    eventually(lambda: sweeps.said(installed, reset(), token=token) == "")
    yield token
    installed.kubectl("delete", "-k", OVERLAY)
    for name in (FAULTY, HEALTHY):
        installed.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.mark.parametrize("change", MAY.values(), ids=MAY)
def test_the_automation_may_create(installed: ControlPlane, token: str, change: Change) -> None:
    assert sweeps.said(installed, reset(change), token=token) == ""


@pytest.mark.parametrize(("change", "field"), MAY_NOT.values(), ids=MAY_NOT)
def test_a_stolen_token_may_not_create(installed: ControlPlane, token: str, change: Change, field: str) -> None:
    refusal = sweeps.said(installed, reset(change), token=token)

    assert refusal.startswith("403 ")
    assert field in refusal.partition("denied request: ")[2]
    assert sweeps.said(installed, reset(change)) == ""  # requests of others are not judged


def test_a_refusal_names_every_field(installed: ControlPlane, token: str) -> None:
    refusal = sweeps.said(installed, reset(pod(hostNetwork=True, hostIPC=True)), token=token)

    assert set(refusal.partition("except for: ")[2].split(", ")) == {"hostNetwork", "hostIPC"}


def test_the_token_is_bound_in_every_namespace(installed: ControlPlane, token: str) -> None:
    refusal = sweeps.said(installed, reset(namespace="default"), path=sweeps.jobs("default"), token=token)
    assert 'cannot create resource "jobs"' in refusal
    bind = ("create", "rolebinding", ACCOUNT, "-n", "default", "--clusterrole=admin")
    installed.kubectl(*bind, f"--serviceaccount=gpu-healthcheck:{ACCOUNT}")
    job = reset(pod(hostNetwork=True), "default")
    for labels in (LABELS, None):
        metadata(labels=labels)(job)
        eventually(lambda: "denied request: " in sweeps.said(installed, job, path=sweeps.jobs("default"), token=token))
    installed.kubectl("delete", "rolebinding", ACCOUNT, "-n", "default")


LONG = "ip-10-0-1-2.a-rather-long-domain-of-a-cluster.example.internal"
READABLE = "gpu-reset-ip-10-0-1-2-a-rather-long-domain-of-a-clu"
LONG_NAMES = {
    reset(node=LONG)["metadata"]["name"]: "",
    f"{READABLE}s-0123456789": "",
    f"{READABLE}-0123456789": "must be called",
    f"{READABLE.replace('1-2', '1-3')}s-0123456789": "must be called",
    "gpu-reset-n": "must be called",
    "gpu-reset-0123456789": "must be called",
}


@pytest.mark.parametrize(("name", "refusal"), LONG_NAMES.items(), ids=LONG_NAMES)
def test_the_job_of_a_node_with_a_long_name_is_called_after_it(
    installed: ControlPlane, token: str, name: str, refusal: str
) -> None:
    answer = sweeps.said(installed, reset(metadata(name=name), node=LONG), token=token)
    assert (refusal in answer) if refusal else (answer == "")


def test_the_shortened_name_ends_without_a_dash(installed: ControlPlane, token: str) -> None:
    node = "a" * 41 + ".b" * 20
    assert f"gpu-reset-{'a' * 41}-" in reset(node=node)["metadata"]["name"]
    assert sweeps.said(installed, reset(node=node), token=token) == ""


DELETIONS: dict[str, tuple[str, Change, str]] = {
    "its own": (AUTOMATION, sweeps.same, ""),
    "of a person": ("", sweeps.same, "only its own Jobs"),
    "of Helm": ("Helm", sweeps.same, "only its own Jobs"),
    "a quarantine's": (AUTOMATION, metadata(name="gpu-quarantine-n"), "only Jobs of resets"),
}


@pytest.mark.parametrize(("made_by", "change", "refusal"), DELETIONS.values(), ids=DELETIONS)
def test_the_automation_deletes_only_jobs_of_its_own_resets(
    installed: ControlPlane, token: str, made_by: str, change: Change, refusal: str
) -> None:
    job = reset(change, made_by=made_by)
    metadata(ownerReferences=None)(job)  # without its Node, it would be deleted
    assert installed.request("POST", sweeps.OURS, job).status == 201
    path = f"{sweeps.OURS}/{job['metadata']['name']}?propagationPolicy=Background"
    answer = installed.request("DELETE", path, token=token)
    assert (answer.status, refusal in answer.message) == ((403, True) if refusal else (200, True))
    installed.request("DELETE", path)


def asked(plane: ControlPlane, token: str, patch: dict[str, Any], node: str) -> str:
    """Return the refusal of a dry run; '' if the patch is allowed."""
    path = f"/api/v1/nodes/{node}?dryRun=All&fieldManager=gpu-healthcheck"
    answer = plane.request("PATCH", path, patch, token=token)
    return "" if answer.status == 200 else answer.message


CLAIM = annotated(f"{P}/run", RUN)
COMMAND = f"{P}/reset-command"


def after(**time: float) -> str:
    return timestamp(datetime.now(UTC) + timedelta(**time))


def begun(
    *operands: str, off: tuple[str, ...] = (), on: tuple[str, ...] = (), renewed: str = "0", until: str = ""
) -> dict[str, Any]:
    """Return a patch with the annotation of a command that lists these operands."""
    time = f"2026-11-21T00:00:00.00{renewed}Z"
    text = render(ResetCommand("gpu-reset-x", dict.fromkeys(operands, "true"), time, until))
    labels = {**dict.fromkeys(off, "false"), **dict.fromkeys(on, "true")}
    return {"metadata": {"annotations": {COMMAND: text}, "labels": labels}}


NVSM, PLUGIN = "nvidia.com/gpu.deploy.nvsm", "nvidia.com/gpu.deploy.device-plugin"
WRITES: dict[str, tuple[dict[str, Any], str]] = {
    "claim": (CLAIM, ""),
    "record": (annotated(f"{P}/reset-result", "{}"), ""),
    "mode": (labelled(f"{P}/mode", "reset"), ""),
    "maintenance": (tainted(UNHEALTHY, MAINTENANCE), ""),
    "operand off": (begun(DEPLOY, off=(DEPLOY,)), ""),
    "an unlisted operand": (labelled(DEPLOY, "false"), "only once"),
    "a paused operand": (begun(NVSM, off=(NVSM,)), "only once"),
    "operand off for three hours": (begun(DEPLOY, off=(DEPLOY,), until=after(hours=3)), ""),
    "operand off for three days": (begun(DEPLOY, off=(DEPLOY,), until=after(days=3)), "at most 4 hours from now"),
    "operand off for ever": (begun(DEPLOY, off=(DEPLOY,), until="9999-12-31T23:59:59Z"), "at most 4 hours from now"),
    "operand off until no time": (begun(DEPLOY, off=(DEPLOY,), until="2026-13-45T99:00:00Z"), "denied request"),
    "list a paused operand": (begun(NVSM), "may only remove its annotation"),
    "list an operand that stays on": (begun(DEPLOY), "may only remove its annotation"),
    "an operand's value": (labelled(DEPLOY, "x"), "only once"),
    "a new operand": (labelled("nvidia.com/gpu.deploy.dcgm-exporter", "true"), "only once"),
    "another form": (annotated(COMMAND, '{"operands":{}}'), "may only remove its annotation"),
    "no operand": (labelled(DEPLOY, None), "no label but"),
    "another operand": (labelled("nvidia.com/gpu.deploy.driver", "false"), "no label but"),
    "severity": (labelled(f"{P}/severity", "PASS"), "no label but"),
    "a quarantine's claim": (annotated(f"{P}/run", quarantine.RUN), "only for a reset"),
    "results": (annotated(f"{P}/results", "{}"), "no annotation but"),
    "no taint": (tainted(), "touch no other"),
    "taint": (tainted(UNHEALTHY, {**UNHEALTHY, "key": "a"}), "touch no other"),
    "cordon": ({"spec": {"unschedulable": True}}, "nothing in a Node's spec"),
}


@pytest.mark.parametrize(("patch", "refusal"), WRITES.values(), ids=WRITES)
def test_a_stolen_token_writes_only_marks_of_a_reset_on_a_node_that_needs_one(
    installed: ControlPlane, token: str, patch: dict[str, Any], refusal: str
) -> None:
    answer = asked(installed, token, patch, FAULTY)
    assert (refusal in answer) if refusal else (answer == "")
    assert asked(installed, token, patch, HEALTHY) != ""


@pytest.fixture
def healed(installed: ControlPlane, token: str) -> Iterator[str]:
    """Yield the path of the node without a finding, on which nothing of a reset is left."""
    yield (path := f"/api/v1/nodes/{HEALTHY}")
    nothing = {COMMAND: None, f"{P}/run": None, f"{P}/reset-result": None}
    labels = {DEPLOY: "true", f"{P}/severity": "PASS", f"{P}/mode": None}
    installed.request("PATCH", path, {"metadata": {"annotations": nothing, "labels": labels}})


RESULT = annotated(f"{P}/reset-result", '{"running":"reset","operands":{}}')
RETURNED = {"metadata": {"annotations": {COMMAND: None, f"{P}/run": None}, "labels": {DEPLOY: "true"}}}
OFF, ENDED = labelled(DEPLOY, "false"), "may only return the Node"


def test_marks_of_a_reset_permit_none(installed: ControlPlane, token: str, healed: str) -> None:
    for own in (CLAIM, RESULT, labelled(f"{P}/mode", "reset")):
        installed.request("PATCH", healed, own)
        assert "with severity RESET" in asked(installed, token, begun(), HEALTHY)
        assert "with severity RESET" in asked(installed, token, begun(DEPLOY, off=(DEPLOY,)), HEALTHY)


@pytest.mark.parametrize(
    ("until", "is_over"),
    [({"hours": 1.0}, False), ({"seconds": -1.0}, True), (None, True)],
    ids=["before", "after", "none"],
)
def test_permissions_end_at_the_time_of_their_command(
    installed: ControlPlane, token: str, healed: str, until: dict[str, float] | None, is_over: bool
) -> None:
    """They began while the severity was RESET. Whatever the token writes, they end."""
    end = after(**until) if until else ""
    installed.request("PATCH", healed, begun(DEPLOY, off=(DEPLOY,), until=end))
    work = (begun(DEPLOY, renewed="1", until=end), CLAIM, labelled(f"{P}/mode", "reset"))
    taint = tainted(UNHEALTHY, MAINTENANCE)
    assert [ENDED in answer if is_over else not answer for answer in _asked(installed, token, *work, taint)] == [
        True
    ] * 4

    longer = begun(DEPLOY, renewed="1", until=after(hours=2))
    plugin = begun(DEPLOY, PLUGIN, off=(PLUGIN,), renewed="1", until=end)
    assert all(_asked(installed, token, longer, plugin, labelled(PLUGIN, "false"), RESULT))
    assert _asked(installed, token, begun(on=(DEPLOY,), until=end), RETURNED) == ["", ""]

    assert (
        installed.request(
            "PATCH", f"{healed}?fieldManager=gpu-healthcheck", begun(on=(DEPLOY,), until=end), token=token
        ).status
        == 200
    )
    renewed = asked(installed, token, begun(renewed="2", until=end), HEALTHY)
    assert (ENDED in renewed) is is_over
    assert "only once" in asked(installed, token, OFF, HEALTHY)


def _asked(plane: ControlPlane, token: str, *patches: dict[str, Any]) -> list[str]:
    return [asked(plane, token, patch, HEALTHY) for patch in patches]


RECORDS = {
    "of the begin": ('{"status":"unknown","severity":"PASS","checks":[],"findings":[],"running":"claim"}', True),
    "empty": ("{}", True),
    "finding": ('{"findings":[{"reason":"Xid62","subject":"gpu/0000:18:00.0"}]}', False),
    "finding after a space": ('{"findings" :[{"reason":"Xid62","subject":"gpu/0000:18:00.0"}]}', False),
    "finding after none": ('{"x":{"findings":[]},"findings":[{"reason":"Xid62"}]}', False),
    "escaped finding": (r'{"x":{"findings":[]},"\u0066indings":[{"reason":"Xid62"}]}', False),
    "severity": ('{"findings":[],"severity":"RESET"}', False),
    "escaped severity": (r'{"findings":[],"severity":"RESE\u0054"}', False),
    "result": ('{"findings":[],"status":"fail"}', False),
}


@pytest.mark.parametrize(("record", "is_allowed"), RECORDS.values(), ids=RECORDS)
def test_no_record_of_the_automation_keeps_the_severity_that_permits_it(
    installed: ControlPlane, token: str, record: str, is_allowed: bool
) -> None:
    answer = asked(installed, token, annotated(f"{P}/reset-result", record), FAULTY)
    assert (answer == "") if is_allowed else ("without a finding or result" in answer)


@pytest.mark.parametrize("forged", ["2000-01-01T00:00:00Z", "2036-01-01T00:00:00Z"])
def test_a_forged_time_in_managed_fields_moves_no_end(
    installed: ControlPlane, token: str, healed: str, forged: str
) -> None:
    fields: dict[str, Any] = {"f:metadata": {"f:annotations": {f"f:{key}": {} for key in (COMMAND, f"{P}/run")}}}
    entry: dict[str, Any] = {"manager": "gpu-healthcheck", "operation": "Update", "apiVersion": "v1", "time": forged}
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": fields}
    installed.request("PATCH", healed, begun(until=after(seconds=-1)))
    there = installed.request("GET", healed).body["metadata"]["managedFields"]
    for patch in (CLAIM, labelled(f"{P}/mode", "reset"), begun(renewed="1", until=after(seconds=-1))):
        lying = {"metadata": {**patch["metadata"], "managedFields": [*there, entry]}}
        assert ENDED in asked(installed, token, lying, HEALTHY)

    installed.request("PATCH", healed, labelled(f"{P}/severity", "RESET"))
    for hours, refusal in ((5, "at most 4 hours from now"), (3, "")):
        patch = begun(renewed="1", until=after(hours=hours))
        lying = {"metadata": {**patch["metadata"], "managedFields": [*there, entry]}}
        answer = asked(installed, token, lying, HEALTHY)
        assert (refusal in answer) if refusal else (answer == "")


def test_an_operand_that_was_listed_while_it_was_on_is_not_switched_on_later(
    installed: ControlPlane, token: str, healed: str
) -> None:
    """An administrator has switched it off after it was listed."""
    installed.request("PATCH", healed, labelled(f"{P}/severity", "RESET"))
    assert "may only remove" in asked(installed, token, begun(DEPLOY, until=after(hours=1)), HEALTHY)
    installed.request("PATCH", healed, begun(until=after(hours=1), off=(DEPLOY,)))
    on = begun(on=(DEPLOY,), until=after(hours=1))
    assert all("only once" in answer for answer in _asked(installed, token, on, labelled(DEPLOY, "true"), RETURNED))
    assert "may only remove" in asked(installed, token, begun(DEPLOY, until=after(hours=1)), HEALTHY)


def rights(plane: ControlPlane, token: str) -> dict[str, set[str]]:
    """Return the verbs that RBAC grants, by namespace and resource."""
    rules: dict[str, set[str]] = {}
    for namespace in ("default", "gpu-healthcheck"):
        body = {"spec": {"namespace": namespace}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        for rule in plane.request("POST", path, body, token=token).body["status"]["resourceRules"]:
            for resource in rule["resources"]:
                rules.setdefault(f"{namespace}/{resource}", set()).update(rule["verbs"])
    return rules


def test_rbac_gives_the_account_its_work_and_no_more(installed: ControlPlane, token: str) -> None:
    of_any_account = rights(installed, unbound_token(installed, "default"))
    rules = {name: verbs for name, verbs in rights(installed, token).items() if verbs != of_any_account.get(name)}

    everywhere = {"nodes": {"get", "list", "patch"}, "pods": {"list"}}
    assert rules == {
        **{
            f"{namespace}/{name}": verbs
            for namespace in ("default", "gpu-healthcheck")
            for name, verbs in everywhere.items()
        },
        "gpu-healthcheck/leases": {"list"},
        "gpu-healthcheck/cronjobs": {"get"},
        "gpu-healthcheck/jobs": {"get", "create", "delete"},
        "gpu-healthcheck/pods/log": {"get"},
    }


def others(plane: ControlPlane) -> dict[str, str]:
    """Return the refusals of Jobs of other teams and programs, by their kind; none, if nothing depends on an object."""
    spec = {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}
    team = {"metadata": {"name": "train"}, "spec": {"template": {"spec": spec}}}
    same_labels = {"metadata": {"name": "gpu-reset-x", "labels": LABELS}, "spec": team["spec"]}
    answers = {
        "in default": sweeps.said(plane, team, path=sweeps.jobs("default")),
        "in kube-system": sweeps.said(plane, same_labels, path=sweeps.jobs("kube-system")),
        "in ours": sweeps.said(plane, same_labels),
        "sweep": sweeps.said(plane, sweeps.sweep_job(), token=unbound_token(plane, sweeps.SWEEPER)),
        QUARANTINE: sweeps.said(plane, quarantine.job_for("n")),
        "reset": sweeps.said(plane, reset()),
    }
    return {kind: refusal for kind, refusal in answers.items() if refusal}


def test_no_request_of_others_is_rejected_with_or_without_the_cron_jobs(controllers: ControlPlane) -> None:
    """A param of a built-in kind is not found in a second install, and admission reads it before its conditions.

    The same is true of the sweeper's template.
    """
    with ControlPlane(controllers=True) as plane:
        install(plane)
        assert others(plane) == {}  # without the overlay
        apply(plane)
        assert others(plane) == {}
        plane.kubectl("delete", "-f", str(MANIFESTS), f"--timeout={GIVE_UP_SECONDS:g}s")
        install(plane)
        apply(plane)
        token = unbound_token(plane, ACCOUNT)
        for _ in ("with the CronJobs", "without"):
            assert others(plane) == {}
            eventually(lambda: sweeps.said(plane, reset(), token=token) == "")
            assert "except for: hostNetwork" in sweeps.said(plane, reset(pod(hostNetwork=True)), token=token)
            plane.kubectl("delete", "-f", str(MANIFESTS / "13-reset.yaml"), "--ignore-not-found")
            plane.kubectl("delete", "cronjob", ACCOUNT, "-n", "gpu-healthcheck", "--ignore-not-found")
        worse = sweeps.changed(pod(hostPID=True))
        assert "may not set hostPID" in sweeps.said(plane, worse, token=unbound_token(plane, sweeps.SWEEPER))
        plane.kubectl("delete", "-f", str(MANIFESTS / "07-sweeper.yaml"))
        for namespace in ("gpu-healthcheck", "default", "kube-system"):
            worse["metadata"]["namespace"] = namespace
            assert sweeps.said(plane, worse, path=sweeps.jobs(namespace)) == ""


def test_its_pods_stay_off_the_nodes_that_the_sweepers_pods_avoid() -> None:
    """Its token may mark Nodes: a process that escapes from a container of a GPU node does not find it there."""
    files = {
        "gpu-healthcheck-sweeper": MANIFESTS / "07-sweeper.yaml",
        ACCOUNT: OVERLAYS / "reset-automation/cronjob.yaml",
    }
    sweeper, automation = (
        document["spec"]["jobTemplate"]["spec"]["template"]["spec"]["affinity"]
        for name, file in files.items()
        for document in yaml.safe_load_all(file.read_text())
        if document["metadata"]["name"] == name and document["kind"] == "CronJob"
    )
    assert automation == sweeper
