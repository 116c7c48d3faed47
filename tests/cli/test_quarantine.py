"""`gpu-healthcheck quarantine` on the real control plane: scheduler, controllers, and real processes as pods."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta

import pytest

from healthcheck.quarantine_job import job_name
from tests.cli.quarantine_world import LOST_GPU, NODES, Hospital, P
from tests.sweeper.world import eventually

pytestmark = pytest.mark.control_plane


def test_a_node_that_passes_is_cordoned_drained_tested_and_given_back(hospital: Hospital) -> None:
    hospital.admit("well")
    hospital.pod("work", "well")
    hospital.pod("exporter", "well", owner="DaemonSet")

    code, out, err = hospital.quarantine("well", "--release-on-pass")

    assert (code, err) == (0, ""), out
    assert (hospital.cordon("well"), hospital.pods()) == ((False, None), {"exporter"})
    told = [line.partition(" ")[2] for line in out.splitlines() if line[:2].isdigit()]
    assert told == [
        "cordoned",
        "stays: default/exporter: of the DaemonSet of, which would only start it again",
        "told to go: default/work",
        "gone: default/work",
        "drained",
        "Job gpu-healthcheck/gpu-quarantine-well made",
        *[line for line in told if "waits: " in line],
        "test: begun (test 4-dcgm-diag-l4)",
        " [31mnot JSON at all [/red]",
        "test: ended (test 4-dcgm-diag-l4)",
        "uncordoned",
    ]
    assert "recommendation: return-to-service" in out
    assert "\x1b" not in out


def test_a_node_that_fails_stays_cordoned_and_says_what_to_do(hospital: Hospital) -> None:
    hospital.admit("broken", LOST_GPU, recommendation="reset")

    code, out, _ = hospital.quarantine("broken", "--release-on-pass")

    assert (code, hospital.cordon("broken")) == (1, (True, "gpu-quarantine-broken"))
    assert "RESET    DcgmDiagPcie on gpu/0000:18:00.0: PCIe replays\nrecommendation: reset" in out
    assert "nvidia-smi --gpu-reset -i 0000:18:00.0\n" in out


def test_several_nodes_are_tested_at_once_and_each_line_has_its_node(hospital: Hospital) -> None:
    for name in ("one", "two"):
        hospital.admit(name)
        hospital.hold(name)
    process = hospital.start("one", "two", "nowhere", "-o", "json")

    eventually(lambda: hospital.is_at_work("one") and hospital.is_at_work("two"))
    hospital.let_go("one")
    hospital.let_go("two")

    out, err = process.communicate()
    results = {one["node"]: one for one in json.loads(out)}
    assert (process.returncode, results["nowhere"]["why_not"]) == (2, "there is no such node (any more)")
    assert [results[name]["recommendation"] for name in ("one", "two")] == ["return-to-service"] * 2
    assert results["one"]["step"]["commands"] == ["kubectl uncordon one"]
    assert {line.split(" ")[1] for line in err.splitlines()} == {"one", "two", "nowhere"}


def test_a_persons_own_cordon_stays(hospital: Hospital) -> None:
    hospital.admit("mine")
    hospital.plane.kubectl("cordon", "mine")

    code, out, _ = hospital.quarantine("mine", "--release-on-pass")

    assert (code, hospital.cordon("mine")) == (0, (True, None))
    assert "is cordoned already, by somebody else: it stays so" in out
    assert "not uncordoned" in out


def test_a_persons_cordon_after_ours_was_lifted_by_hand_stays_too(hospital: Hospital) -> None:
    """`kubectl uncordon` leaves our mark behind."""
    hospital.admit("again", recommendation="rerun")
    hospital.quarantine("again")
    hospital.plane.kubectl("uncordon", "again")
    hospital.plane.kubectl("cordon", "again")
    (hospital.folder / "again.json").write_text(json.dumps({"recommendation": "return-to-service", "findings": []}))

    code, out, _ = hospital.quarantine("again", "--release-on-pass")

    assert (code, hospital.cordon("again")[0], "not uncordoned" in out) == (0, True, True)
    assert "Job gpu-healthcheck/gpu-quarantine-again of an earlier run deleted (Complete)" in out


def test_a_budget_that_allows_nothing_is_named_and_the_drain_ends_in_its_time(hospital: Hospital) -> None:
    hospital.admit("budget")
    hospital.pod("served", "budget", labels={"app": "served"})
    hospital.pod("free", "budget")
    hospital.budget("keep-served", "served")
    code, out, _ = hospital.quarantine("budget", "--timeout", "3")

    assert (code, hospital.pods(), hospital.jobs("budget")) == (2, {"served"}, [])
    assert "its pods have not gone within 3 s:" in out
    assert "default/served: create pods/eviction: 429: Cannot evict pod" in out
    assert "The disruption budget keep-served needs 1 healthy pods and has 1 currently" in out
    assert "give up: kubectl uncordon budget" in out


@pytest.mark.parametrize(
    ("owner", "volumes", "flag"),
    [("", [], "--force"), ("ReplicaSet", [{"name": "scratch", "emptyDir": {}}], "--delete-emptydir-data")],
)
def test_what_would_be_lost_is_named_before_anything_goes(
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


def test_a_pod_that_does_not_end_is_named_with_what_holds_it(hospital: Hospital) -> None:
    hospital.admit("stuck")
    hospital.pod("held", "stuck", finalizers=["example.com/never"])

    code, out, _ = hospital.quarantine("stuck", "--timeout", "3")

    assert (code, hospital.cordon("stuck")) == (2, (True, "gpu-quarantine-stuck"))
    assert "default/held: it is ending, and waits for its finalizers: example.com/never" in out


def test_a_node_that_vanishes_ends_it(hospital: Hospital) -> None:
    hospital.admit("vanishing")
    hospital.hold("vanishing")
    process = hospital.start("vanishing")
    eventually(lambda: hospital.is_at_work("vanishing"))

    hospital.plane.request("DELETE", f"{NODES}/vanishing")

    out, _ = process.communicate()
    assert process.returncode == 2
    assert "the node is gone" in out


def test_ctrl_c_says_what_stands_and_the_same_command_goes_on(hospital: Hospital) -> None:
    hospital.admit("resumed")
    hospital.hold("resumed")
    process = hospital.start("resumed")
    eventually(lambda: hospital.is_at_work("resumed"))

    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()

    assert process.returncode == 130
    assert [line.partition(" ")[2] for line in out.splitlines()[-5:]] == [
        "interrupted",
        "the node is cordoned by this command",
        "Job gpu-healthcheck/gpu-quarantine-resumed goes on by itself",
        "go on: gpu-healthcheck quarantine resumed (with the same options)",
        "give up: kubectl delete job -n gpu-healthcheck gpu-quarantine-resumed && kubectl uncordon resumed",
    ]
    job = hospital.jobs("resumed")
    again = hospital.start("resumed", "--release-on-pass")
    assert again.stdout is not None
    while "is at work already, and is followed" not in again.stdout.readline():
        assert again.poll() is None
    hospital.let_go("resumed")
    again.communicate()
    assert (again.returncode, hospital.jobs("resumed"), hospital.cordon("resumed")) == (0, job, (False, None))


def test_a_lost_api_server_ends_no_quarantine(hospital: Hospital) -> None:
    hospital.admit("outage")
    hospital.hold("outage")
    process = hospital.start("outage")
    eventually(lambda: hospital.is_at_work("outage"))

    hospital.plane.stop_api()
    assert process.stdout is not None
    while "the API server does not answer, and is asked again" not in process.stdout.readline():
        assert process.poll() is None
    hospital.plane.start_api()
    hospital.let_go("outage")

    out, _ = process.communicate()
    assert process.returncode == 0, out


WRITES = ["patch nodes", "create pods/eviction", "create jobs", "patch nodes"]
"""Of a quarantine that drains one pod, passes, and gives the node back; questions for rights are no writes."""


def test_these_are_all_its_writes(hospital: Hospital) -> None:
    hospital.admit("counted")
    hospital.pod("work", "counted")

    process = hospital.start("counted", "--release-on-pass", KILL_AT="never")

    out, _ = process.communicate()
    assert [line.removeprefix("WRITE ") for line in out.splitlines() if line.startswith("WRITE")] == WRITES


@pytest.mark.parametrize("write", range(1, len(WRITES) + 1))
def test_killed_after_any_of_its_writes_the_same_command_brings_it_to_its_end(hospital: Hospital, write: int) -> None:
    hospital.admit("killed")
    hospital.pod("work", "killed")
    process = hospital.start("killed", "--release-on-pass", KILL_AT=f"{write} after")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    jobs = hospital.jobs("killed")

    code, out, _ = hospital.quarantine("killed", "--release-on-pass")

    assert (code, hospital.cordon("killed"), hospital.pods()) == (0, (False, None), set()), out
    assert len(set(jobs + hospital.jobs("killed"))) == (2 if write == len(WRITES) else 1)


def test_a_run_without_a_result_is_no_verdict(hospital: Hospital) -> None:
    hospital.admit("silent", recommendation="")

    code, out, _ = hospital.quarantine("silent")

    assert (code, "left no result on the node" in out) == (2, True), out


def test_a_pod_that_finds_no_place_says_why(hospital: Hospital) -> None:
    hospital.admit("full")
    hospital.plane.request("PATCH", f"{NODES}/full/status", {"status": {"allocatable": {"pods": "0"}}})
    process = hospital.start("full")
    assert process.stdout is not None

    while "Too many pods" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate()


def test_missing_rights_are_named_and_nothing_is_changed(hospital: Hospital) -> None:
    hospital.admit("guarded")
    kubeconfig = hospital.plane.account_kubeconfig("gpu-healthcheck-sweep")

    code, out, err = hospital.quarantine("guarded", kubeconfig=kubeconfig)

    assert (code, out, hospital.cordon("guarded")) == (2, "", (False, None))
    assert "you lack rights that it needs, and nothing was changed:" in err
    assert "  list pods in the whole cluster\n" in err
    assert "  create jobs.batch in gpu-healthcheck\n" in err


def test_a_dry_run_shows_everything_and_changes_nothing(hospital: Hospital) -> None:
    hospital.admit("dry")
    hospital.pod("bare", "dry", owner="")
    hospital.pod("exporter", "dry", owner="DaemonSet")

    code, out, _ = hospital.quarantine("dry", "--dry-run", "--force")

    assert (code, hospital.cordon("dry"), hospital.jobs("dry")) == (0, (False, None), [])
    assert hospital.pods() == {"bare", "exporter"}
    assert [line.partition(" ")[2] for line in out.splitlines()] == [
        "would be cordoned",
        "would evict default/bare (no controller makes it again)",
        "would leave default/exporter: of the DaemonSet of, which would only start it again",
        "would make Job gpu-quarantine-dry, and follow it",
    ]


def test_without_a_drain_every_pod_stays(hospital: Hospital) -> None:
    hospital.admit("busy")
    hospital.pod("work", "busy")

    code, out, _ = hospital.quarantine("busy", "--no-drain")

    assert (code, hospital.pods()) == (0, {"work"}), out


def test_a_node_that_another_run_holds_is_left_to_it(hospital: Hospital) -> None:
    hospital.admit("swept")
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = json.dumps({"kind": "sweep", "holder": "gpu-sweep-x", "until": until})
    hospital.plane.request("PATCH", f"{NODES}/swept", {"metadata": {"annotations": {f"{P}/run": run}}})

    code, out, _ = hospital.quarantine("swept")

    assert (code, hospital.cordon("swept")) == (2, (False, None))
    assert f"sweep gpu-sweep-x tests it, until {until} at the latest" in out


def test_a_node_may_have_a_long_name(hospital: Hospital) -> None:
    name = hospital.admit(".".join(["n" * 60] * 3), labels={"kubernetes.io/hostname": "short"})

    code, out, _ = hospital.quarantine(name, "--release-on-pass")

    assert (code, len(job_name(name)), hospital.cordon(name)) == (0, 63, (False, None)), out
