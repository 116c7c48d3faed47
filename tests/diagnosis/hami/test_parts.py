"""Each installation in a report: its parts, whom its webhook takes, and whether its CA holds."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.answers.hami_parts import HamiPart, installation_tables
from gpu_healthcheck.diagnosis.answers.target import Target, is_there, of_causes
from gpu_healthcheck.diagnosis.causes import HAMI_CAUSES
from gpu_healthcheck.diagnosis.causes.diagnose import Diagnosis, arranged, diagnose
from gpu_healthcheck.diagnosis.causes.hami.hami_nodes import CARD_UNHEALTHY
from gpu_healthcheck.diagnosis.facts.components import Health
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, FoundCause
from gpu_healthcheck.diagnosis.report.content import Report, report_of
from gpu_healthcheck.diagnosis.report.document import document
from gpu_healthcheck.diagnosis.report.pages import html_page, markdown_page
from tests.console import typed
from tests.diagnosis.hami.hami_states import hami, hami_node, vgpu_pod
from tests.diagnosis.hami.test_two_installations import cluster, with_flags
from tests.diagnosis.states import NOW, Object, node, obj, pod, snapshot, waiting
from tests.hostile import HOSTILE

A = hami_node("a")


def ca(name: str) -> str:
    text = (Path(__file__).parent / f"ca-{name}.pem").read_bytes()
    return base64.b64encode(text).decode()


def parts(*state: Object, **more: Any) -> dict[str, HamiPart]:
    (table,) = installation_tables(snapshot(*state, **more))
    return {part.what: part for part in table.parts}


def test_each_part_has_its_health_and_version() -> None:
    rows = parts(*hami(A, version="v2.9.1", webhook={"ca": ca("lasting")}))
    assert {part.what: (part.health, part.version) for part in rows.values() if part.health is not None} == {
        "scheduler": (Health.WORKING, "v1.33.4"),
        "extender": (Health.WORKING, "v2.9.1"),
        "device plugin": (Health.WORKING, "v2.9.1"),
        "monitor": (Health.WORKING, "v2.9.1"),
        "webhook": (Health.WORKING, ""),
        "its CA": (Health.WORKING, ""),
    }


def test_report_about_hami_has_only_its_parts_and_causes() -> None:
    stuck = pod("x", 1, on="a", phase="Pending", states=[waiting("ErrImagePull", "not found")], namespace="team")
    state = snapshot(*hami(A, ready=False), stuck)
    whole = report_of(state, None, "", None, overview=False)
    only = report_of(state, Target("HAMi", "", ""), "", None, overview=False)

    assert [problem.found.cause.name for problem in whole.diagnosis.problems] == [
        "HamiSchedulerNotReady",
        "ImageNotFound",
    ]
    assert [problem.found.cause.name for problem in only.diagnosis.problems] == ["HamiSchedulerNotReady"]
    assert only.hami == installation_tables(state)
    assert is_there(state, Target("HAMi", "", ""))
    assert not is_there(snapshot(node("a")), Target("HAMi", "", ""))


def test_cause_of_a_hami_problem_is_kept() -> None:
    card, image = (Cause(name, CauseSeverity.HIGH, None, "", "") for name in ("NodeFault", "Image"))
    found = [
        FoundCause(card, "node/a", ()),
        FoundCause(CARD_UNHEALTHY, "node/a", (), because_of=(("NodeFault", "node/a"),)),
        FoundCause(image, "pod/x", (), because_of=(("NodeFault", "node/a"),)),
    ]
    (problem,) = of_causes(Diagnosis(NOW, arranged(found), ()), HAMI_CAUSES).problems

    assert [child.found.cause for child in problem.consequences] == [CARD_UNHEALTHY]


def test_crash_is_attributed_to_its_container() -> None:
    rows = parts(*hami(A, ready=False))
    assert rows["extender"].health is Health.DOWN
    assert rows["extender"].detail.startswith("0 of 1 ready")
    assert rows["webhook"].health is Health.DOWN


def test_invisible_part_is_unknown() -> None:
    hidden = [entry for entry in hami(A) if entry["kind"] not in ("Deployment", "Pod", "MutatingWebhookConfiguration")]
    rows = parts(*hidden, missing=["Deployment", "Pod", "MutatingWebhookConfiguration"])
    assert {part.health for part in (rows["scheduler"], rows["webhook"])} == {Health.UNKNOWN}
    assert parts(*hami(A, webhook=None))["webhook"].status == "missing"


def test_plugin_without_a_monitor_has_a_row() -> None:
    state = hami(A)
    for entry in state:
        if "device-plugin" in entry["metadata"]["name"]:
            spec = entry["spec"]["template"]["spec"] if entry["kind"] == "DaemonSet" else entry["spec"]
            spec["containers"] = spec["containers"][:1]
    assert parts(*state)["monitor"].status == "none"


NO_SYSTEM = [
    {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "x"]},
    {"key": "gone", "operator": "DoesNotExist"},
]
ALL: Object = {"namespaceSelector": {}, "objectSelector": {}}
NONE = "none of the 2 namespaces"
WITHOUT = "without a response"
WEBHOOKS: list[tuple[Object, dict[str, str]]] = [
    (ALL, {"selects": "all pods, in all namespaces", "ignores": NONE}),
    (
        {"objectSelector": {"matchLabels": {"gpu": "yes"}}},
        {"selects": "pods where gpu is yes, in namespaces where hami.io/webhook is not ignore", "ignores": NONE},
    ),
    (
        ALL | {"namespaceSelector": {"matchExpressions": NO_SYSTEM}},
        {
            "selects": "all pods, in namespaces where kubernetes.io/metadata.name is not kube-system or x "
            "and gone is absent",
            "ignores": "kube-system",
        },
    ),
    (
        ALL | {"matchConditions": [{"name": "gpus", "expression": "has(x)"}]},
        {"selects": "all pods, in all namespaces, by matchConditions gpus: has(x)"},
    ),
    ({"failurePolicy": "Ignore"}, {WITHOUT: "failurePolicy Ignore: after 10 s the pod passes unchanged"}),
    (
        {"failurePolicy": "Fail", "timeoutSeconds": 3},
        {WITHOUT: "failurePolicy Fail: after 3 s the pod is refused"},
    ),
    ({"failurePolicy": None}, {WITHOUT: "failurePolicy Fail: after 10 s the pod is refused"}),
]


@pytest.mark.parametrize(("webhook", "details"), WEBHOOKS)
def test_webhook_rows_show_its_configuration(webhook: Object, details: dict[str, str]) -> None:
    rows = parts(*hami(A, webhook=webhook))
    assert {name: rows[name].detail for name in details} == details


def test_webhook_of_other_objects_is_down() -> None:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}]
    webhook = parts(*hami(A, webhook={"rules": rules}))["webhook"]
    assert webhook.health is Health.DOWN
    assert "none of its rules covers the creation of pods" in webhook.detail


@pytest.mark.parametrize(
    ("bundle", "status", "words"),
    [
        (ca("lasting"), "valid", "2120-01-01; whether it signed the scheduler's certificate is not checked"),
        (ca("ended"), "expired", "Secrets are never read"),
        ("", "missing", "the webhook has no caBundle"),
        ("(set)", "not visible", "it is not in a saved state"),
        ("bm9uc2Vuc2U=", "not visible", "its caBundle is not a readable CA"),
        ("no base64!", "not visible", "its caBundle is not a readable CA"),
    ],
)
def test_ca_row_shows_its_validity(bundle: str, status: str, words: str) -> None:
    rows = parts(*hami(A, webhook={"ca": bundle}))
    assert rows["its CA"].status == status
    assert words in rows["its CA"].detail
    assert (rows["webhook"].health is Health.DOWN) == (status in ("expired", "missing"))


def test_webhook_row_names_the_newest_pod() -> None:
    assert "pod/team/x, has its scheduler" in parts(*hami(A), vgpu_pod("x", on="a"))["webhook"].detail
    passed = vgpu_pod("y", age=1, spec={"schedulerName": "default-scheduler"})
    assert "pod/team/y, lacks its scheduler" in parts(*hami(A), vgpu_pod("x", on="a"), passed)["webhook"].detail


def test_extender_row_shows_its_policies() -> None:
    assert "(the chart's defaults)" in parts(*hami(A))["extender"].detail
    flag = "--node-label-selector=gpu=on"
    state = [with_flags(entry, flag) if entry["kind"] == "Deployment" else entry for entry in hami(A)]
    assert parts(*state)["extender"].detail.endswith("lock expiry 5 min; only nodes with gpu=on")


def test_two_installations_have_a_table_each() -> None:
    tables = installation_tables(snapshot(*cluster()))
    assert [(table.name, table.scheduler_name) for table in tables] == [
        ("kube-system/hami", "hami-scheduler"),
        ("lab/lab-hami", "lab-scheduler"),
    ]


def test_cluster_without_hami_has_no_table() -> None:
    state = snapshot(node("a"), pod("x", on="a"))
    assert installation_tables(state) == ()
    report = Report(diagnose(state), hami=installation_tables(state))
    assert "hami" not in document(report)
    assert "HAMi" not in markdown_page(report) + html_page(report)


def test_all_forms_show_the_same_rows() -> None:
    state = snapshot(*hami(A, webhook={"ca": ca("lasting")}))
    report = Report(diagnose(state), hami=installation_tables(state))
    for text in (markdown_page(report), html_page(report), json.dumps(document(report))):
        for word in ("kube-system/hami", "v2.9.0", "failurePolicy Ignore", "2120-01-01", "Secrets are never read"):
            assert word in text


def test_terminal_shows_the_table_before_the_causes(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"kind": "List", "items": hami(A, webhook={"ca": ca("lasting")})}))
    message = typed(("diagnose", "--from", str(file)), {}).stdout.decode()
    assert (
        message.index("HAMi kube-system/hami")
        < message.index("extender working v2.9.0")
        < message.index("Nothing found")
    )
    assert b"HAMi kube-system/hami" not in typed(("diagnose", "node", "a", "--from", str(file)), {}).stdout


def test_hostile_selectors_are_escaped() -> None:
    for word in HOSTILE:
        conditions = [{"name": word, "expression": word}]
        webhook = {"objectSelector": {"matchLabels": {word: word}}, "matchConditions": conditions, "ca": word}
        state = snapshot(*hami(A, webhook=webhook), obj("Namespace", "x", metadata={"labels": {word: word}}))
        report = Report(diagnose(state), hami=installation_tables(state))
        assert markdown_page(report)
        assert html_page(report).isascii()
