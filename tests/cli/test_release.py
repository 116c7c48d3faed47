"""`gpu-healthcheck release` and the cordon of the node: ours goes with the release, a person's stays."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sim.api_stand_in import ApiStandIn
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
    """Its agent has told of an Xid."""
    row = {"reason": "Xid79", "subject": "gpu/0000:53:00.0", "severity": "REBOOT", "nature": "event", "seq": 7}
    row |= {"last_seen": "2026-11-21T01:02:03Z"}
    record = {"schema": 1, "timestamp": "2026-11-21T01:02:03Z", "status": "fail", "severity": "REBOOT", "boot_id": "b"}
    mark(api, "n", results=json.dumps({**record, "cursor": 9, "findings": [row]}))


def passed(api: ApiStandIn) -> None:
    record = {"schema": 1, "timestamp": "2026-11-21T01:02:03Z", "status": "pass", "severity": "PASS", "findings": []}
    mark(api, "n", results=json.dumps(record))


def release(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_here(kubeconfig, "release", "n", "--reason", "board swapped", "--no-wait", *words)


def test_our_cordon_goes_in_the_patch_that_releases(api: ApiStandIn, kubeconfig: Path) -> None:
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


def test_our_cordon_goes_also_where_nothing_is_left_to_release(api: ApiStandIn, kubeconfig: Path) -> None:
    passed(api)
    cordon(api, "n", **OURS)
    done = release(kubeconfig)

    assert (done.returncode, "unschedulable" in api.node("n")["spec"]) == (0, False)
    assert {*api.node("n")["metadata"]["annotations"]} == {f"{P}/results"}
    assert "nothing to release" in done.stdout
    assert release(kubeconfig).returncode == 0
    assert len(api.writes) == 1


def test_a_fault_that_no_release_ends_is_no_success_where_nothing_else_is_to_release(
    api: ApiStandIn, kubeconfig: Path
) -> None:
    row = {"reason": "GpuRecoveryAction", "subject": "gpu/0000:53:00.0", "severity": "RESET", "nature": "level"}
    record = {"schema": 1, "status": "fail", "severity": "RESET", "findings": [row]}
    mark(api, "n", results=json.dumps(record))
    done = release(kubeconfig)

    assert (done.returncode, "n: still stands\n  RESET    GpuRecoveryAction on gpu/" in done.stdout) == (1, True)
    assert release(kubeconfig, "--dry-run").returncode == 0


def test_our_cordon_goes_also_where_no_agent_ever_told(api: ApiStandIn, kubeconfig: Path) -> None:
    cordon(api, "n", **OURS)

    assert release(kubeconfig).returncode == 0
    assert "unschedulable" not in api.node("n")["spec"]


@pytest.mark.parametrize("tell", [failed, passed])
def test_it_stays_where_a_person_wants_it_to(api: ApiStandIn, kubeconfig: Path, tell: object) -> None:
    assert callable(tell)
    tell(api)
    cordon(api, "n", **OURS)
    done = release(kubeconfig, "--keep-cordoned")

    node = api.node("n")
    assert (done.returncode, node["spec"]["unschedulable"]) == (0, True)
    assert node["metadata"]["annotations"][f"{P}/cordoned-by"] == "gpu-quarantine-n"
    assert f"{STAYS}as you asked\n" in done.stdout


@pytest.mark.parametrize("mark_left", ["", "gpu-quarantine-n"], ids=["", "after one of ours"])
def test_a_persons_cordon_stays_and_is_told(api: ApiStandIn, kubeconfig: Path, mark_left: str) -> None:
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
    assert f"{STAYS}no quarantine run of ours cordoned it (kubectl uncordon n)\n" in done.stdout


def test_it_stays_while_the_run_goes_on(api: ApiStandIn, kubeconfig: Path) -> None:
    failed(api)
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    held: Json = {"kind": "quarantine", "holder": "gpu-quarantine-n", "until": until}
    mark(api, "n", run=json.dumps(held))
    cordon(api, "n", **OURS)
    done = release(kubeconfig)

    assert (done.returncode, api.node("n")["spec"]["unschedulable"]) == (0, True)
    assert f"{STAYS}the quarantine run gpu-quarantine-n has it until {until}\n" in done.stdout


def test_a_dry_run_says_it_and_writes_nothing(api: ApiStandIn, kubeconfig: Path) -> None:
    failed(api)
    cordon(api, "n", **OURS)
    done = release(kubeconfig, "--dry-run")

    assert (done.returncode, api.writes) == (0, [])
    assert "n: would be uncordoned: it was cordoned by gpu-quarantine-n\n" in done.stdout


def test_of_a_node_that_takes_work_no_cordon_is_spoken(api: ApiStandIn, kubeconfig: Path) -> None:
    failed(api)

    assert "cordon" not in release(kubeconfig).stdout
