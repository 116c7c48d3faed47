"""`diagnose --would-fit`: nodes with room for pods of a file before they are created."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpu_healthcheck.cli.app import app
from gpu_healthcheck.diagnosis.answers.pod_fit import WouldFit, would_fit_each
from gpu_healthcheck.diagnosis.facts.wanted_pods import NoPodError, pods_in
from gpu_healthcheck.diagnosis.report.would_fit import document, page
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, NotFound, Refused, Unavailable
from gpu_healthcheck.healthcheck.node.state import RESULTS, UNHEALTHY
from tests.diagnosis.hami.clusters import CORES, MEMORY, card, given, quota, scheduler, shared
from tests.diagnosis.states import GPU, Object, container, node, obj, pod, snapshot
from tests.hostile import HOSTILE

NAMESPACE = obj("Namespace", "team", metadata={"labels": {"kubernetes.io/metadata.name": "team"}})
IGNORED = obj("Namespace", "team", metadata={"labels": {"hami.io/webhook": "ignore"}})
HOOK = {
    "name": "vgpu.hami.io",
    "clientConfig": {"service": {"namespace": "kube-system", "name": "hami-scheduler", "path": "/webhook"}},
    "rules": [{"resources": ["pods"], "operations": ["CREATE"]}],
    "namespaceSelector": {"matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]},
}
WEBHOOK = obj("MutatingWebhookConfiguration", "hami-webhook", webhooks=[HOOK])
HAMI = [scheduler(), WEBHOOK, NAMESPACE]


def wanted(amounts: Mapping[str, str], **spec: Any) -> Object:
    """A manifest as a person writes it."""
    main = {"name": "main", "image": "x", "resources": {"limits": dict(amounts)}}
    return {"kind": "Pod", "metadata": {"name": "new", "namespace": "team"}, "spec": {"containers": [main], **spec}}


def would_fit_answer(*objects: Object, ask: Any = None, **manifest: Any) -> WouldFit:
    raw = manifest.pop("raw", None) or wanted(manifest.pop("amounts"), **manifest)
    (answer,) = would_fit_each(snapshot(*objects), [raw], ask)
    return answer


FAULTY = {"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}
UNTAINTED = {RESULTS: json.dumps({"schema": 1, "status": "fail", "severity": "REBOOT", "taint": "withheld"})}
"""Record of a faulty node for whose taint the fleet budget has no slot."""
ALL = [{"operator": "Exists"}]
ONE = {GPU: "1", MEMORY: "20000"}
BY_RULES: list[tuple[list[Object], dict[str, Any], dict[str, bool], tuple[str, ...]]] = [
    ([node("a", 8), node("b", 0)], {"amounts": {GPU: "4"}}, {"a": True}, ()),
    ([node("a", 8), pod("x", 6, on="a")], {"amounts": {GPU: "4"}}, {"a": False}, ()),
    ([node("a", 8, cordoned=True)], {"amounts": {GPU: "4"}}, {"a": False}, ()),
    ([node("a", 8, taints=[FAULTY]), node("b", 8)], {"amounts": {GPU: "4"}}, {"a": False, "b": True}, ()),
    ([node("a", 8, taints=[FAULTY])], {"amounts": {GPU: "4"}, "tolerations": ALL}, {"a": False}, ()),
    ([node("a", 8, taints=[FAULTY])], {"amounts": {"cpu": "4"}, "tolerations": ALL}, {"a": True}, ()),
    ([node("a", 8, annotations=UNTAINTED)], {"amounts": {GPU: "4"}}, {"a": False}, ()),
    ([node("a", 8, annotations=UNTAINTED)], {"amounts": {"cpu": "4"}}, {"a": True}, ()),
    ([*HAMI, shared("a", card(0))], {"amounts": ONE}, {"a": True}, ("scheduler hami-scheduler",)),
    (
        [*HAMI, shared("a", card(0)), given("x", "a", "GPU-0,NVIDIA,20000,0:;")],
        {"amounts": ONE},
        {"a": False},
        ("scheduler hami-scheduler",),
    ),
    (
        [*HAMI, shared("a", card(0))],
        {"amounts": {MEMORY: "100"}},
        {"a": True},
        ("scheduler hami-scheduler", "container main: nvidia.com/gpu 1"),
    ),
    (
        [*HAMI, shared("a", card(0)), given("x", "a", "GPU-0,NVIDIA,1,0:;")],
        {"amounts": {GPU: "1"}},
        {"a": False},
        ("scheduler hami-scheduler", "container main: nvidia.com/gpucores 100"),
    ),
    ([*HAMI, shared("a", card(0), cordoned=True)], {"amounts": ONE}, {"a": False}, ("scheduler hami-scheduler",)),
    (
        [*HAMI, shared("a", card(0)), pod("x", 0, on="a", containers=[container(resources={"cpu": "96"})])],
        {"amounts": ONE | {"cpu": "1"}},
        {"a": False},
        ("scheduler hami-scheduler",),
    ),
    # Such pods get a scheduler without knowledge of card memory.
    ([scheduler(), WEBHOOK, IGNORED, shared("a", card(0))], {"amounts": ONE}, {"a": False}, ()),
    ([*HAMI, shared("a", card(0))], {"amounts": ONE, "schedulerName": "volcano"}, {"a": False}, ()),
]


@pytest.mark.parametrize(("state", "manifest", "fits", "added"), BY_RULES)
def test_each_node_answers_for_a_pod_that_nobody_has_made(
    state: list[Object], manifest: dict[str, Any], fits: dict[str, bool], added: tuple[str, ...]
) -> None:
    answer = would_fit_answer(*state, **manifest)
    assert {node.node: node.fits for node in answer.nodes if node.node in fits} == fits
    assert answer.added == added
    assert answer.fits is any(fits.values())


@pytest.mark.parametrize(
    ("more", "manifest", "refused"),
    [
        ([quota(gpumem="10000")], {"amounts": ONE}, "exceeding resource quota"),
        ([], {"amounts": ONE, "nodeName": "a"}, "pod has node assigned"),
    ],
)
def test_what_hamis_webhook_denies_would_never_be_made(
    more: list[Object], manifest: dict[str, Any], refused: str
) -> None:
    answer = would_fit_answer(*HAMI, shared("a", card(0)), *more, **manifest)
    assert (answer.admission.refused, answer.fits, answer.nodes) == (refused, False, ())


def test_memory_in_other_units_is_no_request_for_hami() -> None:
    answer = would_fit_answer(*HAMI, shared("a", card(0)), amounts={GPU: "1", MEMORY: "4Gi"})
    assert (answer.unread, answer.fits) == (("main",), False)


def test_privileged_container_is_refused() -> None:
    raw = wanted(ONE)
    raw["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert would_fit_answer(*HAMI, shared("a", card(0)), raw=raw).admission.refused == "container main is privileged"


@pytest.mark.parametrize(
    ("version", "note"),
    [
        ("v2.10.1", ""),
        ("v2.9.0", "  cards are judged by the rules of HAMi 2.10; the installed version is 2.9"),
        ("latest", "  cards are judged by the rules of HAMi 2.10; the installed version is unknown"),
    ],
)
def test_page_names_the_rules_of_another_version(version: str, note: str) -> None:
    answer = would_fit_answer(scheduler(version), WEBHOOK, NAMESPACE, shared("a", card(0)), amounts=ONE)
    assert [line.plain for line in page([answer]) if "rules of HAMi 2.10; the" in line.plain] == [note] * bool(note)
    assert document([answer])[0]["hami_rules"] == note.removeprefix("  cards are ")


def test_the_api_server_says_itself_what_it_makes_of_the_pod() -> None:
    asked: list[Mapping[str, Any]] = []

    def dry_run(namespace: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(raw)
        made = wanted(ONE | {CORES: "50"}, schedulerName="gpu-share")
        return made | {"metadata": made["metadata"] | {"namespace": namespace}}

    answer = would_fit_answer(scheduler(), shared("a", card(0)), amounts=ONE, ask=dry_run)
    assert answer.admission.asked
    assert answer.added == ("scheduler gpu-share", "container main: nvidia.com/gpucores 50")
    assert answer.fits
    assert asked[0]["metadata"] == {"namespace": "team", "generateName": "new-"}


DENIED = 'admission webhook "vgpu.hami.io" denied the request: pod has node assigned'


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (Forbidden(DENIED, "create", "pods"), True),
        (Forbidden('pods "new" is forbidden: exceeded quota: gpu', "create", "pods"), True),
        (Refused("spec.containers[0].image: Required value"), True),
        (NotFound('namespaces "team" not found'), True),
        (Forbidden('pods is forbidden: User "x" cannot create resource "pods"', "create", "pods"), False),
        (Unavailable("timed out"), False),
    ],
)
def test_a_denial_differs_from_an_unreachable_server(error: ClusterError, refused: bool) -> None:
    def dry_run(_: str, __: Mapping[str, Any]) -> Mapping[str, Any]:
        raise error

    answer = would_fit_answer(*HAMI, shared("a", card(0)), amounts=ONE, ask=dry_run)
    assert bool(answer.admission.refused) is refused
    assert answer.admission.why_not == ("" if refused else str(error))
    assert answer.fits is not refused


TEMPLATE = {"metadata": {"annotations": {"nvidia.com/use-gputype": "A100"}}, "spec": {"containers": []}}
FILES = [
    ("kind: Pod\nmetadata: {name: x}\nspec: {containers: []}", [("ops", "x")]),
    (
        "kind: Pod\nmetadata: {name: x, namespace: team}\n---\n# nothing\n---\nkind: Pod\n",
        [("team", "x"), ("ops", "pod")],
    ),
    (json.dumps({"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": TEMPLATE}}), [("ops", "d")]),
    (
        json.dumps(
            {"kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}}
        ),
        [("ops", "c")],
    ),
    (json.dumps({"kind": "List", "items": [{"kind": "Pod"}, {"kind": "Service"}]}), [("ops", "pod")]),
]


@pytest.mark.parametrize(("text", "pods"), FILES)
def test_pods_are_found_in_what_makes_them(text: str, pods: list[tuple[str, str]]) -> None:
    found = pods_in(text, "ops")
    assert [(entry["metadata"]["namespace"], entry["metadata"]["name"]) for entry in found] == pods


@pytest.mark.parametrize("text", ["", "kind: Service", "[", "kind: Pod\n  x: {", "a: " + "[" * 5000, *HOSTILE])
def test_a_file_without_a_pod_says_so(text: str) -> None:
    with pytest.raises(NoPodError) as refused:
        pods_in(text, "")
    assert str(refused.value).isprintable()


def _saved(folder: Path, *objects: Object) -> Path:
    file = folder / "state.json"
    file.write_text(json.dumps({"kind": "List", "items": list(objects)}))
    return file


def test_the_command_answers_by_its_exit_code(tmp_path: Path) -> None:
    state = _saved(tmp_path, *HAMI, shared("a", card(0)), pod("other", 0))
    manifest = tmp_path / "pod.yaml"

    def run(memory: str, *options: str) -> tuple[int, str]:
        manifest.write_text(json.dumps(wanted({GPU: "1", MEMORY: memory})))
        done = CliRunner().invoke(
            app, ["diagnose", "--from", str(state), "--would-fit", str(manifest), *options], env={"COLUMNS": "160"}
        )
        return done.exit_code, done.output

    code, text = run("20000")
    assert (code, "fits on 1 of 1 GPU nodes: a" in text) == (0, True)
    assert "  \n" not in text
    code, text = run("40000")
    assert (code, "CardInsufficientMemory: 40000 MiB requested, 32768 free" in text) == (1, True)
    code, text = run("40000", "-o", "json")
    assert json.loads(text)[0]["nodes"][0]["cards"][0]["code"] == "CardInsufficientMemory"
    assert run("1", "-o", "html")[0] == 3
    assert run("1", "node", "a")[0] == 3


def test_a_file_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    state = _saved(tmp_path, node("a"))
    done = CliRunner().invoke(app, ["diagnose", "--from", str(state), "--would-fit", str(tmp_path / "no.yaml")])
    assert done.exit_code == 3


def test_without_pods_nobody_knows_what_is_free(tmp_path: Path) -> None:
    state = tmp_path / "nodes.json"
    state.write_text(json.dumps({"kind": "NodeList", "items": [node("a", 8)]}))
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(json.dumps(wanted({GPU: "1"})))
    done = CliRunner().invoke(app, ["diagnose", "--from", str(state), "--would-fit", str(manifest)])
    assert done.exit_code == 2


def test_a_document_holds_what_the_page_says() -> None:
    (entry,) = document([would_fit_answer(*HAMI, shared("a", card(0)), amounts=ONE)])
    assert (entry["fits"], entry["added"], entry["admission"]) == (True, ["scheduler hami-scheduler"], "by rules")
