"""`gpu-healthcheck quarantine` on the real control plane: scheduler, controllers, and real processes as pods."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Conflict
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.deep.job import SHOWN
from gpu_healthcheck.healthcheck.operations.quarantine_job import job_name
from tests.cli.cluster import P
from tests.cli.quarantine_world import ACCOUNT, BATCH, DEFAULT_PODS, JOB_PODS, LOST_GPU, NODES, Hospital
from tests.evicting import STALE, annotation, eviction
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


def until_it_says(process: subprocess.Popen[str], text: str) -> str:
    """Return the first line of the output that contains the text. Raise AssertionError if none does."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"it ended and never said {text!r}")


def interrupted(process: subprocess.Popen[str]) -> str:
    """Return its output after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    return process.communicate()[0]


def test_quarantine_returns_a_node_that_passes(hospital: Hospital) -> None:
    hospital.admit("well")
    hospital.pod("work", "well")
    hospital.pod("exporter", "well", owner="DaemonSet")

    code, out, err = hospital.quarantine("well", "--release-on-pass")

    assert (code, err) == (0, ""), out
    assert (hospital.cordon("well"), hospital.pods()) == ((False, None), {"exporter"})
    messages = [line.partition(" ")[2] for line in out.splitlines() if line[:2].isdigit()]
    assert messages == [
        "cordoned",
        "stays: default/exporter: of DaemonSet of",
        "evicting: default/work",
        "gone: default/work",
        "drained",
        "Job gpu-healthcheck/gpu-quarantine-well created",
        *[line for line in messages if " waits" in line],
        "test: started (test 4-dcgm-diag-l4)",
        "\\x1b[31mnot JSON at all [/red]",
        "test: ended (test 4-dcgm-diag-l4)",
        "uncordoned",
    ]
    assert "recommendation: return-to-service" in out
    assert "\x1b" not in out


def test_quarantine_keeps_a_node_that_fails_cordoned(hospital: Hospital) -> None:
    hospital.admit("broken", LOST_GPU, recommendation="reset")

    code, out, _ = hospital.quarantine("broken", "--release-on-pass")

    assert (code, hospital.cordon("broken")) == (1, (True, "gpu-quarantine-broken"))
    assert "RESET    DcgmDiagPcie on gpu/0000:18:00.0: PCIe replays\nrecommendation: reset" in out
    assert "A reset is known to fail here" in out
    assert "aws ec2 reboot-instances" in out


def test_quarantine_tests_several_nodes_at_once(hospital: Hospital) -> None:
    for name in ("one", "two"):
        hospital.admit(name)
        hospital.hold(name)
    process = hospital.start("one", "two", "nowhere", "-o", "json")

    eventually(lambda: hospital.is_at_work("one") and hospital.is_at_work("two"))
    hospital.let_go("one")
    hospital.let_go("two")

    out, err = process.communicate()
    results = {load["node"]: load for load in json.loads(out)}
    assert (process.returncode, results["nowhere"]["why_not"]) == (2, "the node does not exist (any more)")
    assert [results[name]["recommendation"] for name in ("one", "two")] == ["return-to-service"] * 2
    assert results["one"]["step"]["commands"] == ["kubectl uncordon one"]
    assert {line.split(" ")[1] for line in err.splitlines()} == {"one", "two", "nowhere"}


def test_quarantine_keeps_a_persons_cordon(hospital: Hospital) -> None:
    hospital.admit("mine")
    hospital.plane.kubectl("cordon", "mine")

    code, out, _ = hospital.quarantine("mine", "--release-on-pass")

    assert (code, hospital.cordon("mine")) == (0, (True, None))
    assert "is cordoned already by another owner, and stays so" in out
    assert "not uncordoned" in out


def test_quarantine_keeps_a_persons_cordon_after_its_own(hospital: Hospital) -> None:
    """`kubectl uncordon` leaves our mark behind."""
    hospital.admit("again", recommendation="rerun")
    hospital.quarantine("again")
    hospital.plane.kubectl("uncordon", "again")
    hospital.plane.kubectl("cordon", "again")
    (hospital.folder / "again.json").write_text(json.dumps({"recommendation": "return-to-service", "findings": []}))

    code, out, _ = hospital.quarantine("again", "--release-on-pass")

    assert (code, hospital.cordon("again")[0], "not uncordoned" in out) == (0, True, True)
    assert "Job gpu-healthcheck/gpu-quarantine-again of an earlier run deleted (Complete)" in out


def test_quarantine_names_a_budget_that_blocks_the_drain(hospital: Hospital) -> None:
    hospital.admit("budget")
    hospital.pod("served", "budget", labels={"app": "served"})
    hospital.pod("free", "budget")
    hospital.budget("keep-served", "served")
    code, out, _ = hospital.quarantine("budget", "--timeout", "10")

    assert (code, hospital.pods(), hospital.jobs("budget")) == (2, {"served"}, [])
    assert "its pods were not gone within 10 s:" in out
    assert "default/served: create pods/eviction: 429: Cannot evict pod" in out
    assert "The disruption budget keep-served needs 1 healthy pods and has 1 currently" in out
    assert "  $ kubectl uncordon budget\n" in out


def announce(hospital: Hospital, node: str, state: str, age: timedelta = timedelta(0), **changes: Any) -> None:
    """Write the evict program's annotation about the pod `served`."""
    pod = eviction("served", state, **{"namespace": "default", "uid": uid_of(hospital, "served"), **changes})
    hospital.plane.request("PATCH", f"{NODES}/{node}", {"metadata": {"annotations": annotation(pod, age=age)}})


