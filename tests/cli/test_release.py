"""`gpu-healthcheck release` and the node's cordon: it removes our cordon, and leaves a person's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_healthcheck.cli.release import ReleaseOptions, release_nodes
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.cli.cluster import Json, P, cordon, mark, run_here

OURS = {"by": "gpu-quarantine-n"}
STAYS = "n: stays cordoned: "


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiStandIn]:
    with ApiStandIn("n") as api:
        api.kubeconfig(tmp_path / "kubeconfig")
        yield api


@pytest.fixture
def kubeconfig(api: ApiStandIn, tmp_path: Path) -> Path:
    return tmp_path / "kubeconfig"


def failed(api: ApiStandIn) -> None:
    """Its agent has reported an Xid."""
    row = {"reason": "Xid79", "subject": "gpu/0000:53:00.0", "severity": "REBOOT", "nature": "event", "seq": 7}
    row |= {"last_seen": "2026-11-21T01:02:03Z"}
    record = {"schema": 1, "timestamp": "2026-11-21T01:02:03Z", "status": "fail", "severity": "REBOOT", "boot_id": "b"}
    mark(api, "n", results=json.dumps({**record, "cursor": 9, "findings": [row]}))


def passed(api: ApiStandIn) -> None:
    record = {"schema": 1, "timestamp": "2026-11-21T01:02:03Z", "status": "pass", "severity": "PASS", "findings": []}
    mark(api, "n", results=json.dumps(record))


def release(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_here(kubeconfig, "release", "n", "--reason", "board swapped", "--no-wait", *words)


def test_release_lifts_our_cordon_in_the_same_patch(api: ApiStandIn, kubeconfig: Path) -> None:
    failed(api)
    cordon(api, "n", **OURS)
    done = release(kubeconfig)

    (write,) = api.writes
    assert (done.returncode, done.stderr) == (0, "")
    assert (write.body["spec"], {*write.body["metadata"]["annotations"]}) == (
        {"unschedulable": None},
        {f"{P}/release", f"{P}/cordoned-by"},
    )
    assert write.body["metadata"]["resourceVersion"]
    assert "n: uncordoned: it was cordoned by gpu-quarantine-n\n" in done.stdout
    node = api.node("n")
    assert ("unschedulable" in node["spec"], f"{P}/cordoned-by" in node["metadata"]["annotations"]) == (False, False)


def test_release_lifts_our_cordon_without_findings(api: ApiStandIn, kubeconfig: Path) -> None:
    passed(api)
    cordon(api, "n", **OURS)
    done = release(kubeconfig)

    assert (done.returncode, "unschedulable" in api.node("n")["spec"]) == (0, False)
    assert {*api.node("n")["metadata"]["annotations"]} == {f"{P}/results"}
    assert "nothing to release" in done.stdout
    assert release(kubeconfig).returncode == 0
    assert len(api.writes) == 1


@pytest.mark.parametrize("event", [[], [{"nature": "event", "last_seen": "2026-11-21T01:02:03Z"}]])
@pytest.mark.parametrize(("status", "severity", "code"), [("fail", "RESET", 1), ("warn", "MONITOR", 0)])
def test_release_fails_only_if_a_serious_fault_stays(
    api: ApiStandIn, kubeconfig: Path, status: str, severity: str, code: int, event: list[Json]
) -> None:
    row = {"reason": "GpuRecoveryAction", "subject": "gpu/0000:53:00.0", "severity": severity, "nature": "level"}
    record = {"schema": 1, "status": status, "severity": severity, "boot_id": "b", "cursor": 9}
    mark(api, "n", results=json.dumps({**record, "findings": [row, *({**row, "reason": "Xid13", **e} for e in event)]}))
    done = release(kubeconfig)

    assert (done.returncode, "GpuRecoveryAction on gpu/" in done.stdout) == (code, True)
    assert release(kubeconfig, "--dry-run").returncode == 0


def test_release_lifts_our_cordon_without_a_record(api: ApiStandIn, kubeconfig: Path) -> None:
    cordon(api, "n", **OURS)

    assert release(kubeconfig).returncode == 0
    assert "unschedulable" not in api.node("n")["spec"]


@pytest.mark.parametrize("tell", [failed, passed])
def test_release_keeps_our_cordon_on_request(api: ApiStandIn, kubeconfig: Path, tell: object) -> None:
    assert callable(tell)
    tell(api)
    cordon(api, "n", **OURS)
    done = release(kubeconfig, "--keep-cordoned")

    node = api.node("n")
    assert (done.returncode, node["spec"]["unschedulable"]) == (0, True)
    assert node["metadata"]["annotations"][f"{P}/cordoned-by"] == "gpu-quarantine-n"
    assert f"{STAYS}as requested\n" in done.stdout


@pytest.mark.parametrize("mark_left", ["", "gpu-quarantine-n"], ids=["", "after one of ours"])
def test_release_keeps_a_persons_cordon(api: ApiStandIn, kubeconfig: Path, mark_left: str) -> None:
    failed(api)
    cordon(api, "n", by=mark_left, manager="kubectl")
    done = release(kubeconfig)

    node = api.node("n")
    assert (done.returncode, node["spec"]["unschedulable"]) == (0, True)
    assert (
        f"{P}/release" in node["metadata"]["annotations"],
        f"{P}/cordoned-by" in node["metadata"]["annotations"],
    ) == (
        True,
        False,
    )
    assert f"{STAYS}it was not cordoned by a quarantine run (kubectl uncordon n)\n" in done.stdout


def test_release_keeps_the_cordon_of_an_active_run(api: ApiStandIn, kubeconfig: Path) -> None:
    failed(api)
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    held: Json = {"kind": "quarantine", "holder": "gpu-quarantine-n", "until": until}
    mark(api, "n", run=json.dumps(held))
    cordon(api, "n", **OURS)
    done = release(kubeconfig)

    assert (done.returncode, api.node("n")["spec"]["unschedulable"]) == (0, True)
    assert f"{STAYS}the quarantine run gpu-quarantine-n owns it until {until}\n" in done.stdout


def test_release_dry_run_writes_nothing(api: ApiStandIn, kubeconfig: Path) -> None:
    failed(api)
    cordon(api, "n", **OURS)
    done = release(kubeconfig, "--dry-run")

    assert (done.returncode, api.writes) == (0, [])
    assert "n: would be uncordoned: it was cordoned by gpu-quarantine-n\n" in done.stdout


def test_release_of_an_uncordoned_node_names_no_cordon(api: ApiStandIn, kubeconfig: Path) -> None:
    failed(api)

    assert "cordon" not in release(kubeconfig).stdout


@pytest.fixture
def rack(api: ApiStandIn) -> ApiStandIn:
    """`n` has something to release, `well` of the same rack has not, and `away` is of another."""
    failed(api)
    for name, rack in (("n", "7"), ("well", "7"), ("away", "8")):
        if name != "n":
            api.add_node(name)
        api.edit_node(name, {"metadata": {"labels": {"rack": rack}}})
    api.edit_node("away", {"metadata": {"annotations": api.node("n")["metadata"]["annotations"]}})
    return api


def select(kubeconfig: Path, selector: str, *words: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    asked = ("release", "-l", selector, "--reason", "rack recabled", "--no-wait", *words)
    return run_here(kubeconfig, *asked, answers=answers)


@pytest.mark.parametrize(
    ("words", "answers", "code", "written"),
    [
        ((), "y\n", 0, ["/api/v1/nodes/n"]),
        ((), "n\n", 1, []),
        ((), "", 130, []),
        (("--yes",), "", 0, ["/api/v1/nodes/n"]),
        (("--dry-run",), "", 0, []),
    ],
)
def test_release_by_labels_asks_for_confirmation(
    rack: ApiStandIn, kubeconfig: Path, words: tuple[str, ...], answers: str, code: int, written: list[str]
) -> None:
    done = select(kubeconfig, "rack=7", *words, answers=answers)

    assert (done.returncode, [write.path.partition("?")[0] for write in rack.writes]) == (code, written), done.stderr
    assert done.stdout.startswith("n: would release\n  REBOOT   Xid79 on gpu/0000:53:00.0 ")
    assert ("Release 1 of 2 nodes? [y/N]: " in done.stdout) is (not words)
    assert ("no answer on standard input" in done.stderr) is (code == 130)


@pytest.mark.parametrize(
    ("selector", "code", "message"),
    [
        ("rack=9", 2, "-l 'rack=9': no node has these labels"),
        ("rack=7,rack!=7", 2, "no node has these labels"),
        ("kubernetes.io/hostname=well", 0, ""),
    ],
)
def test_release_by_labels_without_findings(
    rack: ApiStandIn, kubeconfig: Path, selector: str, code: int, message: str
) -> None:
    rack.edit_node("well", {"metadata": {"labels": {"kubernetes.io/hostname": "well"}}})
    done = select(kubeconfig, selector, "--yes")

    assert (done.returncode, rack.writes) == (code, [])
    assert message in done.stderr
    assert code or done.stdout == "1 node, none has anything to release\n"


def test_release_uses_one_connection(rack: ApiStandIn, kubeconfig: Path) -> None:
    done = select(kubeconfig, "rack in (7,8)", "--yes")

    written = [write.path.partition("?")[0] for write in rack.writes]
    assert (done.returncode, written) == (0, ["/api/v1/nodes/away", "/api/v1/nodes/n"]), done.stderr
    assert rack.connections == 1


def test_release_does_not_cover_findings_that_were_not_shown(rack: ApiStandIn, kubeconfig: Path) -> None:
    access = Access(str(kubeconfig))
    options = ReleaseOptions("me", "x", keep_cordoned=False, dry_run=False, wait_seconds=0.0, shown=frozenset())

    assert (release_nodes(["n"], options, access), rack.writes) == (2, [])
