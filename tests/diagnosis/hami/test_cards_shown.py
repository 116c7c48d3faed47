"""Each card that HAMi shares, wherever a person or a program looks at the cluster."""

from __future__ import annotations

import json
import re

from gpu_healthcheck.cli.output.allocation_table import page
from gpu_healthcheck.diagnosis.answers.allocation import allocation
from gpu_healthcheck.diagnosis.answers.node_inventory import inventory
from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from gpu_healthcheck.diagnosis.report.content import Report
from gpu_healthcheck.diagnosis.report.document import cluster_document
from gpu_healthcheck.diagnosis.report.pages import html_page, markdown_page
from tests.diagnosis.hami.clusters import card, device_config, given, shared
from tests.diagnosis.states import Object, node, obj, snapshot
from tests.hostile import HOSTILE

STATE = [
    shared("a", card(0), card(1, health=False), card(2), annotations={"hami.io/device-cordon": "GPU-2"}),
    given("x", "a", "GPU-0,NVIDIA,8192,30:;GPU-0,NVIDIA,1000,0:;"),
    *(given(f"y{number}", "a", "GPU-0,NVIDIA,1,0:;") for number in range(4)),
]
WORDS = ("GPU-0", "4 of 10", "23572 of 32768 MiB", "70 of 100 %", "team/x (9192 MiB, 30 %, 2 slots)", "1 more")


def printed(*objects: Object, missing: tuple[str, ...] = (), width: int | None = 250) -> str:
    return "\n".join(line.plain for line in page(allocation(snapshot(*objects, missing=missing)), width))


def test_terminal_shows_free_amounts_and_owners_of_cards() -> None:
    shown = printed(*STATE)
    for word in (*WORDS, "GPU-1 (unhealthy)", "GPU-2 (cordoned)"):
        assert word in shown
    ours = {"hami.io/device-cordon": "GPU-0", "gpu-healthcheck.aws-samples.io/device-cordon": "GPU-0"}
    assert "GPU-0 (cordoned by the agent)" in printed(shared("a", card(0), annotations=ours))


def test_narrow_terminal_shows_a_line_for_each_card() -> None:
    shown = printed(*STATE, width=80)
    assert re.search("^a +0 GPU-0 +4 of 10 +23572 of 32768 MiB ", shown, re.MULTILINE)
    assert "row: team/x (9192 MiB, 30 %, 2 slots)" in shown


def test_free_amounts_without_pods_are_unknown() -> None:
    assert "? of 32768 MiB" in printed(*STATE, missing=("Pod",))


def test_cluster_without_hami_has_no_card_table() -> None:
    assert "Slots free" in printed(*STATE)
    assert "Slots free" not in printed(node("a", 8))


def test_documents_show_the_same_row() -> None:
    seen = snapshot(*STATE)
    report = Report(diagnose(seen), cluster=allocation(seen))
    for text in (markdown_page(report), html_page(report)):
        for word in WORDS:
            assert word in text


def test_inventory_shows_the_cards() -> None:
    seen = snapshot(*STATE)
    rows = [row for row in inventory(seen, seen.nodes[0]) if row.what.startswith("card ")]
    assert len(rows) == 3
    assert "23572 of 32768 MiB memory" in rows[0].value


def test_document_has_each_card_with_its_pods() -> None:
    (result,) = cluster_document(allocation(snapshot(*STATE)))["nodes"]
    first = result["cards"][0]
    assert (first["memory_mib"], first["memory_mib_held"], first["memory_mib_free"]) == (32768, 9196, 23572)
    assert first["pods"][0] == {"pod": "pod/team/x", "slots": 2, "memory_mib": 9192, "cores_percent": 30}
    assert [(entry["healthy"], entry["cordoned"]) for entry in result["cards"]] == [
        (True, False),
        (False, False),
        (True, True),
    ]


def test_report_shows_the_memory_scaling() -> None:
    own = json.dumps(
        {"nodeconfig": [{"name": "a", "devicememoryscaling": 2}, {"name": "gone", "devicememoryscaling": 3}]}
    )
    seen = snapshot(
        *STATE,
        device_config("nvidia: {deviceMemoryScaling: 1.5}"),
        obj("ConfigMap", "hami-device-plugin", "kube-system", data={"config.json": own}),
    )
    allocated = allocation(seen)
    assert allocated.memory_scaling == {"": 1.5, "a": 2.0}
    report = Report(diagnose(seen), cluster=allocated)
    assert "Device Memory Scaling by HAMi: 1.5, `a` 2" in markdown_page(report)
    assert "<b>1.5</b>HAMi memory scaling" in html_page(report)
    assert cluster_document(allocated)["hami_memory_scaling"] == {"": 1.5, "a": 2.0}
    assert not allocation(snapshot(node("a", 8), device_config("nvidia: {deviceMemoryScaling: 2}"))).memory_scaling


def test_hostile_registration_is_escaped() -> None:
    for word in HOSTILE:
        state = [shared("a", card(0, id=word, type=word, mode=word)), given("x", "a", f"{word},NVIDIA,1,0:;")]
        seen = snapshot(*state)
        report = Report(diagnose(seen), cluster=allocation(seen))
        assert printed(*state)
        assert markdown_page(report)
        assert html_page(report).isascii()