def uid_of(hospital: Hospital, pod: str) -> str:
    return str(hospital.plane.request("GET", f"{DEFAULT_PODS}/{pod}").body["metadata"]["uid"])


def test_quarantine_refuses_a_node_on_which_an_eviction_waits_for_a_budget(hospital: Hospital) -> None:
    hospital.admit("waits")
    hospital.pod("served", "waits", labels={"app": "served"})
    hospital.budget("keep-served", "served")
    pods = cluster_of(Access(str(hospital.plane.kubeconfig))).pods
    with pytest.raises(ClusterError) as refusal:
        pods.evict("default", "served", uid_of(hospital, "served"))
    announce(hospital, "waits", "refused", why=str(refusal.value)[:160])

    code, out, _ = hospital.quarantine("waits")
    planned, plan, _ = hospital.quarantine("waits", "--dry-run")

    assert (code, planned, hospital.pods(), hospital.cordon("waits")) == (2, 2, {"served"}, (False, None)), out
    for words in (
        "evictions on it are refused, and nothing was changed:",
        "default/served: announced since ",
        ", refused by PodDisruptionBudget default/keep-served: change it, or kubectl delete pod -n default served",
        "to end the evictions instead: gpu-healthcheck release waits",
    ):
        assert words in out
        assert words in plan

    hospital.plane.request("DELETE", f"{DEFAULT_PODS}/served?gracePeriodSeconds=0")
    assert hospital.quarantine("waits")[0] == 0


@pytest.mark.parametrize(
    ("state", "changes"),
    [("announced", {}), ("requested", {}), ("slurm", {}), ("refused", {"age": STALE}), ("refused", {"uid": "gone"})],
    ids=["announced", "requested", "Slurm", "stale", "of an earlier pod"],
)
def test_quarantine_drains_a_node_on_which_no_eviction_waits(
    hospital: Hospital, state: str, changes: dict[str, Any]
) -> None:
    hospital.admit("free")
    hospital.pod("served", "free")
    announce(hospital, "free", state, **changes)

    code, out, _ = hospital.quarantine("free")

    assert (code, hospital.pods(), out.count("evicting: default/served")) == (0, set(), 1), out


