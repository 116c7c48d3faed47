"""`gpu-healthcheck status`: which nodes, in which form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.cli.fleet import ago
from gpu_healthcheck.cli.node_step import node_step
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.memory.reason_names import LOCKED
from gpu_healthcheck.healthcheck.memory.rows import FindingRow
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.text.boundary import read_row
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict.gate import refused_message
from gpu_healthcheck.healthcheck.verdict.node_events import NodeEvent
from gpu_healthcheck.healthcheck.verdict.record import StandingRecord
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.cli.cluster import P, run_here
from tests.evicting import BUDGET_ANSWER, FINDING, STALE, annotation, eviction

NODES = ("gpu-node-1", "gpu-node-2")


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with ApiStandIn(*NODES) as api:
        for number, name in enumerate(NODES):
            labels = {f"{P}/status": "pass", f"{P}/severity": "PASS", "pool": f"p{number}"}
            api.edit_node(name, {"metadata": {"labels": labels}})
        yield api.kubeconfig(tmp_path / "config")


def status_output(kubeconfig: Path, *words: str, code: int = 0) -> str:
    done = run_here(kubeconfig, "status", *words)
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


def test_status_names_are_those_of_kubectl(kubeconfig: Path) -> None:
    assert status_output(kubeconfig, "-o", "name") == "node/gpu-node-1\nnode/gpu-node-2\n"


@pytest.mark.parametrize(
    ("selector", "nodes"),
    [
        ("pool=p0", ["gpu-node-1"]),
        ("pool in (p0,p1)", [*NODES]),
        ("pool=p0,pool=p1", []),
        ("pool=none", []),
        ("", [*NODES]),
    ],
)
def test_status_selector_chooses_among_gpu_nodes(selector: str, nodes: list[str], kubeconfig: Path) -> None:
    assert status_output(kubeconfig, "-l", selector, "-o", "name").split() == [f"node/{name}" for name in nodes]


def test_status_counts_gate_refusals_by_node_and_reason(tmp_path: Path) -> None:
    refused = (("gpu-node-1", 1, "Xid79"), ("gpu-node-1", 30, "Xid79"), ("gpu-node-2", 2, "EfaCountLow"))
    others = (("gpu-node-2", "GateRefused", "the gate refused many pods"), ("gpu-node-2", "Other", "of another reason"))
    ours = ((node, "GateRefused", refused_message(pods, reason, "x")) for node, pods, reason in refused)
    at = datetime.now(UTC) - timedelta(minutes=7)
    with ApiStandIn(*NODES) as api:
        kubeconfig = api.kubeconfig(tmp_path / "config")
        cluster = cluster_of(Access(str(kubeconfig)))
        for number, (node, reason, message) in enumerate((*ours, *others)):
            event = NodeEvent(f"event-{number}", "Warning", reason, message)
            cluster.events.create(NodeState(node), event, at)
        shown = status_output(kubeconfig)
        fleet = json.loads(status_output(kubeconfig, "-o", "json"))

    line = (
        "the gate refused pods: gpu-node-1 (Xid79, 31 pods, last 7m ago), gpu-node-2 (EfaCountLow, 2 pods, last 7m ago)"
    )
    assert line in shown.splitlines()
    assert fleet["refused"][0] == {"node": "gpu-node-1", "reason": "Xid79", "pods": 31, "last": timestamp(at)}


def test_status_names_cordoned_nodes_and_runs(tmp_path: Path) -> None:
    until = timestamp(datetime.now(UTC) + timedelta(minutes=10))
    claim = json.dumps({"kind": "quarantine", "holder": "x", "until": until})
    with ApiStandIn(*NODES) as api:
        kubeconfig = api.kubeconfig(tmp_path / "config")
        idle = status_output(kubeconfig)
        marks = {"metadata": {"annotations": {f"{P}/run": claim}}, "spec": {"unschedulable": True}}
        api.edit_node("gpu-node-2", marks)
        shown = status_output(kubeconfig)
        fleet = json.loads(status_output(kubeconfig, "-o", "json"))

    lines = {"cordoned: gpu-node-2", "a deep test or a reset runs on: gpu-node-2 (quarantine)"}
    assert (lines <= {*shown.splitlines()}, lines & {*idle.splitlines()}) == (True, set())
    assert sorted((row["node"], row["cordoned"], row["run"]) for row in fleet["nodes"]) == [
        ("gpu-node-1", False, ""),
        ("gpu-node-2", True, "quarantine"),
    ]


def test_status_shows_evictions_by_state(tmp_path: Path) -> None:
    at = datetime.now(UTC).replace(microsecond=0)
    due, why = at + timedelta(minutes=1), BUDGET_ANSWER.format("train")
    pods = {
        "gpu-node-1": (eviction("train-1", "announced", at=at), eviction("train-3", "refused", at=at, why=why)),
        "gpu-node-2": (
            eviction("train-2", "announced", at=at + timedelta(minutes=5)),
            eviction("train-4", "requested", at=at),
            eviction("slurmd-0", "slurm", at=at),
        ),
    }
    with ApiStandIn(*NODES) as api:
        kubeconfig = api.kubeconfig(tmp_path / "config")
        for age in (timedelta(0), STALE):
            for node, some in pods.items():
                api.edit_node(node, {"metadata": {"annotations": annotation(*some, age=age)}})
            fleet, page = status_output(kubeconfig), status_output(kubeconfig, "gpu-node-1")
            documents = [json.loads(status_output(kubeconfig, *words, "-o", "json")) for words in ((), ("gpu-node-1",))]
            rows = [documents[0]["nodes"][0]["evictions"], documents[1]["node"]["evictions"]]
            if age:
                assert (rows, "eviction" in fleet + page) == ([[], []], False)
                break
            assert (
                f"evictions: 2 pods on 2 nodes announced, next at {due:%H:%M}Z; 1 pod on 1 node requested; 1 refused: "
                "team/train-3 on gpu-node-1 by PodDisruptionBudget team/train; "
                "1 pod on 1 node left to Slurm, which must drain gpu-node-2"
            ) in fleet.splitlines()
            budget = "PodDisruptionBudget team/train"
            assert f"eviction    team/train-1: announced, due {timestamp(due)}, {FINDING}\n" in page
            assert f"eviction    team/train-3: refused, due {timestamp(due)}, {budget}\n" in page
            refused = {"pod": "team/train-3", "state": "refused", "due": timestamp(due), "why": budget}
            assert rows[0] == rows[1]
            assert rows[0][1] == refused


def test_status_refuses_a_malformed_selector(kubeconfig: Path) -> None:
    done = run_here(kubeconfig, "status", "-l", "pool notin (a)")

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("gpu-healthcheck status: -l 'pool notin (a)': list nodes: 400: ")


def test_status_json_and_yaml_are_equal(kubeconfig: Path) -> None:
    by_form = [yaml.safe_load(status_output(kubeconfig, "-o", form)) for form in ("json", "yaml")]
    for fleet in by_form:
        for row in fleet["nodes"]:
            del row["heartbeat_age_seconds"]

    assert by_form[0] == by_form[1]
    assert [row["node"] for row in by_form[0]["nodes"]] == [*NODES]


def test_status_wide_has_more_columns(kubeconfig: Path) -> None:
    narrow, wide = (status_output(kubeconfig, "-o", form).splitlines()[0].split() for form in ("table", "wide"))

    assert wide == [*narrow, "since", "findings", "next", "step"]


def test_status_without_headers_prints_rows_only(kubeconfig: Path) -> None:
    rows = status_output(kubeconfig, "--no-headers").splitlines()

    assert [row.split()[0] for row in rows] == [*NODES]


def finding(reason: str, nature: str = "level") -> dict[str, Any]:
    return {"reason": reason, "severity": "MONITOR", "subject": "runtime/containerd", "nature": nature, "detail": "x"}


@pytest.mark.parametrize(
    ("reasons", "step"),
    [
        (("Xid13", "NvidiaRuntimeMissing"), ("GPU pods can't start. Add the handler with", "NvidiaRuntimeMissing")),
        (("Xid13", "RuntimeClassHandlerUndefined"), ("Use the same handler name", "RuntimeClassHandlerUndefined")),
        (("Xid13", "Xid13Repeated"), ("3 processes met Xid13 within a day", "Xid13Repeated")),
        (("Xid13",), ("Nothing now.", "Xid13")),
    ],
)
def test_node_step_of_a_warning_is_for_its_worst_actionable_finding(
    reasons: tuple[str, ...], step: tuple[str, str]
) -> None:
    labels = {f"{P}/status": "warn", f"{P}/severity": "MONITOR"}
    record = StandingRecord(findings=tuple(read_row(FindingRow, finding(reason)) for reason in reasons))
    result = node_step(NodeState("a", labels=labels), record, silent=False, now=datetime.now(UTC))

    assert result.note.startswith(step[0])
    assert ("Nothing now" in result.note) is (reasons == ("Xid13",))
    quarantine = ("gpu-healthcheck quarantine a",) if step[1] == "Xid13Repeated" else ()
    assert result.commands == (f"gpu-healthcheck explain {step[1]}", *quarantine)


def test_node_step_of_a_locked_gpu_is_a_reboot() -> None:
    labels = {f"{P}/status": "warn", f"{P}/severity": "MONITOR"}
    row = {**finding("Xid8", "event"), "subject": "gpu/0000:41:00.0", "detail": f"channel 0x13; {LOCKED}"}
    record = StandingRecord(findings=(read_row(FindingRow, row),))
    result = node_step(NodeState("a", labels=labels), record, silent=False, now=datetime.now(UTC))

    assert (
        result.note == "The watchdog: GPU is probably locked; drain and reboot the node if programs or nvidia-smi hang."
    )


def test_node_step_of_a_network_fault_is_its_explanation() -> None:
    row = finding("RdmaFabricDown") | {"severity": "RESET", "subject": "node"}
    labels = {f"{P}/status": "fail", f"{P}/severity": "RESET"}
    node = NodeState("a", labels=labels, annotations={f"{P}/results": json.dumps({"schema": 1, "findings": [row]})})
    record = StandingRecord(findings=(read_row(FindingRow, row),))

    step = node_step(node, record, silent=False, now=datetime.now(UTC))

    assert step.commands == ("gpu-healthcheck explain RdmaFabricDown",)
    assert step.note.startswith("Check the switch and the cables")


@pytest.mark.parametrize(
    ("reason", "severity", "subject", "commands"),
    [
        ("Xid62", "RESET", "gpu/0000:18:00.0", ["reset a", "quarantine a"]),
        ("DriverLibraryMismatch", "RESET", "driver", ["reset a --reboot", "quarantine a"]),
        ("Xid79", "REBOOT", "gpu/0000:18:00.0", ["reset a --reboot", "quarantine a"]),
        ("RowRemapFailed", "ISOLATE", "gpu/0000:18:00.0", ["quarantine a"]),
    ],
)
def test_node_step_of_a_fault_is_the_command_that_ends_it(
    reason: str, severity: str, subject: str, commands: list[str]
) -> None:
    row = finding(reason) | {"severity": severity, "subject": subject}
    labels = {f"{P}/status": "fail", f"{P}/severity": severity}
    record = StandingRecord(findings=(read_row(FindingRow, row),))
    known = {f"{P}/results": json.dumps({"schema": 1, "findings": [row]})}

    for written, expected in ((known, commands), ({}, ["quarantine a"])):
        node = NodeState("a", labels=labels, annotations=written, provider_id="gce://p/z/a")
        step = node_step(node, record, silent=False, now=datetime.now(UTC))
        assert [command.removeprefix("gpu-healthcheck ") for command in step.commands] == expected


def test_status_of_a_node_shows_findings_records_and_next_step(tmp_path: Path) -> None:
    deep = {"schema": 1, "timestamp": "2026-11-21T01:02:03Z", "status": "fail", "severity": "RESET", "by": "sweep"}
    past = {"at": "2026-11-01T00:00:00Z", "recommendation": "reset", "findings": ["Xid79 gpu/0"], "returned": True}
    records = {
        "results": {"schema": 1, "status": "warn", "findings": [finding("NvidiaRuntimeMissing") | {"exit": "a cycle"}]},
        "sweep-result": deep,
        "quarantine-result": deep | {"recommendation": "reset", "history": [past], "severity": "PASS"},
    }
    records["results"]["unobserved"] = [{"check": "8-hami", "cause": "ProbeFailed", "detail": "it can't be read"}]
    with ApiStandIn("a") as api:
        labels = {f"{P}/status": "warn", f"{P}/severity": "MONITOR"}
        annotations = {f"{P}/{name}": json.dumps(record) for name, record in records.items()}
        api.edit_node("a", {"metadata": {"labels": labels, "annotations": annotations}})
        config = api.kubeconfig(tmp_path / "config")
        text = status_output(config, "a")
        (in_json, in_yaml) = (yaml.safe_load(status_output(config, "a", "-o", form)) for form in ("json", "yaml"))
        name = status_output(config, "a", "-o", "name")

    missing = "The container runtime can't give pods a GPU"
    untold = "A deep test failed without a readable finding (DeepDiagnosticFailed on node)"
    for words in (
        "status      silent, last report: warn, MONITOR",
        f"MONITOR     GPU pods can't start. {missing} (NvidiaRuntimeMissing on runtime/containerd): x\n",
        "            ends by: a cycle\n",
        f"RESET       {untold}: sweep-result of 2026-11-21T01:02:03Z has severity RESET\n",
        "no result   8-hami: ProbeFailed: it can't be read",
        "fail, recommends reset, by sweep",
        "history     2026-11-01T00:00:00Z: reset for Xid79 gpu/0, returned to service",
        "next step   ",
        "            $ kubectl get pods -n gpu-healthcheck",
    ):
        assert words in text
    assert name == "node/a\n"
    assert [*in_json["records"]] == ["sweep-result", "quarantine-result", "results"]
    assert in_json["node"]["stops_pods"] is True
    assert in_yaml["records"] == in_json["records"]


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            {"status": "unknown", "reasons": ["still in use after 60 s: pid 7"]},
            "no GPU was reset; still in use after 60 s: pid 7",
        ),
        ({"status": "unknown", "running": "free the GPUs"}, "not ended, at the step 'free the GPUs'"),
        ({"status": "pass"}, "pass"),
        ({"status": "fail", "severity": "REBOOT"}, "fail, REBOOT"),
    ],
)
def test_status_of_a_node_describes_the_last_reset(tmp_path: Path, record: dict[str, Any], line: str) -> None:
    at = timestamp(datetime.now(UTC) - timedelta(minutes=12))
    whole = {"schema": 1, "timestamp": at, "severity": "PASS", "by": "reset", "checks": [], **record}
    with ApiStandIn("a") as api:
        api.edit_node("a", {"metadata": {"annotations": {f"{P}/reset-result": json.dumps(whole)}}})
        text = status_output(api.kubeconfig(tmp_path / "config"), "a")

    assert f"reset       {at} (12m ago), {line}\n" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-0.3, "0s ago"), (-30, "0s ago"), (61, "61s ago"), (1740, "29m ago"), (7200, "2h ago")]
)
def test_ago_is_never_negative(seconds: float, text: str) -> None:
    assert ago(seconds) == text


@pytest.mark.parametrize(
    "words",
    [
        ("-o", "html", "-w"),
        ("-o", "html", "--allocation"),
        ("--slow", "gpu-node-1"),
        ("--slow", "-w"),
        ("--slow", "--allocation"),
        ("--slow", "-o", "html"),
        ("-o", "name", "-w"),
        ("-o", "name", "--allocation"),
        ("--allocation", "-l", "a=b"),
        ("--allocation", "-w"),
        ("gpu-node-1", "gpu-node-2"),
        ("gpu-node-1", "-l", "a=b"),
        ("gpu-node-1", "-o", "html"),
        ("no-such-node",),
        ("--prometheus", "http://127.0.0.1:9090"),
    ],
)
def test_status_refuses_conflicting_options(words: tuple[str, ...], kubeconfig: Path) -> None:
    assert run_here(kubeconfig, "status", *words).returncode == 3


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ("json", lambda out: [json.loads(line) for line in out.splitlines()]),
        ("yaml", lambda out: list(yaml.safe_load_all(out))),
    ],
)
def test_status_watch_prints_one_document_after_the_other(
    form: str, read: object, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = iter((None, KeyboardInterrupt))

    def sleep(_: float) -> None:
        if end := next(pauses):
            raise end

    monkeypatch.setattr("time.sleep", sleep)
    documents = read(status_output(kubeconfig, "-w", "-o", form, code=130))  # type: ignore[operator]

    assert [[row["node"] for row in document["nodes"]] for document in documents] == [[*NODES], [*NODES]]


def test_status_refuses_a_malformed_timeout(kubeconfig: Path) -> None:
    done = run_here(kubeconfig, "status", "--request-timeout", "5 years")

    assert done.returncode == 3
    assert "'5 years' is not a duration" in done.stderr
