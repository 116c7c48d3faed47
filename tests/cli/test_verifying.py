"""`verify`'s report on deep diagnostics, from the records of the Nodes."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.cli.verify import Verification, engine_answers, settings_answers, show
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.node.hami import CARDS
from gpu_healthcheck.healthcheck.node.state import RESULTS, NodeState
from gpu_healthcheck.sim.api_objects import CONFIG_MAPS, DEPLOYMENTS, WEBHOOKS
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.hami_cluster import NAMESPACE, deployment, webhook


def node(name: str, **inventory: Any) -> NodeState:
    return NodeState(name, "u", "1", annotations={RESULTS: json.dumps({"status": "pass", "inventory": inventory})})


def answers(*nodes: NodeState) -> list[Verification]:
    return list(engine_answers(nodes))


def test_verify_lists_nodes_with_an_unusable_engine() -> None:
    (found,) = answers(*(node(name, dcgm={"cause": "DcgmEngineEmbedded"}) for name in ("b", "a")), node("c"))

    assert (found.about, found.holds) == ("deep tests", False)
    assert found.message.startswith(
        "left out on a, b: DcgmEngineEmbedded. Run one engine with an address on the node: "
    )
    assert "dcgm.enabled=true" in found.message
    assert "DCGM_BESIDE_EXPORTER" in found.message


def test_verify_breaks_no_name_on_a_narrow_terminal() -> None:
    names = [f"ip-10-0-123-{number}.ap-southeast-2.compute.internal" for number in range(5)]
    screen = Screen(file=StringIO(), force_terminal=True, color_system=None, width=80)
    show(answers(*(node(name, dcgm={"cause": "DcgmEngineEmbedded"}) for name in names)), screen)

    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("deep tests  not ok  left out on ")
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("dcgm", [{"host": "127.0.0.1:5555"}, {}, None, "x"])
def test_verify_omits_nodes_with_a_usable_engine_or_none(dcgm: object) -> None:
    assert answers(node("a", dcgm=dcgm), NodeState("b", "u", "1")) == []


@pytest.mark.parametrize(
    ("switch", "annotations", "version", "holds", "said"),
    [
        ("true", {CARDS: "[]"}, "v2.10.0", True, "HAMi's scheduler obeys them"),
        ("true", {CARDS: "[]"}, "v2.9.0", False, "ignores hami.io/device-cordon: a faulty GPU taints its node"),
        ("true", {CARDS: "[]"}, "", False, "no webhook vgpu.hami.io shows HAMi's scheduler"),
        ("false", {CARDS: "[]"}, "v2.9.0", None, ""),
        ("true", {}, "v2.9.0", None, ""),
    ],
)
def test_verify_reports_a_hami_that_ignores_cordons(
    tmp_path: Path, switch: str, annotations: dict[str, str], version: str, holds: bool | None, said: str
) -> None:
    with ApiStandIn() as api:
        config = {"metadata": {"name": "gpu-healthcheck-config"}, "data": {"DEVICE_TAINTS": switch}}
        api.store.create(CONFIG_MAPS, "gpu-healthcheck", config)
        if version:
            api.store.create(WEBHOOKS, "", webhook())
            api.store.create(DEPLOYMENTS, NAMESPACE, deployment(version))
        cluster = Cluster(lambda: connect(Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))
        found = list(settings_answers(cluster, [NodeState("a", annotations=annotations)]))
    cordons = [answer for answer in found if answer.about == "HAMi cordons"]
    assert [answer.holds for answer in cordons] == ([] if holds is None else [holds])
    assert all(said in answer.message for answer in cordons)
    # Where HAMi shares every GPU, no DeviceTaintRule is needed.
    assert any(answer.about == "device taints" for answer in found) == (switch == "true" and not annotations)


@pytest.mark.parametrize(
    ("data", "is_installed", "holds", "message"),
    [
        ({}, False, None, ""),
        ({"EVICT_SEVERITY": "REBOOT"}, True, True, "EVICT_SEVERITY is set"),
        ({"node-overrides": "team=a: EVICT_SEVERITY=ISOLATE"}, True, True, "EVICT_SEVERITY is set"),
        ({"EVICT_SEVERITY": "REBOOT", "DEVICE_TAINTS": "true"}, False, None, ""),
        ({"EVICT_SEVERITY": "REBOOT"}, False, False, "needs kubernetes/overlays/evict or DEVICE_TAINTS"),
        ({"node-overrides": "# EVICT_SEVERITY=ISOLATE\na: EVICT_SEVERITY="}, True, False, "EVICT_SEVERITY is empty"),
        ({}, True, False, "EVICT_SEVERITY is empty"),
        ({"EVICT_SEVERITY": "REBOOT", "ENABLE_LABEL": "false"}, True, False, "ENABLE_LABEL must be true"),
        ({"EVICT_SEVERITY": "REBOOT", "ENABLE_TAINT": "false"}, True, False, "ENABLE_TAINT must be true"),
    ],
)
def test_verify_reports_evictions_that_are_impossible(
    tmp_path: Path, data: dict[str, str], is_installed: bool, holds: bool | None, message: str
) -> None:
    with ApiStandIn() as api:
        api.store.create(CONFIG_MAPS, "gpu-healthcheck", {"metadata": {"name": "gpu-healthcheck-config"}, "data": data})
        if is_installed:
            api.store.create(DEPLOYMENTS, "gpu-healthcheck", {"metadata": {"name": "gpu-healthcheck-evict"}})
        cluster = Cluster(lambda: connect(Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))
        found = [answer for answer in settings_answers(cluster, []) if answer.about == "evictions"]
    assert [answer.holds for answer in found] == ([] if holds is None else [holds])
    assert all(message in answer.message for answer in found)