def test_second_eviction_leaves_the_replacement_of_a_pod(hospital: Hospital) -> None:
    """The evict program and a drain may both know the same pod."""
    hospital.admit("twice")
    hospital.pod("served", "twice")
    first = uid_of(hospital, "served")
    announce(hospital, "twice", "announced")
    assert hospital.quarantine("twice")[0] == 0
    hospital.pod("served", "twice")

    with pytest.raises(Conflict):
        cluster_of(Access(str(hospital.plane.kubeconfig))).pods.evict("default", "served", first)

    assert "deletionTimestamp" not in hospital.plane.request("GET", f"{DEFAULT_PODS}/served").body["metadata"]


@pytest.mark.parametrize(
    ("owner", "volumes", "flag"),
    [("", [], "--force"), ("ReplicaSet", [{"name": "scratch", "emptyDir": {}}], "--delete-emptydir-data")],
)
def test_quarantine_names_losses_before_it_evicts(
    hospital: Hospital, owner: str, volumes: list[dict[str, object]], flag: str
) -> None:
    hospital.admit("lossy")
    hospital.pod("lost", "lossy", owner=owner, volumes=volumes)
    hospital.pod("other", "lossy")

    code, out, _ = hospital.quarantine("lossy")

    assert (code, hospital.pods(), hospital.cordon("lossy")) == (2, {"lost", "other"}, (False, None))
    assert f"(needs {flag})" in out

    code, out, _ = hospital.quarantine("lossy", flag)

    assert (code, hospital.pods()) == (0, set()), out


def test_quarantine_names_what_holds_a_terminating_pod(hospital: Hospital) -> None:
    hospital.admit("stuck")
    hospital.pod("held", "stuck", finalizers=["example.com/never"])

    code, out, _ = hospital.quarantine("stuck", "--timeout", "10")

    assert (code, hospital.cordon("stuck")) == (2, (True, "gpu-quarantine-stuck"))
    assert "default/held: it is terminating, and waits for its finalizers: example.com/never" in out


def test_quarantine_ends_if_the_node_is_deleted(hospital: Hospital) -> None:
    hospital.admit("vanishing")
    hospital.hold("vanishing")
    process = hospital.start("vanishing")
    eventually(lambda: hospital.is_at_work("vanishing"))

    hospital.plane.request("DELETE", f"{NODES}/vanishing")

    out, _ = process.communicate()
    assert process.returncode == 2
    assert "its Job was deleted, possibly with the node" in out


def test_quarantine_continues_after_ctrl_c(hospital: Hospital) -> None:
    hospital.admit("resumed")
    hospital.hold("resumed")
    process = hospital.start("resumed")
    eventually(lambda: hospital.is_at_work("resumed"))

    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()

    assert process.returncode == 130
    assert [line.partition(" ")[2] for line in out.splitlines()[-7:]] == [
        "interrupted",
        "the node is cordoned by this command",
        "Job gpu-healthcheck/gpu-quarantine-resumed continues",
        "to continue, run with the same options:",
        "  $ gpu-healthcheck quarantine resumed",
        "to abandon the run:",
        "  $ kubectl delete job -n gpu-healthcheck gpu-quarantine-resumed && kubectl uncordon resumed",
    ]
    job = hospital.jobs("resumed")
    again = hospital.start("resumed", "--release-on-pass")
    assert again.stdout is not None
    while "runs already; it is followed" not in again.stdout.readline():
        assert again.poll() is None
    hospital.let_go("resumed")
    again.communicate()
    assert (again.returncode, hospital.jobs("resumed"), hospital.cordon("resumed")) == (0, job, (False, None))


def test_quarantine_survives_an_outage_of_the_api_server(hospital: Hospital) -> None:
    hospital.admit("outage")
    hospital.hold("outage")
    process = hospital.start("outage")
    eventually(lambda: hospital.is_at_work("outage"))

    hospital.plane.stop_api()
    assert process.stdout is not None
    while "the API server does not answer; retrying" not in process.stdout.readline():
        assert process.poll() is None
    hospital.plane.start_api()
    hospital.let_go("outage")

    out, _ = process.communicate()
    assert process.returncode == 0, out


WRITES = ["patch nodes", "create pods/eviction", "create jobs", "patch nodes", "patch jobs"]
"""Of a quarantine that drains one pod, passes, gives the node back, and tells; questions for rights are no writes."""
GIVEN_BACK = 4


def test_quarantine_writes_are_known(hospital: Hospital) -> None:
    hospital.admit("counted")
    hospital.pod("work", "counted")

    process = hospital.start("counted", "--release-on-pass", KILL_AT="never")

    out, _ = process.communicate()
    assert [line.removeprefix("WRITE ") for line in out.splitlines() if line.startswith("WRITE")] == WRITES


@pytest.mark.parametrize("write", range(1, len(WRITES) + 1))
def test_quarantine_continues_after_kill_at_each_write(hospital: Hospital, write: int) -> None:
    hospital.admit("killed")
    hospital.pod("work", "killed")
    process = hospital.start("killed", "--release-on-pass", KILL_AT=f"{write} after")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    jobs = hospital.jobs("killed")

    code, out, _ = hospital.quarantine("killed", "--release-on-pass")

    assert (code, hospital.cordon("killed"), hospital.pods()) == (0, (False, None), set()), out
    assert len(set(jobs + hospital.jobs("killed"))) == (2 if write >= GIVEN_BACK else 1)


@pytest.mark.parametrize(("recommendation", "code", "is_flag"), [("reset", 1, True), ("rerun", 1, False)])
def test_quarantine_shows_an_unreported_result_first(
    hospital: Hospital, recommendation: str, code: int, *, is_flag: bool
) -> None:
    """After hours, with the terminal closed long ago. A run to repeat is repeated."""
    hospital.admit("unseen", recommendation=recommendation)
    hospital.hold("unseen")
    process = hospital.start("unseen")
    eventually(lambda: hospital.is_at_work("unseen"))
    process.kill()
    process.communicate()
    first = hospital.jobs("unseen")
    hospital.let_go("unseen")
    eventually(lambda: hospital.has_ended("unseen"))

    assert ("would show the result of Job" in hospital.quarantine("unseen", "--dry-run")[1]) == is_flag
    seen = hospital.quarantine("unseen")
    assert (seen[0], f"recommendation: {recommendation}" in seen[1]) == (code, True)
    assert ("has ended: this is its result" in seen[1], hospital.jobs("unseen") == first) == (is_flag, is_flag)

    hospital.quarantine("unseen")
    assert hospital.jobs("unseen") != first


def test_quarantine_replaces_an_ended_job_of_a_person(hospital: Hospital) -> None:
    hospital.admit("by-hand", recommendation="reset")
    hospital.quarantine("by-hand")
    first = hospital.jobs("by-hand")
    job = f"{BATCH}/jobs/{job_name('by-hand')}"
    hospital.plane.request("PATCH", job, {"metadata": {"annotations": {SHOWN: None}}})

    hospital.quarantine("by-hand")

    assert hospital.jobs("by-hand") != first


def foreign_job(hospital: Hospital, node: str, component: str, account: str) -> str:
    """Create a Job with the node's Job name as another account, and return its uid."""
    pod = {
        "serviceAccountName": account,
        "restartPolicy": "Never",
        "containers": [{"name": "quarantine", "image": "x", "command": ["true"]}],
    }
    body = {
        "metadata": {"name": job_name(node), "labels": {"app.kubernetes.io/component": component}},
        "spec": {"template": {"spec": pod}},
    }
    answer = hospital.plane.request("POST", f"{BATCH}/jobs", body)
    assert answer.status == 201, answer.message
    return str(answer.body["metadata"]["uid"])


@pytest.mark.parametrize(("component", "account"), [("sweep", ACCOUNT), ("quarantine", "gpu-healthcheck-sweep")])
def test_quarantine_refuses_a_foreign_job(hospital: Hospital, component: str, account: str) -> None:
    hospital.admit("imitated")
    uid = foreign_job(hospital, "imitated", component, account)

    code, out, _ = hospital.quarantine("imitated")

    assert (code, hospital.cordon("imitated"), hospital.jobs("imitated")) == (2, (False, None), [uid]), out
    assert (
        "Job gpu-healthcheck/gpu-quarantine-imitated is not a quarantine's; it is neither followed nor deleted" in out
    )
    assert f"its component is '{component}' and its account '{account}'" in out
    assert f"expected are 'quarantine' and '{ACCOUNT}'" in out


def test_quarantine_refuses_a_foreign_job_created_during_the_drain(hospital: Hospital) -> None:
    hospital.admit("imitated")
    hospital.pod("work", "imitated", finalizers=["example.com/x"])
    process = hospital.start("imitated")
    eventually(lambda: hospital.cordon("imitated")[0])
    uid = foreign_job(hospital, "imitated", "sweep", "gpu-healthcheck-sweep")
    hospital.plane.request("PATCH", f"{DEFAULT_PODS}/work", {"metadata": {"finalizers": None}})

    out, _ = process.communicate()

    assert (process.returncode, hospital.jobs("imitated")) == (2, [uid]), out
    assert "is not a quarantine's; it is neither followed nor deleted" in out


def test_quarantine_of_two_people_follows_one_job(hospital: Hospital) -> None:
    hospital.admit("both")
    hospital.hold("both")
    hospital.pod("work", "both")
    process, other = hospital.start("both"), hospital.start("both")
    until_it_says(process, "test: started")
    until_it_says(other, "test: started")
    job = hospital.jobs("both")
    hospital.let_go("both")

    assert "recommendation: return-to-service" in process.communicate()[0]
    assert "recommendation: return-to-service" in other.communicate()[0]
    assert (process.returncode, other.returncode, hospital.jobs("both")) == (0, 0, job)


def test_quarantine_interrupted_in_the_drain_creates_no_job(hospital: Hospital) -> None:
    hospital.admit("draining")
    hospital.pod("held", "draining", finalizers=["example.com/never"])
    process = hospital.start("draining")
    until_it_says(process, "evicting: default/held")

    message = interrupted(process)

    assert (process.returncode, hospital.jobs("draining")) == (130, [])
    assert "the node is cordoned by this command" in message
    assert "$ kubectl uncordon draining\n" in message


def test_quarantine_without_a_result_could_not_check(hospital: Hospital) -> None:
    hospital.admit("silent", recommendation="")

    code, out, _ = hospital.quarantine("silent")

    assert (code, "without a result on the node" in out) == (2, True), out
    assert "without a result on the node; its last message:\n" in out
    assert [line for line in out.splitlines() if line.endswith("   test: ended (test 4-dcgm-diag-l4)")] != []


def test_quarantine_json_has_the_reason_of_a_refusal(hospital: Hospital) -> None:
    template = hospital.template()
    refuse = "import json, sys; print(json.dumps({'event': 'refused', 'why': 'GPU pods'}), flush=True); sys.exit(2)"
    template["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"] = [sys.executable, "-c", refuse]
    hospital.use(template)
    hospital.admit("refused")

    code, out, _ = hospital.quarantine("refused", "-o", "json")

    (result,) = json.loads(out)
    assert code == 2
    assert re.search(r"last message: refused \(why GPU pods\); pod \S+ ended: Error, exit code 2", result["why_not"])


def test_quarantine_record_without_a_recommendation_could_not_check(hospital: Hospital) -> None:
    hospital.admit("odd", recommendation="")
    hospital.hold("odd")
    process = hospital.start("odd", "-o", "json")
    eventually(lambda: hospital.is_at_work("odd"))
    record = json.dumps({"timestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "checks": []})
    hospital.plane.request("PATCH", f"{NODES}/odd", {"metadata": {"annotations": {f"{P}/quarantine-result": record}}})
    hospital.let_go("odd")

    (result,) = json.loads(process.communicate()[0])
    assert (process.returncode, "without a result on the node" in result["why_not"]) == (2, True)


def test_quarantine_names_why_its_job_has_no_pod(hospital: Hospital) -> None:
    template = hospital.template()
    template["jobTemplate"]["spec"]["template"]["spec"]["serviceAccountName"] = "nobody"
    hospital.use(template)
    hospital.admit("podless")

    process = hospital.start("podless")

    message = until_it_says(process, "Job gpu-healthcheck/gpu-quarantine-podless has no pod: FailedCreate: ")
    assert 'serviceaccount "nobody" not found' in message
    assert "$ kubectl delete job" in interrupted(process)


def test_quarantine_names_a_suspended_job(hospital: Hospital) -> None:
    template = hospital.template()
    template["jobTemplate"]["spec"]["suspend"] = True
    hospital.use(template)
    hospital.admit("queued")

    process = hospital.start("queued")

    until_it_says(process, "has no pod: it is suspended")
    interrupted(process)


def test_quarantine_names_why_its_pod_does_not_start(hospital: Hospital) -> None:
    hospital.admit("volume")
    hospital.kubelets.stuck.add("volume")
    process = hospital.start("volume")
    until_it_says(process, "waits: its node's kubelet has not started it")

    hospital.warning("volume", "FailedMount", 'configmap "gpu-healthcheck-config" not found')

    until_it_says(process, 'has not started it; FailedMount: configmap "gpu-healthcheck-config" not found')
    interrupted(process)


@pytest.mark.parametrize(("owner", "words"), [("DaemonSet", ()), ("ReplicaSet", ("--no-drain",))])
def test_quarantine_evicts_nothing_if_gpu_pods_would_stay(
    hospital: Hospital, owner: str, words: tuple[str, ...]
) -> None:
    hospital.admit("held")
    work = {"name": "work", "image": "work", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    hospital.pod("holder", "held", owner=owner, containers=[work])
    hospital.pod("other", "held")

    code, out, _ = hospital.quarantine("held", *words)

    assert (code, hospital.pods(), hospital.cordon("held")) == (2, {"holder", "other"}, (False, None)), out
    assert "  default/holder holds 1 nvidia.com/gpu\n" in out


def test_quarantine_evicts_gpu_pods(hospital: Hospital) -> None:
    hospital.admit("worked")
    work = {"name": "work", "image": "work", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    hospital.pod("work", "worked", containers=[work])

    assert (hospital.quarantine("worked")[0], hospital.pods()) == (0, set())


def test_quarantine_names_an_uncordon_by_another_client(hospital: Hospital) -> None:
    hospital.admit("shared")
    hospital.hold("shared")
    process = hospital.start("shared", "--release-on-pass")
    eventually(lambda: hospital.is_at_work("shared"))
    hospital.plane.kubectl("uncordon", "shared")
    hospital.let_go("shared")

    out, _ = process.communicate()
    assert (process.returncode, "is uncordoned already, by another client" in out) == (0, True), out


def test_quarantine_second_ctrl_c_ends_without_an_api_server(hospital: Hospital) -> None:
    hospital.admit("hurried")
    hospital.hold("hurried")
    process = hospital.start("hurried")
    eventually(lambda: hospital.is_at_work("hurried"))
    hospital.plane.stop_api()
    try:
        until_it_says(process, "the API server does not answer; retrying")
        process.send_signal(signal.SIGINT)
        until_it_says(process, "interrupted")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        hospital.plane.start_api()

    assert (process.returncode, err) == (130, "")
    assert "its state in the cluster was not read: gpu-healthcheck quarantine hurried continues the run" in out


def test_quarantine_names_why_its_pod_is_unschedulable(hospital: Hospital) -> None:
    hospital.admit("full")
    hospital.plane.request("PATCH", f"{NODES}/full/status", {"status": {"allocatable": {"pods": "0"}}})
    why = "waits to be scheduled: Unschedulable: 0/1 nodes are available: 1 Too many pods."

    process = hospital.start("full")
    ends = until_it_says(process, why).strip().rpartition("; fix that, or end the run: ")[2]
    interrupted(process)
    again = hospital.start("full")
    until_it_says(again, f"Job gpu-healthcheck/{job_name('full')} exists already, and its pod {why}")
    interrupted(again)

    hospital.plane.kubectl(*ends.split(" ")[1:])
    assert not hospital.jobs("full")


def test_quarantine_ignores_pods_of_an_earlier_job(hospital: Hospital) -> None:
    hospital.admit("renewed")
    hospital.hold("renewed")
    process = hospital.start("renewed")
    eventually(lambda: hospital.is_at_work("renewed"))
    labels = {"batch.kubernetes.io/job-name": job_name("renewed"), "batch.kubernetes.io/controller-uid": "another"}
    spec = {"nodeSelector": {"is": "nowhere"}, "containers": [{"name": "c", "image": "x"}]}
    stray = {"metadata": {"name": "stray", "labels": labels}, "spec": spec}
    assert hospital.plane.request("POST", JOB_PODS, stray).status == 201
    hospital.let_go("renewed")

    out, _ = process.communicate()  # it reads the pod once more when the Job has ended
    hospital.plane.request("DELETE", f"{JOB_PODS}/stray?gracePeriodSeconds=0")
    assert (process.returncode, "stray" in out) == (0, False), out


def test_quarantine_names_missing_permissions(hospital: Hospital) -> None:
    hospital.admit("guarded")
    kubeconfig = hospital.plane.account_kubeconfig("gpu-healthcheck-sweep")

    code, out, err = hospital.quarantine("guarded", kubeconfig=kubeconfig)

    assert (code, out, hospital.cordon("guarded")) == (2, "", (False, None))
    assert "your permissions are not enough, and nothing was changed:" in err
    assert "  list pods in the whole cluster\n" in err
    assert "  create jobs.batch in gpu-healthcheck\n" in err

    (outcome,) = json.loads(hospital.quarantine("guarded", "-o", "json", kubeconfig=kubeconfig)[1])
    assert outcome["node"] == "guarded"
    assert "nothing was changed: " in outcome["why_not"]
    assert "; create jobs.batch in gpu-healthcheck" in outcome["why_not"]


def test_quarantine_dry_run_changes_nothing(hospital: Hospital) -> None:
    hospital.admit("dry")
    hospital.pod("bare", "dry", owner="")
    hospital.pod("exporter", "dry", owner="DaemonSet")

    code, out, _ = hospital.quarantine("dry", "--dry-run", "--force")
    (outcome,) = json.loads(hospital.quarantine("dry", "--dry-run", "--force", "-o", "json")[1])

    assert (code, hospital.cordon("dry"), hospital.jobs("dry")) == (0, (False, None), [])
    assert hospital.pods() == {"bare", "exporter"}
    plan = [line.partition(" ")[2] for line in out.splitlines()]
    assert plan == outcome["plan"]
    assert plan == [
        "would be cordoned",
        "would evict default/bare (no controller recreates it)",
        "would leave default/exporter: of DaemonSet of",
        "would create Job gpu-quarantine-dry and follow it",
    ]


def test_quarantine_without_a_drain_evicts_nothing(hospital: Hospital) -> None:
    hospital.admit("busy")
    hospital.pod("work", "busy")

    code, out, _ = hospital.quarantine("busy", "--no-drain")

    assert (code, hospital.pods()) == (0, {"work"}), out


def test_quarantine_refuses_a_node_that_another_run_claims(hospital: Hospital) -> None:
    hospital.admit("swept")
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = json.dumps({"kind": "sweep", "holder": "gpu-sweep-x", "until": until})
    hospital.plane.request("PATCH", f"{NODES}/swept", {"metadata": {"annotations": {f"{P}/run": run}}})

    code, out, _ = hospital.quarantine("swept")

    assert (code, hospital.cordon("swept")) == (2, (False, None))
    assert f"sweep gpu-sweep-x tests it until {until} at the latest" in out


def test_quarantine_accepts_a_long_node_name(hospital: Hospital) -> None:
    name = hospital.admit(".".join(["n" * 60] * 3), labels={"kubernetes.io/hostname": "short"})

    code, out, _ = hospital.quarantine(name, "--release-on-pass")

    assert (code, len(job_name(name)), hospital.cordon(name)) == (0, 63, (False, None)), out
